"""Runs or models side by side on the images that all of them answered: values, paired differences, who is right where.

    answers of A ─┐
    answers of B ─┼─ images that all have, in one order ── comparison.compare ── values and differences with intervals
    answers of C ─┘                                     └─ agreement: both right, only one, neither

Runs that differ in nothing but seed and data are one method; its seeds are paired with those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from calprompt.errors import DataError, SettingError
from calprompt.evaluation.models import StoredRun
from calprompt.evaluation.numbers import Number
from calprompt.metrics import Predictions, predictions
from calprompt.metrics.inputs import Floats, Ints
from calprompt.results.collecting import setting_columns
from calprompt.results.comparison import MINUS, Results, Row, compare
from calprompt.results.methods import methods_of
from calprompt.results.table import TUNED, ZERO_SHOT
from calprompt.runs.folder import Run
from calprompt.text import shorten


@dataclass(frozen=True, eq=False)
class Answers:
    """What a run or model says of labelled images."""

    probabilities: Floats  # [N, C]
    labels: Ints  # [N], numbers of `classes`
    images: Sequence[str]  # A name or checksum of each, by which those of others are found
    classes: Sequence[str]  # names of the C classes


@dataclass(frozen=True)
class Contender:
    """One run, or one model, that takes part in a comparison."""

    method: str  # what it is called; runs of several seeds have the same name
    dataset: str  # that it was tested on
    seed: int  # of a run
    answers: Mapping[str, Answers]  # by split


@dataclass(frozen=True)
class Agreement:
    """How often two methods are right on the same images, all seeds together."""

    dataset: str  # on which
    split: str  # of which
    first: str  # a method
    second: str  # the other
    both: int  # images that both have right
    only_first: int  # images that only the first has right
    only_second: int  # images that only the second has right
    neither: int  # images that neither has right


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    results: Results  # numbers by dataset, with intervals over images and seeds
    agreements: tuple[Agreement, ...]  # who is right where
    # means over datasets with intervals over datasets, if there are several; splits, methods and metrics
    summary: Mapping[tuple[str, str, str], Number] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what else has to be known

    @property
    def methods(self) -> list[str]:
        """All of them, the one that others are compared with first."""
        return list(dict.fromkeys(row.method for row in self.results.rows if not row.is_difference))


def compare_contenders(
    contenders: Iterable[Contender], *, baseline: str | None = None, n_bins: int = 10, resamples: int = 1000
) -> Comparison:
    """Compare runs or models.

    Args:
        contenders: Two methods or more, each with one run or more per dataset.
        baseline: The method that others are compared with; the first, unless given.
        n_bins: Bins of the calibration errors.
        resamples: Number of resamples of images and seeds for intervals.

    Raises:
        DataError: if there is nothing that two methods were both tested on.
        SettingError: if there is only one method, or no baseline of that name.
    """
    by_dataset: dict[str, dict[str, list[Contender]]] = {}
    for each in contenders:
        by_dataset.setdefault(each.dataset, {}).setdefault(each.method, []).append(each)
    methods = list(dict.fromkeys(name for group in by_dataset.values() for name in group))
    if len(methods) < 2:
        raise SettingError(f"a comparison needs two runs or models that differ, got {', '.join(methods) or 'none'}")
    if baseline is not None and baseline not in methods:
        raise SettingError(f"must be one of {', '.join(methods)}; got {baseline!r}", parameter="baseline")
    first = baseline or methods[0]
    order = [first, *(name for name in methods if name != first)]
    rows: list[Row] = []
    agreements: list[Agreement] = []
    sizes: dict[str, dict[str, dict[str, int]]] = {}
    notes: list[str] = []
    seeds = 1
    for dataset, group in by_dataset.items():
        there = [name for name in order if name in group]
        if first not in there or len(there) < 2:
            notes.append(f"{dataset} is left out: only {', '.join(there)} was tested on it")
            continue
        paired, said = _paired({name: group[name] for name in there}, dataset)
        notes += said
        aligned, sizes[dataset] = _aligned(paired, dataset)
        seeds = max(seeds, *(len(runs) for parts in aligned.values() for runs in parts.values()))
        differences = [(name, first) for name in there[1:]]
        rows += compare(dataset, aligned, differences=differences, n_bins=n_bins, resamples=resamples)
        agreements += _agreements(dataset, aligned)
    if not rows:
        raise DataError(f"there is no dataset that {first} and another were both tested on: {'; '.join(notes)}")
    settings = {"seeds": seeds, "resamples": resamples, "bins": n_bins, "methods": order}
    results = Results(settings, sizes, tuple(rows), {})
    return Comparison(results, tuple(agreements), _summary(rows, len(sizes)), tuple(notes))


def align(answers: Sequence[Answers], what: str) -> list[Answers]:
    """The answers to the images that all have, in the order of the first, with its order of classes."""
    first = answers[0]
    shared = set(first.images).intersection(*(each.images for each in answers[1:]))
    if not shared:
        raise DataError(f"{what}: there is no image that all of them were tested on; measure them on the same images")
    kept = list(dict.fromkeys(image for image in first.images if image in shared))
    found = [_arranged(each, kept, first.classes, what) for each in answers]
    for each in found[1:]:
        wrong = np.flatnonzero(each.labels != found[0].labels)
        if wrong.size:
            raise DataError(f"{what}: they have different labels for {kept[wrong[0]]}; test them with the same labels")
    return found


def _arranged(answers: Answers, images: Sequence[str], classes: Sequence[str], what: str) -> Answers:
    if sorted(answers.classes) != sorted(classes):
        others = sorted(set(answers.classes) ^ set(classes))
        raise DataError(
            f"{what}: only some of them have the classes {shorten(others)}; compare models of the same classes"
        )
    place = {image: row for row, image in enumerate(answers.images)}
    rows = np.array([place[image] for image in images])
    columns = [list(answers.classes).index(name) for name in classes]
    number = np.empty(len(columns), dtype=np.int64)
    number[columns] = np.arange(len(columns))
    return Answers(answers.probabilities[rows][:, columns], number[answers.labels[rows]], images, classes)


def _paired(group: Mapping[str, list[Contender]], dataset: str) -> tuple[dict[str, list[Contender]], list[str]]:
    """Runs with the seeds that all methods have; single runs are compared whatever their seeds are."""
    if all(len(runs) == 1 for runs in group.values()):
        return dict(group), []
    several = {name: {run.seed: run for run in runs} for name, runs in group.items()}
    for name, runs in group.items():
        if len(several[name]) < len(runs):
            raise DataError(f"{dataset}: two runs of {name} have the same seed; leave one of them out")
    shared = sorted(set.intersection(*(set(runs) for runs in several.values())))
    if not shared:
        raise DataError(f"{dataset}: there is no seed that all methods have; compare runs of the same seeds")
    dropped = sorted({seed for runs in several.values() for seed in runs} - set(shared))
    notes = [f"{dataset}: seeds {', '.join(map(str, dropped))} are left out, as not all have them"] if dropped else []
    return {name: [runs[seed] for seed in shared] for name, runs in several.items()}, notes


def _aligned(
    group: Mapping[str, list[Contender]], dataset: str
) -> tuple[dict[str, dict[str, list[Predictions]]], dict[str, dict[str, int]]]:
    """Method -> split -> predictions of each run on the images that all have; and how many these are."""
    everyone = [run for runs in group.values() for run in runs]
    splits = [name for name in everyone[0].answers if all(name in run.answers for run in everyone)]
    if not splits:
        raise DataError(f"{dataset}: there is no split that all were tested on")
    found: dict[str, dict[str, list[Predictions]]] = {name: {} for name in group}
    sizes = {}
    for split in splits:
        arranged = iter(align([run.answers[split] for run in everyone], f"{dataset}, {split}"))
        for name, runs in group.items():
            of_method = [next(arranged) for _ in runs]
            found[name][split] = [predictions(each.probabilities, each.labels) for each in of_method]
            sizes[split] = {"images": len(of_method[0].labels), "classes": len(of_method[0].classes)}
    return found, sizes


def _agreements(dataset: str, methods: Mapping[str, Mapping[str, Sequence[Predictions]]]) -> list[Agreement]:
    names = list(methods)
    found = []
    for split in methods[names[0]]:
        for other in names[1:]:
            first, second = (np.stack([run.correct for run in methods[name][split]]) for name in (names[0], other))
            one, two = np.broadcast_arrays(first, second)
            both, only_first = int((one & two).sum()), int((one & ~two).sum())
            only_second, neither = int((~one & two).sum()), int((~one & ~two).sum())
            found.append(Agreement(dataset, split, names[0], other, both, only_first, only_second, neither))
    return found


def _summary(rows: Sequence[Row], datasets: int) -> dict[tuple[str, str, str], Number]:
    """Means over datasets of what all of them have, in per cent; differences have intervals over datasets."""
    if datasets < 2:
        return {}
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row.split, row.method, row.metric), []).append(100 * row.value)
    return {key: Number.over(found) for key, found in values.items() if len(found) == datasets and MINUS in key[1]}


def run_contenders(runs: Sequence[Run], *, zero_shot: bool = False) -> list[Contender]:
    """Finished runs, ready to be compared.

    Args:
        runs: Finished runs, in the order of the comparison.
        zero_shot: Include the untuned model, which every run has stored.

    Raises:
        CalpromptError: if a run is not finished or its files are damaged.
    """
    rows = [
        {**setting_columns(run.record["config"]), "dataset": str(run.record["data"]["name"]), "model": model}
        for run in runs
        for model in (TUNED, ZERO_SHOT)
    ]
    methods = methods_of(rows)
    found, untuned = [], dict[tuple[str, str, int], Contender]()
    for run, row, tuned, plain in zip(runs, rows[::2], methods[::2], methods[1::2], strict=True):
        seed, dataset, stored = int(row["seed"]), row["dataset"], StoredRun(run)
        found.append(Contender(tuned.name, dataset, seed, dict(_answers(stored, TUNED))))
        if zero_shot and (plain.name, dataset, seed) not in untuned:
            untuned[plain.name, dataset, seed] = Contender(plain.name, dataset, seed, dict(_answers(stored, ZERO_SHOT)))
    return [*found, *untuned.values()]


def _answers(stored: StoredRun, model: str) -> Iterator[tuple[str, Answers]]:
    """The answers of a run's model to the test images of every split."""
    class_names, image_names = stored.names
    for split in stored.splits(model):
        sample = stored.sample(model, split)
        images = image_names.get(split) or [f"image {row}" for row in range(len(sample.labels))]
        yield split, Answers(sample.probs, sample.labels, images, class_names[split])
