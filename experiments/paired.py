"""Methods on many datasets: paired differences, their means over seeds, and intervals over datasets.

    rows of a table ── {tuner, dataset, seed: value} of a method ── differences of two methods on the same keys
                   ── means over tuners and seeds ── one value per dataset ── interval of their mean

The interval of a mean over datasets is Student's, with datasets as the unit: what would happen on other datasets like
these. `calprompt.results.compare` has intervals over images and seeds instead, on one dataset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from calprompt.evaluation.numbers import Number
from calprompt.results.methods import Cells, methods_of

Key = tuple[str, str, int]  # tuner, dataset, seed
Values = Mapping[Key, float]
SPLITS = ("base", "novel")
ZERO = "zero-shot"
PERCENT = ("accuracy", "ece", "mean_confidence")


@dataclass(frozen=True)
class Method:
    """What is compared with something else on the same tuner, dataset and seed.

    Attributes:
        loss: Its loss, or "zero-shot".
        calibrator: Applied after it.
    """

    loss: str
    calibrator: str = "none"

    def __str__(self) -> str:
        return self.loss if self.calibrator == "none" else f"{self.loss}, {self.calibrator}"


def by_dataset(values: Values, keys: Iterable[Key]) -> list[float]:
    """Means over tuners and seeds, one per dataset in the order of their names."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for key in keys:
        grouped[key[1]].append(values[key])
    return [mean(group) for _, group in sorted(grouped.items())]


class PairedResults:
    """Results of many tuners, methods, datasets and seeds, in per cent but for NLL.

    "gap" is mean confidence minus accuracy, and "on shots" accuracy on the training images, where it was measured.

    Args:
        rows: Of a table of results: tuner, loss, model, calibrator, dataset, seed, split and metrics.
        tuners: Which of them, in the order of tables.

    Raises:
        DataError: if a method has runs of one tuner and dataset that differ in other settings than the seed.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], tuners: Sequence[str]) -> None:
        self.tuners = tuple(tuners)
        self.values: dict[tuple[Method, str, str], dict[Key, float]] = defaultdict(dict)
        chosen = [row for row in rows if row["tuner"] in self.tuners and row.get("accuracy") is not None]
        cells: Cells[tuple[Method, str, str, str]] = Cells()
        for row, settings in zip(chosen, methods_of(chosen), strict=True):
            method = Method(row["loss"] if row["model"] == "tuned" else ZERO, row["calibrator"])
            cells.add((method, row["tuner"], row["dataset"], row["split"]), row, settings)
            for metric, value in _metrics(row).items():
                self.values[method, row["split"], metric][row["tuner"], row["dataset"], int(row["seed"])] = value

    def subset(self, keys: Iterable[Key]) -> PairedResults:
        """The results of some tuners, datasets and seeds."""
        wanted, other = set(keys), PairedResults((), self.tuners)
        for name, values in self.values.items():
            other.values[name] = {key: value for key, value in values.items() if key in wanted}
        return other

    def get(self, method: Method, split: str, metric: str) -> Values:
        """Values by tuner, dataset and seed; none if the method was not run."""
        return self.values.get((method, split, metric), {})

    def shared(self, methods: Sequence[Method], tuners: Sequence[str] | None = None) -> list[Key]:
        """Tuners, datasets and seeds that all of the methods were run on."""
        keys = [set(self.get(method, SPLITS[0], "accuracy")) for method in methods]
        wanted = self.tuners if tuners is None else tuners
        return sorted(key for key in keys[0].intersection(*keys[1:]) if key[0] in wanted)

    def level(self, method: Method, split: str, metric: str, keys: Sequence[Key]) -> float:
        """The mean over datasets."""
        return mean(by_dataset(self.get(method, split, metric), keys))

    def difference(self, first: Method, second: Method, split: str, metric: str, keys: Sequence[Key]) -> Number | None:
        """The mean paired difference over datasets; None if a method does not apply there, or was not run."""
        minuend, subtrahend = self.get(first, split, metric), self.get(second, split, metric)
        if not keys or not all(key in minuend for key in keys):
            return None
        return Number.over(by_dataset({key: minuend[key] - subtrahend[key] for key in keys}, keys))

    def cases(self, methods: Sequence[Method]) -> dict[tuple[str, str, str], dict[Method, tuple[float, float]]]:
        """For every tuner, dataset and split, gap and ECE of each method: means over seeds."""
        by_case: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
        for key in self.shared(methods):
            for split in SPLITS:
                by_case[key[0], key[1], split].append(key)

        def seeds(method: Method, case: tuple[str, str, str], metric: str) -> float:
            return mean(self.get(method, case[2], metric)[key] for key in by_case[case])

        return {
            case: {method: (seeds(method, case, "gap"), seeds(method, case, "ece")) for method in methods}
            for case in by_case
        }


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    values = {name: 100 * float(row[name]) for name in PERCENT}
    values |= {"nll": float(row["nll"]), "gap": values["mean_confidence"] - values["accuracy"]}
    if row.get("accuracy_on_shots") is not None:
        values["on shots"] = 100 * float(row["accuracy_on_shots"])
    return values
