"""Methods side by side on the same images and seeds: means over seeds, paired differences, and intervals of both.

A resample draws the test images again, the same for all methods and seeds, and the seeds, the same for all methods and
for base and novel. So a difference between methods is that on the same images after the same training images, and
what methods share cancels:

    counts of images  [resamples, N]  ──▶  metric of each run  [seeds, resamples]  ──▶  mean over the seeds drawn

Of S seeds, S − 1 are drawn with replacement: the mean of that many varies as much as the mean of S new seeds would.
Intervals are percentile ones; those of ECE, ACE and weighted MCE, and of their differences, are of what other samples
of as many images show on average (`expected_interval`): few images make a calibration error larger, most of all a small
one, so that a true difference is rather larger than the measured one. The textbook's MCE has no interval, because none
covers. With few seeds intervals are still somewhat narrow: three cannot show how different a fourth may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.errors import CalpromptError, DamagedFileError, DataError, SettingError
from calprompt.evaluation.bootstrap import ResampledMetrics, expected_interval, percentile_interval, resample_counts
from calprompt.evaluation.numbers import Number
from calprompt.files import csv_bytes, read_json, write_bytes, write_json
from calprompt.metrics import Predictions
from calprompt.metrics.inputs import Floats
from calprompt.text import bullets

METRICS = ("accuracy", "ece", "ace", "mce", "weighted_mce")
NO_INTERVAL = "mce"
HARMONIC = "harmonic mean"  # of the accuracies on base and on novel classes, in the place of a split
MINUS = " minus "

Methods = Mapping[str, Mapping[str, Sequence[Predictions]]]  # method -> split -> one entry per run
COLUMNS = ("dataset", "split", "method", "metric", "value", "low", "high")
TOLERANCE = 0.05  # percentage points


@dataclass(frozen=True)
class Row:
    """One number and its 95 % interval, as fractions."""

    dataset: str  # on which it was measured
    split: str  # base, novel or all, or "harmonic mean"
    method: str  # of which; a difference is called "A minus B"
    metric: str  # its name
    value: float  # the number
    low: float | None = None  # lower end of the interval; None if there is none
    high: float | None = None  # upper end of the interval; None if there is none

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.dataset, self.split, self.method, self.metric)

    @property
    def is_difference(self) -> bool:
        return MINUS in self.method

    @property
    def number(self) -> Number:
        return Number(self.value, self.low, self.high)


def compare(
    dataset: str,
    methods: Methods,
    *,
    differences: Sequence[tuple[str, str]] = (),
    n_bins: int = 10,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Row]:
    """Compare methods on one dataset."""
    if resamples < 1:
        raise SettingError(f"must be at least 1, got {resamples}", parameter="resamples")
    runs = _check(methods)
    weights = seed_weights(runs, resamples, np.random.default_rng((seed, *b"seeds")))
    splits = list(next(iter(methods.values())))
    drawn: dict[tuple[str, str, str], Floats] = {}  # the sample itself, then the resamples: [1 + resamples]
    for split in splits:
        rng = np.random.default_rng((seed, *split.encode()))
        of_split = {method: splits[split] for method, splits in methods.items()}
        for (method, metric), values in _resampled(of_split, n_bins, resamples, rng).items():
            drawn[split, method, metric] = values[0] if len(values) == 1 else (weights * values).sum(axis=0)
    if len(splits) == 2:
        for method in methods:
            drawn[HARMONIC, method, "accuracy"] = _harmonic(*(drawn[split, method, "accuracy"] for split in splits))
    for split, method, metric in list(drawn):
        for first, second in differences:
            if method == second:
                drawn[split, f"{first}{MINUS}{second}", metric] = (
                    drawn[split, first, metric] - drawn[split, second, metric]
                )
    rows = [
        Row(dataset, split, method, metric, float(values[0]), *_interval(method, metric, values))
        for (split, method, metric), values in drawn.items()
    ]
    places = {split: place for place, split in enumerate([*splits, HARMONIC])}
    return sorted(rows, key=lambda row: (places[row.split], row.is_difference))


def _interval(method: str, metric: str, values: Floats) -> tuple[float, float] | tuple[()]:
    """The interval of the first value, from its resamples."""
    if metric == NO_INTERVAL:
        return ()
    if metric == "accuracy":
        low, high = percentile_interval(values[1:])
        return () if low == high and MINUS not in method else (low, high)  # all right, or all wrong, in every resample
    low, high = expected_interval(float(values[0]), values[1:])
    return low if MINUS in method else max(0.0, low), high


def _check(methods: Methods) -> int:
    """The number of seeds; raises if methods are not of the same images and seeds."""
    seeds = 1
    first = next(iter(methods.values()))
    for method, splits in methods.items():
        for split, runs in splits.items():
            if any(not np.array_equal(run.labels, first[split][0].labels) for run in runs):
                raise DataError(f"{method} was not evaluated on the same {split} images as the other methods")
            if len(runs) not in (1, seeds) and seeds != 1:
                raise DataError(f"{method} has {len(runs)} runs, and other methods have {seeds}")
            seeds = max(seeds, len(runs))
    return seeds


def _resampled(
    methods: Mapping[str, Sequence[Predictions]], n_bins: int, resamples: int, rng: np.random.Generator
) -> dict[tuple[str, str], Floats]:
    """The values [runs, 1 + resamples] of every method and metric, that of the sample itself first."""
    n = len(next(iter(methods.values()))[0].labels)
    parts: dict[tuple[str, str], list[Floats]] = {}
    metrics = {
        method: [ResampledMetrics(run, names=METRICS, n_bins=n_bins) for run in runs]
        for method, runs in methods.items()
    }
    for counts in chain([np.ones((1, n), dtype=np.int64)], resample_counts(rng, n, resamples)):
        for method, of_runs in metrics.items():
            per_run = [of_run(counts) for of_run in of_runs]
            for metric in METRICS:
                parts.setdefault((method, metric), []).append(np.stack([values[metric] for values in per_run]))
    return {key: np.concatenate(values, axis=1) for key, values in parts.items()}


def seed_weights(seeds: int, resamples: int, rng: np.random.Generator) -> Floats:
    """The weight of every seed in the mean, [seeds, 1 + resamples]: equal ones, then those of the draws."""
    equal = np.full((seeds, 1), 1 / seeds)
    if seeds == 1:
        return np.ones((1, 1 + resamples))
    drawn = rng.multinomial(seeds - 1, equal[:, 0], size=resamples).T / (seeds - 1)
    return np.concatenate([equal, drawn], axis=1)


def _harmonic(base: Floats, novel: Floats) -> Floats:
    total = base + novel
    return np.divide(2 * base * novel, total, out=np.zeros_like(total), where=total > 0)


@dataclass(frozen=True)
class Results:
    """A comparison on several datasets."""

    settings: dict[str, Any]  # everything that the numbers depend on, except weights and images
    sizes: dict[str, dict[str, dict[str, int]]]  # dataset -> split -> number of images and classes
    rows: tuple[Row, ...]  # the numbers, as fractions
    about: dict[str, Any]  # versions and the backbone's fingerprint

    def write_json(self, path: Path) -> None:
        """Write everything, for `read`; without times and paths, so that equal results are equal files."""
        write_json(path, {**asdict(self), "rows": [asdict(row) for row in self.rows]})

    def write_csv(self, path: Path) -> None:
        """Write one row per number, as fractions."""
        write_bytes(path, csv_bytes(COLUMNS, (asdict(row) for row in self.rows)))

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """Read what `write_json` wrote."""
        path = Path(path).expanduser()
        payload = read_json(path)
        try:
            rows = tuple(Row(**row) for row in payload["rows"])
            return cls(payload["settings"], payload["sizes"], rows, payload["about"])
        except (KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} is not a table of results, such as demo/table.json: {error}") from error


def check_settings(settings: Mapping[str, Any], expected: Results, name: str) -> None:
    """Raise `SettingError` if numbers of these settings cannot equal the expected ones, those of the file `name`."""
    differences = [
        f"{key} {value}, not {settings.get(key)}"
        for key, value in expected.settings.items()
        if settings.get(key) != value
    ]
    if differences:
        raise SettingError(f"{name} has other settings: {'; '.join(differences)}")


def check_results(results: Results, expected: Results, name: str, tolerance: float = TOLERANCE) -> int:
    """Compare results with expected ones."""
    check_settings(results.settings, expected, name)
    rows, expected_rows = ({row.key: row for row in table.rows} for table in (results, expected))
    lines, compared = list[str](), 0
    for key, expected_row in expected_rows.items():
        where = ", ".join(key)
        if key not in rows:
            lines.append(f"{where}: missing, expected {100 * expected_row.value:.2f}")
            continue
        for end in ("value", "low", "high"):
            value, expected_value = getattr(rows[key], end), getattr(expected_row, end)
            compared += value is not None
            if value is None or expected_value is None:
                equal = value is expected_value
            else:
                equal = abs(100 * value - 100 * expected_value) <= tolerance
            if not equal:
                what = "" if end == "value" else f" ({end} end of the interval)"
                lines.append(f"{where}{what}: {_percent(value)}, expected {_percent(expected_value)}")
    lines += [f"{', '.join(key)}: not expected" for key in rows if key not in expected_rows]
    if lines:
        raise CalpromptError(
            f"{len(lines)} of {compared} numbers differ from {name} by more than {tolerance:g} percentage "
            f"points{_reason(results, expected)}:{bullets(lines)}"
        )
    return compared


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f}"


def _reason(results: Results, expected: Results) -> str:
    """What may explain differences: other weights, other versions."""
    differences = [
        f"{key} {results.about.get(key)} instead of {value}"
        for key, value in expected.about.items()
        if results.about.get(key) != value
    ]
    return f" ({'; '.join(differences)})" if differences else ""
