"""How often the intervals contain the truth, on predictions that are made up so that the truth is known.

    python experiments/intervals.py track-record    "of 100 answers this sure, about 92 were right": 2 min
    python experiments/intervals.py calibration     the debiased ECE and ACE, and the test of calibration: 15 min
    python experiments/intervals.py differences     ECE of two methods on the same images: 10 min
    python experiments/intervals.py tables          prints the tables of docs/evaluate.md and docs/serve.md

Each writes a CSV beside this file; what is in it already is not computed again. A model is a distribution of
confidences and a gap: at a confidence c it is right with probability c + gap(c). Gaps are scaled so that the ECE of the
10 bins, with very many images, is the one asked for. `--trials` sets how many samples are drawn of each.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.metrics import Predictions, debiased_error, debiased_errors, reliability_table
from calprompt.promises import TrackRecord
from calprompt.results.compare import compare

HERE = Path(__file__).parent
MANY = 400_000  # images, from which the truth is computed

CONFIDENCES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "spread": lambda rng, n: 0.25 + 0.75 * rng.beta(3, 1.2, n),  # mean 0.79
    "sure": lambda rng, n: 1 - 0.5 * rng.beta(0.6, 4, n),  # mean 0.93
    "low": lambda rng, n: rng.uniform(0.05, 0.6, n),
}
GAPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "over-confident": lambda c: np.full_like(c, -1),
    "under-confident": lambda c: 1 - c,
    "too extreme": lambda c: 0.6 - c,
    "one bin": lambda c: -1.0 * ((c > 0.8) & (c <= 0.9)),
    "alternating": lambda c: np.where(np.ceil(10 * c) % 2, 1.0, -1.0),
}
MODELS = (
    ("spread", "over-confident"),
    ("spread", "too extreme"),
    ("spread", "one bin"),
    ("spread", "alternating"),
    ("sure", "over-confident"),
    ("sure", "under-confident"),
    ("low", "under-confident"),
)
IMAGES, ERRORS = (50, 200, 1000, 5000), (0.0, 0.02, 0.05, 0.1)

ACCURACIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "calibrated": lambda c: c,
    "over-confident": lambda c: _tempered(c, 0.5),
    "under-confident": lambda c: _tempered(c, 2.0),
    "15 points too sure": lambda c: np.maximum(c - 0.15, 0),
}
HELD_OUT, SURE = (30, 60, 200, 1000), (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)
PAIRS = ((0.0, 0.0), (0.05, 0.05), (0.0, 0.05), (0.02, 0.05), (0.0, 0.1))  # true ECE of the two methods


class Table:
    """A CSV file to which rows are added as they are measured."""

    def __init__(self, name: str, keys: tuple[str, ...]) -> None:
        self.path, self.keys = HERE / name, keys
        self.rows = read(name) if self.path.exists() else []

    def has(self, *key: Any) -> bool:
        return any(tuple(row[name] for name in self.keys) == tuple(map(_text, key)) for row in self.rows)

    def add(self, **row: Any) -> None:
        self.rows.append({name: _text(value) for name, value in row.items()})
        with self.path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        print(" ".join(self.rows[-1].values()), flush=True)


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file beside this one."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def generator(*key: Any) -> np.random.Generator:
    """Draws of a cell, the same whichever cells were computed before."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def _tempered(c: np.ndarray, power: float) -> np.ndarray:
    """The confidence with its odds to a power."""
    return c**power / (c**power + (1 - c) ** power)


@cache
def scale(confidences: str, gap: str, error: float) -> float | None:
    """What to multiply a gap with, so that the ECE of very many images is the one asked for; None if it cannot be."""
    c = CONFIDENCES[confidences](np.random.default_rng(0), MANY)
    shape = GAPS[gap](c)

    def ece(factor: float) -> float:
        bins = np.minimum(np.ceil(10 * c).astype(int) - 1, 9)
        return float(np.abs(np.bincount(bins, (c + factor * shape).clip(0, 1) - c)).sum()) / MANY

    low, high = 0.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ece(middle) < error else (low, middle)
    return high if abs(ece(high) - error) < 1e-4 else None


def accuracy_at(c: np.ndarray, confidences: str, gap: str, error: float) -> np.ndarray:
    """How often predictions of these confidences are right."""
    factor = scale(confidences, gap, error) if error else 0.0
    assert factor is not None
    return (c + factor * GAPS[gap](c)).clip(0, 1)


