"""What figures and comparisons read of a source: predictions of runs from their stored logits, or rows, by method.

A method is called by its loss or calibrator; if there is more than one tuner, its tuner belongs to the name, and so do
settings in which methods of one name differ. What differs in settings is never mixed.

A series has means over datasets and seeds for groups of runs, on the datasets and seeds that all groups have, so that a
run that is missing does not look like an effect. The spread is the standard deviation over seeds of these means.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from calprompt.errors import NotFoundError
from calprompt.evaluation.models import StoredRun
from calprompt.evaluation.numbers import Number
from calprompt.evaluation.settings import KINDS, NONE, PARTS, TUNED, ZERO_SHOT
from calprompt.metrics import Predictions, metric_info
from calprompt.metrics.inputs import Floats
from calprompt.registry import unknown
from calprompt.results.methods import CALIBRATORS, Cells, method_order
from calprompt.runs.folder import Run
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.results.sources import ReportSource

Rows = Sequence[Mapping[str, Any]]
Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True, eq=False)
class RunSample:
    """A run's model on one test split, from its stored logits."""

    method: str  # what it is called
    dataset: str  # on which
    seed: int  # of its training images
    logits: Floats  # [N, C]
    sample: Predictions  # probabilities and labels
    text: Floats | None = None  # tuned text features of the classes, [C, D]
    frozen_text: Floats | None = None  # those of the untuned model


def tuned_runs(source: ReportSource) -> tuple[Run, ...]:
    """The runs of a source that have stored logits."""
    if not source.runs:
        raise NotFoundError(
            f"{source.title} has no run folders, and this figure is made from stored logits; give the folder of the "
            "runs, such as what 'calprompt sweep --out' was given"
        )
    return source.runs


def stored_runs(
    source: ReportSource, split: str, *, methods: Sequence[str] | None = None, zero_shot: bool = False
) -> dict[str, list[RunSample]]:
    """The runs of every method on one test split, on the datasets and seeds that all of these methods have."""
    runs = tuned_runs(source)
    rows = {
        (row.get("run"), row["model"]): row
        for row in source.measured.rows
        if row["split"] == split and (row["calibrator"] or NONE) == NONE
    }
    kept_rows = [row for run in runs for kind in (TUNED, ZERO_SHOT) if (row := rows.get((run.folder.name, kind)))]
    names = method_names(source, kept_rows)
    found: dict[str, list[RunSample]] = {}
    untuned: dict[tuple[str, str], RunSample] = {}
    cells: Cells[tuple[str, str]] = Cells()
    for run in runs:
        logits = source.stored(run)
        row = rows.get((run.folder.name, TUNED))
        if row is None or split not in logits.splits(TUNED):
            continue
        name = names[id(row)]
        cells.add((name, str(row["dataset"])), row, source.method(row))
        if cells.rows[name, str(row["dataset"])][int(row["seed"])] is not row:  # a run that was repeated
            continue
        found.setdefault(name, []).append(_stored(name, row, logits, TUNED, split))
        other = rows.get((run.folder.name, ZERO_SHOT))
        if zero_shot and other is not None:
            name = names[id(other)]
            untuned.setdefault((name, row["dataset"]), _stored(name, row, logits, ZERO_SHOT, split))
    if not found:
        raise NotFoundError(f"no run of {source.title} was evaluated on {split} classes")
    kept = {name: found[name] for name in chosen(methods, list(found))}
    places = set.intersection(*({(run.dataset, run.seed) for run in runs} for runs in kept.values()))
    if not places:
        raise NotFoundError(f"no dataset and seed of {source.title} has runs of all of {', '.join(kept)}")
    shared = {name: [run for run in runs if (run.dataset, run.seed) in places] for name, runs in kept.items()}
    datasets = {dataset for dataset, _ in places}
    beside: dict[str, list[RunSample]] = {}
    for (name, dataset), stored in untuned.items():
        if dataset in datasets:
            beside.setdefault(name, []).append(stored)
    return {**beside, **shared}


def stored_panels(
    source: ReportSource, splits: Sequence[str], methods: Sequence[str] | None = None, *, zero_shot: bool = False
) -> tuple[dict[str, dict[str, list[RunSample]]], str]:
    """The runs of every split and method, and of how many datasets and seeds they are, in words."""
    panels = {part: stored_runs(source, part, methods=methods, zero_shot=zero_shot) for part in splits}
    runs = [run for stored in panels.values() for group in stored.values() for run in group]
    return panels, sample_text(datasets=len({run.dataset for run in runs}), seeds=len({run.seed for run in runs}))


def splits_of(source: ReportSource) -> list[str]:
    """Which of base, novel and all the rows of a source have."""
    there = {row.get("split") for row in source.measured.rows}
    return [split for split in PARTS if split in there]


def check_split(source: ReportSource, split: str | None) -> list[str]:
    """The splits to draw: the one asked for, or base and novel (or all) as far as they are there."""
    there = splits_of(source)
    if split is not None:
        if split not in there:
            raise unknown("split", split, there)
        return [split]
    return there


def method_names(source: ReportSource, rows: Rows) -> dict[int, str]:
    """The name of each row's method, by the identity of the row; with its tuner if there are several."""
    several = len({row["tuner"] for row in rows if row.get("model") != ZERO_SHOT}) > 1
    found = {}
    for row in rows:
        method = source.method(row)
        found[id(row)] = f"{method.tuner_name}, {method.label}" if several and not method.is_zero_shot else method.label
    return found


