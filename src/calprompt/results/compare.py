"""Methods side by side on the images that all of them answered: values, paired differences, who is right where.

Runs that differ in nothing but seed and data are one method; its seeds are paired with those of the others. A resample
draws the test images again, the same for all methods and seeds, and the seeds, the same for all methods and for base
and novel, so that what methods share cancels in their difference. Of S seeds, S − 1 are drawn with replacement: the
mean of that many varies as much as that of S new seeds would. Intervals are percentile ones; those of ECE, ACE and
weighted MCE are `expected_interval`: few images make a calibration error larger, most of all a small one, so that a
true difference is rather larger than the measured one. The textbook's MCE has no interval, because none covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.errors import DamagedFileError, DataError, SettingError
from calprompt.evaluation.bootstrap import ResampledMetrics, expected_interval, percentile_interval, resample_counts
from calprompt.evaluation.models import StoredRun
from calprompt.evaluation.numbers import Number
from calprompt.evaluation.settings import TUNED, ZERO_SHOT
from calprompt.files import csv_bytes, read_json, write_bytes, write_json
from calprompt.metrics import Predictions, predictions
from calprompt.metrics.inputs import Floats, Ints
from calprompt.results.collecting import setting_columns
from calprompt.results.methods import methods_of
from calprompt.runs.folder import Run
from calprompt.text import shorten

METRICS = ("accuracy", "ece", "ace", "mce", "weighted_mce")
NO_INTERVAL = "mce"
HARMONIC = "harmonic mean"  # of the accuracies on base and on novel classes, in the place of a split
MINUS = " minus "

Methods = Mapping[str, Mapping[str, Sequence[Predictions]]]  # method -> split -> one entry per run
COLUMNS = ("dataset", "split", "method", "metric", "value", "low", "high")


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
            counts = np.bincount((2 * ~first + ~second).ravel(), minlength=4)  # with the fields of an agreement
            found.append(Agreement(dataset, split, names[0], other, *map(int, counts)))
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