def predictions_of(confidence: np.ndarray, right: np.ndarray) -> Predictions:
    """Predictions that have nothing but a confidence and whether they are right."""
    predicted = np.where(right, 0, 1)
    return Predictions(confidence[:, None], np.zeros_like(predicted), predicted, np.zeros(len(predicted)))


def track_record(trials: int) -> None:
    """The interval of `TrackRecord.meaning` against how often predictions of that confidence are right."""
    table = Table("intervals_track_record.csv", ("held_out", "confidences", "model", "confidence"))
    cells = [(n, kind, model) for n in HELD_OUT for kind in ("spread", "sure") for model in ACCURACIES]
    for n, kind, model in cells:
        if table.has(n, kind, model, SURE[-1]):
            continue
        rng, found = generator("track record", n, kind, model), {c: [] for c in SURE}
        for _ in range(trials):
            confidence = np.sort(CONFIDENCES[kind](rng, n))
            right = rng.random(n) < ACCURACIES[model](confidence)
            record = TrackRecord("held out", confidence, right, np.ones(n, dtype=bool))
            for c in SURE:
                found[c].append(record.meaning(c))
        for c, meanings in found.items():
            truth = float(ACCURACIES[model](np.array(c)))
            told = [(each.share, *each.interval) for each in meanings if each.interval is not None]
            share, low, high = np.array(told).T if told else np.empty((3, 0))
            covered, width, error = (
                float(x.mean()) if told else float("nan")
                for x in ((low <= truth) & (truth <= high), high - low, share - truth)
            )
            key = {"held_out": n, "confidences": kind, "model": model, "confidence": c, "truth": truth}
            table.add(**key, trials=trials, told=len(told), covered=covered, width=width, estimate_error=error)