def chosen(methods: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Methods in the order asked for, or in that of all figures."""
    if methods is None:
        return method_order(there)
    for name in methods:
        if name not in there:
            raise unknown("method", name, there)
    return list(methods)


def grouped(
    source: ReportSource, rows: Rows, metric: str, by: Callable[[Mapping[str, Any]], Group]
) -> dict[Group, dict[tuple[str, int], float]]:
    """A metric of rows, in percent if it is a fraction, by group, and in it by dataset and seed."""
    scale = 100.0 if metric_info(metric).unit == "%" else 1.0
    found: dict[Group, dict[tuple[str, int], float]] = {}
    cells: Cells[Any] = Cells()
    for row in rows:
        if row.get(metric) is None:
            continue
        group, dataset = by(row), str(row["dataset"])
        cells.add((group, dataset), row, source.method(row), group=(group,))
        found.setdefault(group, {}).setdefault((dataset, int(row["seed"])), scale * float(row[metric]))
    return found


def by_method(
    source: ReportSource, rows: Rows, metric: str, methods: Sequence[str] | None = None
) -> dict[str, dict[tuple[str, int], float]]:
    """A metric of rows of one split, by method, dataset and seed."""

    def is_usual(row: Mapping[str, Any]) -> bool:
        calibrator = row.get("calibrator") or NONE
        return row["model"] == TUNED and (calibrator == NONE or (row["loss"] == "ce" and calibrator in CALIBRATORS))

    rows = [row for row in rows if methods is not None or is_usual(row)]
    names = method_names(source, rows)
    return grouped(source, rows, metric, lambda row: names[id(row)])


def metric_label(metric: str) -> str:
    """A metric with its unit, as axes have it.

    >>> metric_label("ece"), metric_label("nll")
    ('ECE, %', 'NLL, nats')
    """
    info = metric_info(metric)
    return f"{info.label}, {info.unit}" if info.unit else info.label


def _stored(method: str, row: Mapping[str, Any], stored: StoredRun, model: str, split: str) -> RunSample:
    kinds = (f"{split}/{KINDS[model][0]}", f"{split}/{KINDS[model][1]}", f"{split}/frozen_text")
    logits, text, frozen = (None if (a := stored.array(name)) is None else a.astype(np.float64) for name in kinds)
    assert logits is not None
    return RunSample(method, str(row["dataset"]), int(row["seed"]), logits, stored.sample(model, split), text, frozen)


@dataclass(frozen=True)
class Series:
    """Points of all splits, metrics and groups, and of how much they are made."""

    points: Mapping[tuple[str, str], Mapping[Any, Number]]  # split, metric -> group -> point
    datasets: int  # how many
    seeds: int  # how many
    left_out: int = 0  # datasets and seeds that some groups have and others lack

    @property
    def note(self) -> str:
        """What the points are made of, in words."""
        spread = "; bars: s.d. over seeds" if self.seeds > 1 else "; one seed: no spread known"
        lacking = f"; {self.left_out} datasets and seeds left out, which some lack" if self.left_out else ""
        return f"means over {sample_text(datasets=self.datasets, seeds=self.seeds)}{spread}{lacking}"


def read_series(
    source: ReportSource, by: Callable[[Mapping[str, Any]], Group | None], metrics: tuple[str, ...], what: str
) -> Series:
    """The series of a source's tuned models as they are."""
    values: dict[tuple[str, str], dict[Group | None, dict[tuple[str, int], float]]] = {}
    tuned = [row for row in source.measured.rows if row["model"] == TUNED and row["calibrator"] in (NONE, None)]
    for split in splits_of(source):
        rows = [row for row in tuned if row["split"] == split and by(row) is not None]
        for metric in metrics:
            values[split, metric] = grouped(source, rows, metric, by)
    groups = {group for each in values.values() for group in each}
    if len(groups) < 2:
        raise NotFoundError(f"{source.title} has results of {len(groups)} {what}, and the figure compares several")
    every = [set(places) for each in values.values() for places in each.values()]
    shared, whole = set.intersection(*every), set.union(*every)
    if not shared:
        raise NotFoundError(f"no dataset and seed of {source.title} has results of all {len(groups)} {what}")
    datasets, seeds = ({place[which] for place in shared} for which in (0, 1))

    def point(places: Mapping[tuple[str, int], float]) -> Number:
        means = [mean(places[place] for place in shared if place[1] == seed) for seed in seeds]
        total = mean(places[place] for place in shared)
        return Number(total, spread=stdev(means) if len(means) > 1 else None)

    points = {key: {group: point(places) for group, places in each.items()} for key, each in values.items()}
    return Series(points, len(datasets), len(seeds), len(whole - shared))


def sample_text(runs: int = 0, datasets: int = 0, seeds: int = 0) -> str:
    """What a figure was made from, in words.

    >>> sample_text(runs=9, datasets=3, seeds=3)
    '3 datasets, 3 seeds, 9 runs'
    """
    counts = {"dataset": datasets, "seed": seeds, "run": runs}
    return ", ".join(f"{n:,}{plural(n, what).removeprefix(str(n))}" for what, n in counts.items() if n)
