"""The numbers of experiments/pocket.csv: what was run, and differences between runs that belong together.

A difference is that of two runs of a tuner, a dataset and a seed, then averaged over seeds (and tuners, if several).
The interval of the mean over datasets is Student's, with datasets as the unit: what would happen on other datasets
like these.

Requires SciPy: pip install scipy.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev

TABLE = Path(__file__).with_name("pocket.csv")
NEAR = ("photos", "clothes", "food", "animals", "faces", "sketch_nature", "flags", "sketch_things", "objects")
FAR = ("digits", "signs", "icons")  # of kinds that the model has hardly seen
FIVE = ("photos", "clothes", "digits")  # of five classes a half
ONLY_FIVE = {("published", "proda")}  # settings and tuner that would take days on the others
SHIFTED, SHIFTS = "animals", ("animals_posed", "animals_line", "animals_corrupted", "animals_sketch")
TUNERS = ("coop", "cocoop", "maple", "kgcoop", "proda", "prograd", "promptsrc")
LOSSES = ("ce", "tcpt", "margin_only", "moments_only", "mbls", "zs_norm", "penalty")
PARTS = (  # what the paper takes TCPT apart into, and what could stand in its place
    "margin_mean_only",
    "margin_variance_only",
    "mean_moment_only",
    "covariance_only",
    "margin_l1",
    "margin_l2",
    "margin_orthogonality",
    "label_smoothing",
    "focal",
)
SPLITS = ("base", "novel")
ZERO = "zero-shot"


@dataclass(frozen=True)
class Method:
    """What is compared with something else on the same tuner, dataset and seed."""

    loss: str
    calibrator: str = "none"

    def __str__(self) -> str:
        return self.loss if self.calibrator == "none" else f"{self.loss}, {self.calibrator}"


@cache
def student_quantile(degrees: int) -> float:
    """Half of a 95 % interval in standard errors, to the four decimals that the tables in docs/ were made with."""
    try:
        from scipy.stats import t
    except ImportError as error:
        raise SystemExit("intervals over datasets need SciPy: pip install scipy") from error
    return round(float(t.ppf(0.975, degrees)), 4)


Key = tuple[str, str, int]  # tuner, dataset, seed
Cases = dict[tuple[str, str, str], dict[str, tuple[float, float]]]  # tuner, dataset, split; method; gap and ECE
Results = dict[tuple[Method, str, str], dict[Key, float]]  # method, split, metric; in per cent but for nll


@dataclass(frozen=True)
class Interval:
    """A mean over datasets and half the width of its interval, which a single dataset does not have."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The 95 % interval of one value per dataset."""
        n = len(values)
        return cls(mean(values), student_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None)

    @property
    def clear(self) -> bool:
        """Whether it excludes 0."""
        return self.half is not None and abs(self.mean) > self.half

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:+.2f}"
        star = "*" if self.clear else ""
        return f"{self.mean:+.2f}{star} [{self.mean - self.half:+.2f}, {self.mean + self.half:+.2f}]"


def read(group: str, table: Path = TABLE) -> Results:
    """All results of some settings: "tuned" on the near datasets, "tuned_far" on the far ones, "tuned_all" on both.

    "tuned_five" are those of the datasets of five classes, where alone one can see what was run on no others.
    Those of "shifted" are of runs on animals, tested on its shifts instead.
    "gap" is mean confidence minus accuracy, "on shots" accuracy on those.
    """
    settings, _, which = group.partition("_")
    near = SHIFTS if settings == "shifted" else NEAR
    datasets = {"": near, "far": FAR, "all": (*near, *FAR), "five": FIVE}[which]
    results: Results = defaultdict(dict)
    for row in rows(table):
        if row["settings"] != settings or row["dataset"] not in datasets:
            continue
        if which != "five" and (settings, row["tuner"]) in ONLY_FIVE:
            continue
        method = Method(row["loss"] if row["model"] == "tuned" else ZERO, row["calibrator"])
        values = {name: 100 * float(row[name]) for name in ("accuracy", "ece", "mean_confidence")}
        values |= {"nll": float(row["nll"]), "gap": values["mean_confidence"] - values["accuracy"]}
        values["on shots"] = 100 * float(row["accuracy_on_shots"])
        key = row["tuner"], row["dataset"], int(row["seed"])
        if method.loss != ZERO and key in results[method, row["split"], "accuracy"]:
            raise ValueError(
                f"{table}: {settings}, {', '.join(map(str, key))}, {method} is in the table twice; keep one rate"
            )
        for metric, value in values.items():
            results[method, row["split"], metric][key] = value
    return results


@cache
def rows(table: Path = TABLE) -> list[dict[str, str]]:
    """One row per run, calibrator and split."""
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def by_dataset(values: dict[Key, float], keys: Iterable[Key]) -> list[float]:
    """Means over tuners and seeds."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for key in keys:
        grouped[key[1]].append(values[key])
    return [mean(group) for _, group in sorted(grouped.items())]


def shared(results: Results, methods: Sequence[Method], tuners: Sequence[str]) -> list[Key]:
    """Tuners, datasets and seeds that all of the methods were run on."""
    keys = [results[method, "base", "accuracy"].keys() for method in methods]
    return sorted(key for key in set(keys[0]).intersection(*keys[1:]) if key[0] in tuners)


def level(results: Results, method: Method, split: str, metric: str, keys: list[Key]) -> float:
    """The mean over datasets."""
    return mean(by_dataset(results[method, split, metric], keys))


def difference(
    results: Results, first: Method, second: Method, split: str, metric: str, keys: list[Key]
) -> Interval | None:
    """The mean paired difference over datasets; None if a method does not apply there, or was not run."""
    minuend, subtrahend = results[first, split, metric], results[second, split, metric]
    if not keys or not all(key in minuend for key in keys):
        return None
    return Interval.of(by_dataset({key: minuend[key] - subtrahend[key] for key in keys}, keys))


def cases(results: Results) -> Cases:
    """For every tuner, dataset and half, gap and ECE of zero-shot, cross-entropy and TCPT: means over seeds."""
    methods = [Method(ZERO), Method("ce"), Method("tcpt")]
    by_case: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
    for key in shared(results, methods, TUNERS):
        for split in SPLITS:
            by_case[key[0], key[1], split].append(key)
    return {
        case: {
            str(method): (
                mean(results[method, case[2], "gap"][key] for key in keys),
                mean(results[method, case[2], "ece"][key] for key in keys),
            )
            for method in methods
        }
        for case, keys in by_case.items()
    }