def calibration(trials: int) -> None:
    """The debiased ECE and ACE against the error that very many images show."""
    table = Table("intervals_calibration.csv", ("images", "confidences", "gap", "true", "metric"))
    for n in IMAGES:
        for kind, gap in MODELS:
            for error in ERRORS:
                first = MODELS[[each for each, _ in MODELS].index(kind)] == (kind, gap)
                if (error and scale(kind, gap, error) is None) or (not error and not first):
                    continue
                if not table.has(n, kind, gap, error, "ece"):
                    shown = (kind, gap) == MODELS[0]  # in the table of the docs
                    many = trials if shown else trials // 4
                    _calibration_cell(table, n, kind, gap, error, many // 4 if n == IMAGES[-1] else many, shown)


def _calibration_cell(table: Table, n: int, kind: str, gap: str, error: float, trials: int, both: bool) -> None:
    rng = generator("calibration", n, kind, gap, error)
    found: dict[str, list[tuple[float, ...]]] = {"ece": [], "ace": []} if both else {"ece": []}
    for _ in range(trials):
        c = CONFIDENCES[kind](rng, n)
        sample = predictions_of(c, rng.random(n) < accuracy_at(c, kind, gap, error))
        errors = debiased_errors(sample) if both else {"ece": debiased_error(reliability_table(sample))}
        for metric, each in errors.items():
            found[metric].append((each.measured, each.value, each.low, each.high, each.p_value))
    for metric, values in found.items():
        truth = error if metric == "ece" else _true_ace(kind, gap, error)
        measured, value, low, high, p = np.array(values).T
        table.add(
            images=n,
            confidences=kind,
            gap=gap,
            true=error,
            metric=metric,
            truth=truth,
            trials=trials,
            measured=float(measured.mean()),
            debiased=float(value.mean()),
            low=float(low.mean()),
            high=float(high.mean()),
            covered=float(((low <= truth) & (truth <= high)).mean()),
            refused=float((p <= 0.05).mean()),
        )


@cache
def _true_ace(kind: str, gap: str, error: float) -> float:
    """The ACE of very many images."""
    c = np.sort(CONFIDENCES[kind](np.random.default_rng(1), MANY))
    return float(np.abs((accuracy_at(c, kind, gap, error) - c).reshape(10, -1).sum(axis=1)).sum() / MANY)


def differences(trials: int) -> None:
    """ECE of two methods on the same images: its difference against the mean over samples, and against the true one."""
    table = Table("intervals_differences.csv", ("images", "confidences", "first", "second"))
    for n in IMAGES[:-1]:
        for kind in ("spread", "sure"):
            for first, second in PAIRS:
                if table.has(n, kind, first, second):
                    continue
                rng, found = generator("differences", n, kind, first, second), []
                for number in range(trials):
                    c, shared = CONFIDENCES[kind](rng, n), rng.random(n)
                    methods = {}
                    for name, error in (("A", first), ("B", second)):
                        luck = np.where(rng.random(n) < 0.8, shared, rng.random(n))  # mostly right on the same images
                        own = (c + rng.normal(0, 0.02, n)).clip(0.01, 0.9999)
                        right = luck < accuracy_at(own, kind, "over-confident", error)
                        methods[name] = {"test": [predictions_of(own, right)]}
                    rows = compare("", methods, differences=(("B", "A"),), resamples=300, seed=number)
                    found.append(
                        [next((r.value, r.low, r.high) for r in rows if r.is_difference and r.metric == "ece")]
                    )
                    found[-1] += [next((r.value, r.low, r.high) for r in rows if r.method == "A" and r.metric == "ece")]
                (value, low, high), (level, level_low, level_high) = np.array(found, dtype=np.float64).transpose(
                    1, 2, 0
                )
                mean, level_mean, truth = float(value.mean()), float(level.mean()), second - first
                table.add(
                    images=n,
                    confidences=kind,
                    first=first,
                    second=second,
                    trials=trials,
                    difference=mean,
                    covered=float(((low <= mean) & (mean <= high)).mean()),
                    true_covered=float(((low <= truth) & (truth <= high)).mean()),
                    excludes_zero=float(((low > 0) | (high < 0)).mean()),
                    level=level_mean,
                    level_covered=float(((level_low <= level_mean) & (level_mean <= level_high)).mean()),
                )


def tables() -> dict[str, str]:
    """The tables of the docs."""
    return {"track record": track_table(), "calibration": calibration_table(), "differences": differences_table()}


def track_table() -> str:
    """How often an interval is told, and how often it contains the truth, least over the models."""
    rows = read("intervals_track_record.csv")
    lines = [
        "| held-out images | " + " | ".join(f"{100 * c:.0f} %" for c in SURE) + " |",
        "|---" * (1 + len(SURE)) + "|",
    ]
    for n in HELD_OUT:
        cells = []
        for c in SURE:
            own = [row for row in rows if (int(row["held_out"]), float(row["confidence"])) == (n, c)]
            told = sum(int(row["told"]) for row in own) / sum(int(row["trials"]) for row in own)
            held = sum(float(row["covered"]) * int(row["told"]) for row in own if int(row["told"]))
            share = held / max(1, sum(int(row["told"]) for row in own))
            cells.append(f"{100 * told:.0f} %, {100 * share:.1f} %" if told >= 0.005 else "too few")
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def calibration_table() -> str:
    """Measured and debiased ECE and the interval, and how often it covers, for one model and least over all."""
    rows = [row for row in read("intervals_calibration.csv") if row["metric"] == "ece"]
    lines = [
        "| images | true ECE | measured | debiased | interval | it covers | least of all models | p ≤ 5 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in IMAGES:
        for error in ERRORS:
            own = [row for row in rows if (int(row["images"]), float(row["true"])) == (n, error)]
            shown = next(row for row in own if (row["confidences"], row["gap"]) == MODELS[0])
            measured, debiased, low, high = (100 * float(shown[key]) for key in ("measured", "debiased", "low", "high"))
            covered, least = 100 * float(shown["covered"]), 100 * min(float(row["covered"]) for row in own)
            lines.append(
                f"| {n:,} | {100 * error:.0f} | {measured:.1f} | {debiased:.1f} | {low:.1f} to {high:.1f} | "
                f"{covered:.1f} % | {least:.1f} % | {100 * float(shown['refused']):.1f} % |"
            )
    return "\n".join(lines)


def differences_table() -> str:
    """Differences of ECE, and how often their interval covers."""
    lines = [
        "| images | true ECE of the two | measured difference | covers its mean | the true one | excludes 0 |",
        "|---|---|---|---|---|---|",
    ]
    for row in read("intervals_differences.csv"):
        if row["confidences"] == "spread":
            shares = (f"{100 * float(row[key]):.1f} %" for key in ("covered", "true_covered", "excludes_zero"))
            first, second = (f"{100 * float(row[key]):.0f}" for key in ("first", "second"))
            change = f"{100 * float(row['difference']):+.1f}"
            lines.append(f"| {int(row['images']):,} | {first} and {second} | {change} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("track-record", "calibration", "differences", "tables"))
    parser.add_argument("--trials", type=int, default=2000)
    args = parser.parse_args()
    if args.what == "tables":
        print("\n\n".join(tables().values()))
    else:
        {"track-record": track_record, "calibration": calibration, "differences": differences}[args.what](args.trials)
