"""Results of a page: what every run, model, calibrator and split reached, from stored logits where they are here.

run folder ── logits ── calibrator ── Predictions ── metrics, intervals          numbers are computed here
row of a table ─────────────────────────────────────────────────────┘            numbers are those of the table
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from calprompt.evaluation.bootstrap import measured_numbers
from calprompt.evaluation.models import StoredRun
from calprompt.evaluation.settings import NONE
from calprompt.metrics import Predictions, metrics
from calprompt.metrics.binomial import share_interval
from calprompt.progress import Progress, silent
from calprompt.report.page.document import ReportSettings, RunIdentity
from calprompt.report.table import PERCENT, Column, Number, metric_column
from calprompt.results.methods import Cells, Method, ordered
from calprompt.results.sources import ReportSource

METRICS = ("accuracy", "ece", "ace", "weighted_mce", "nll", "confidence_gap")
DEBIASED = "ece_debiased"
ABOUT_DEBIASED = "ECE that very many images would show: on few, chance makes it larger, percent"
ON_PHONES = ("accuracy", "ece")  # that a phone has room for
NO_NUMBER = Number(None)
MAX_RESAMPLED = 240  # rows whose images are resampled for intervals; more would take minutes


@dataclass(frozen=True, eq=False, slots=True)
class Result:
    """One run, model, calibrator and split."""

    row: Mapping[str, Any]  # of the table of results
    method: Method  # what it is of
    # places of its runs in `Report.runs`; several, if they have the same untuned model and images
    runs: tuple[int, ...]
    numbers: Mapping[str, Number]  # by metric
    sample: Predictions | None = None  # what was predicted; None if the logits are not here
    repeat: int = 0  # counts further measurements of one untuned model that gave other numbers, such as on a GPU

    @property
    def dataset(self) -> str:
        return str(self.row.get("dataset"))

    @property
    def split(self) -> str:
        return str(self.row.get("split"))

    @property
    def seed(self) -> int | None:
        """Of the run; the untuned model has none, and calibrated it has that of its validation images."""
        if self.method.is_zero_shot and self.method.calibrator == NONE:
            return self.repeat or None
        return self.row.get("seed")


@dataclass
class Measurements:
    """Everything that tables of a page are made of."""

    runs: list[RunIdentity]  # identities of all runs
    resamples: int  # how often images are drawn for intervals; 0 if there are too many results for that
    # those that tables show: the usual ones, and others that ask for it and that some row has
    metrics: tuple[str, ...] = METRICS
    results: list[Result] = field(default_factory=list)  # in the order of the table of results
    stored: dict[int, StoredRun] = field(default_factory=dict)  # runs whose logits are here, by their place in `runs`
    known: dict[bytes, dict[str, Number]] = field(default_factory=dict)  # by the checksum of predictions

    @property
    def methods(self) -> list[Method]:
        """The untuned model, then by tuner the plain one and the others, in the order in which they come."""
        return ordered(result.method for result in self.results)

    @property
    def datasets(self) -> list[str]:
        return list(dict.fromkeys(result.dataset for result in self.results))

    @cached_property
    def by_place(self) -> dict[tuple[str | None, Method | None], list[Result]]:
        """All results, which are complete by now: by dataset, by method, and by both."""
        found: dict[tuple[str | None, Method | None], list[Result]] = {}
        for result in self.results:
            for key in ((result.dataset, None), (None, result.method), (result.dataset, result.method)):
                found.setdefault(key, []).append(result)
        return found

    def where(
        self, *, dataset: str | None = None, method: Method | None = None, split: str | None = None
    ) -> list[Result]:
        """Results of a dataset, a method and a split, as far as they are given."""
        results = self.by_place.get((dataset, method), []) if dataset or method else self.results
        return [result for result in results if split is None or result.split == split]


def metric_columns(names: Sequence[str] = METRICS) -> tuple[Column, ...]:
    """The columns of metrics; that of the debiased ECE is the last."""
    labels = {"weighted_mce": "MCE"}
    columns = [metric_column(name, minor=name not in ON_PHONES, label=labels.get(name)) for name in names]
    return (*columns, Column(DEBIASED, "ECE, debiased", PERCENT, ABOUT_DEBIASED, minor=True))


def measure(
    source: ReportSource, runs: Sequence[RunIdentity], settings: ReportSettings, progress: Progress = silent
) -> Measurements:
    """Measure all results of a source."""
    rows = source.measured.sorted().rows
    known = {(run.name, run.fingerprint): place for place, run in enumerate(runs)}
    others = [name for name in metrics.shown("report") if name not in METRICS]
    names = (*METRICS, *(name for name in others if any(row.get(name) is not None for row in rows)))
    found = Measurements(list(runs), settings.bootstrap if len(rows) <= MAX_RESAMPLED else 0, names)
    alike: dict[tuple[Any, ...], int] = {}
    repeats: Counter[tuple[Any, ...]] = Counter()
    cells: Cells[tuple[Any, ...]] = Cells()
    for number, row in enumerate(rows):
        progress("measuring", number, len(rows), str(row.get("run") or ""))
        method = source.method(row)
        where = (method, row.get("dataset"), row.get("split"))
        cells.add(where, row, method)
        place = known[str(row.get("run")), str(row.get("fingerprint"))]
        sample, numbers = None, _table_numbers(row, names)
        run = source.run_of.get(str(row.get("run")))
        if run is not None and numbers["accuracy"].value is not None:
            stored = found.stored.setdefault(place, source.stored(run))
            full = stored.sample(str(row["model"]), str(row["split"]), method.calibrator)
            numbers = _measured(full, str(row["split"]), settings, found)
            sample = full
            if not found.resamples:  # the largest probability alone is all that tables need
                sample = Predictions(full.confidence[:, None], full.labels, full.predicted, full.log_likelihood)
        key = (*where, tuple(numbers.values()) if method.is_zero_shot else row.get("seed"))
        if key in alike:  # the same model on the same images, in another run; or a run that was repeated
            first = found.results[alike[key]]
            found.results[alike[key]] = replace(first, runs=(*first.runs, place))
        else:
            alike[key] = len(found.results)
            found.results.append(Result(row, method, (place,), numbers, sample, repeats[where]))
            repeats[where] += 1
    progress("measuring", len(rows), len(rows), "")
    return found


def _table_numbers(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Number]:
    """Numbers of a row of a table; the accuracy has an interval, because the number of images is known."""
    numbers = dict.fromkeys((*names, DEBIASED), NO_NUMBER)
    for name in names:
        if row.get(name) is not None or row.get("reason"):
            numbers[name] = Number(row.get(name), note=row.get("reason"))
    gap = row.get("confidence_gap")
    if gap is None and row.get("mean_confidence") is not None and row.get("accuracy") is not None:
        numbers["confidence_gap"] = Number(row["mean_confidence"] - row["accuracy"])
    accuracy, images = row.get("accuracy"), row.get("images")
    if accuracy is not None and images:
        numbers["accuracy"] = Number(accuracy, *share_interval(round(accuracy * images), images))
    return numbers


def _measured(sample: Predictions, split: str, settings: ReportSettings, found: Measurements) -> dict[str, Number]:
    """Metrics with intervals; those of equal predictions, such as zero-shot's in every run, are computed once."""
    arrays = (sample.probs, sample.labels, sample.log_likelihood)
    key = hashlib.sha256(split.encode() + b"".join(array.tobytes() for array in arrays)).digest()
    if key in found.known:
        return found.known[key]
    numbers = measured_numbers(
        sample,
        names=found.metrics,
        n_bins=settings.bins,
        resamples=found.resamples,
        seed=(settings.seed, *split.encode()),  # the images that `calprompt evaluate` draws
    )
    if not found.resamples:
        accuracy = share_interval(int(sample.correct.sum()), len(sample.labels))
        numbers["accuracy"] = Number(numbers["accuracy"].value, *accuracy)
    found.known[key] = {name: numbers.get(name, NO_NUMBER) for name in (*found.metrics, DEBIASED)}
    return found.known[key]
