"""Methods compared: on each dataset, with intervals over images and seeds; on average, with those over datasets.

And how often they are right when they say that they are sure, which the headline rests on:

    level       the highest of 90, 80, … 50 % at which there are enough predictions to tell
    sure        predictions with at least that confidence
    right       how many of them are right, of 100
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calprompt.errors import DataError
from calprompt.evaluation.bootstrap import percentile_interval, resample_counts
from calprompt.evaluation.numbers import Number, dataset_means
from calprompt.evaluation.settings import PARTS
from calprompt.metrics import Predictions
from calprompt.metrics.inputs import Floats
from calprompt.progress import Progress, silent
from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements, Result, metric_columns
from calprompt.report.table import COUNT, PERCENT, POINTS, Cell, Column, Row, Table
from calprompt.results.compare import HARMONIC, MINUS, compare, seed_weights
from calprompt.results.compare import Row as ComparedRow
from calprompt.results.methods import Method, headline_pairs, ordered, plain_of

METRICS = ("accuracy", "ece", "ace", "weighted_mce")
MINUS_PLAIN, GAIN = "difference_", "gain_"  # before a metric: differences to the plain tuner, and to the untuned model
DIFFERENCES = {f"{MINUS_PLAIN}{metric}": metric for metric in ("accuracy", "ece")}
MIN_DATASETS = 3  # datasets that means are taken over
STAR = "* says that the interval of a difference excludes 0."

Levels = dict[tuple[str, str, str], Number]  # split, method, and metric or difference
Seeds = Mapping[int | None, Mapping[str, Result]]  # seed -> split -> result


def compare_datasets(
    measured: Measurements, settings: ReportSettings, progress: Progress = silent
) -> dict[str, Levels]:
    """On each dataset, means over seeds and paired differences to the plain tuner."""
    found: dict[str, Levels] = {}
    datasets, pair = measured.datasets, next(iter(headline_pairs(measured.methods)), None)
    for number, dataset in enumerate(datasets):
        progress("comparing methods", number, len(datasets), dataset)
        results = _own(measured.where(dataset=dataset))
        here = measured.resamples and all(result.sample is not None for result in results)
        levels = found[dataset] = _resampled(results, settings) if here else _from_numbers(results)
        if pair is not None and pair[0].is_zero_shot:
            levels |= _gains(pair, results, levels, settings if here else None)
    progress("comparing methods", len(datasets), len(datasets), "")
    return found


def dataset_table(measured: Measurements, levels: Mapping[str, Levels]) -> Table:
    """A row per dataset, split and method: means over seeds, and the paired difference to the plain tuner."""
    rows = []
    for dataset, found in levels.items():
        results = _own(measured.where(dataset=dataset))
        by_method: dict[Method, list[Result]] = {}
        for result in results:
            by_method.setdefault(result.method, []).append(result)
        methods = ordered(by_method)
        for split in (*_splits(results), HARMONIC):
            for method in (each for each in methods if (split, each.name, "accuracy") in found):
                own = [each for each in by_method[method] if each.split in (split, "base")]
                numbers = (found.get((split, method.name, key), Number()) for key in (*METRICS, *DIFFERENCES))
                seeds = Number(len({each.seed for each in own}))
                rows.append(Row((dataset, split, method.name, seeds, *numbers), _runs(own)))
    covers = (
        f"over test images and seeds, from {measured.resamples} resamples"
        if measured.resamples and measured.stored
        else "over seeds (Student's); of a single seed, over its images, and only for accuracy"
    )
    caption = (
        "Percent; the mean over seeds, below it the 95 % interval "
        f"{covers}. A difference is to the plain tuner on the same images and seeds, in percentage points. {STAR} "
        "Calibration errors, and so their intervals, are those of so many images: with more images they would be "
        "smaller, small ones most of all, and a difference rather larger."
    )
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        Column("seeds", "seeds", COUNT, "how many runs the mean is of", minor=True),
        *_number_columns(),
    )
    return Table("datasets", "Each dataset", caption, columns, tuple(rows), ("dataset", "split", "method"))


def average_table(measured: Measurements) -> Table | None:
    """A row per split and method: means over datasets; None if there are so few that an interval says nothing."""
    if len(measured.datasets) < MIN_DATASETS:
        return None
    rows = []
    results = _own(measured.results)
    for split in _splits(results):
        by_method: dict[Method, dict[tuple[str, int | None], Result]] = {}
        for result in results:
            if result.split == split:
                by_method.setdefault(result.method, {})[result.dataset, result.seed] = result
        plains = [method for method in by_method if method.is_plain]
        for method in ordered(by_method):
            own, plain = by_method[method], plain_of(method, plains)
            partners = {} if plain is None else by_method[plain]
            numbers = [_over_datasets({key: each.numbers[metric] for key, each in own.items()}) for metric in METRICS]
            numbers += [
                _over_datasets({key: _minus(own[key], partners[key], metric) for key in own if key in partners})
                for metric in DIFFERENCES.values()
            ]
            counts = (Number(len({dataset for dataset, _ in own})), Number(len(own)))
            rows.append(Row((split, method.name, *counts, *numbers), _runs(own.values())))
    caption = (
        "Percent; the mean over datasets of the means over seeds, below it Student's 95 % interval with datasets as "
        "the unit: what would happen on other datasets like these. A difference is to the plain tuner on the datasets "
        f"and seeds that both have, in percentage points. {STAR}"
    )
    columns = (
        *(Column("split", "classes"), Column("method", "method")),
        Column("datasets", "datasets", COUNT, "how many datasets the mean is of", minor=True),
        Column("runs", "runs", COUNT, "how many runs the mean is of", minor=True),
        *_number_columns(),
    )
    return Table("averages", "All datasets together", caption, columns, tuple(rows), ("split", "method"))


def _number_columns() -> list[Column]:
    about = "the method minus the plain tuner, on the same images and seeds, percentage points"
    columns = {column.key: column for column in metric_columns() if column.key in METRICS}
    differences = (Column(k, f"{columns[name].label} difference", POINTS, about) for k, name in DIFFERENCES.items())
    return [*columns.values(), *differences]


def _own(results: Sequence[Result]) -> list[Result]:
    """Results on the test images of the runs' own data."""
    return [result for result in results if result.split in PARTS and result.numbers["accuracy"].value is not None]


def _splits(results: Iterable[Result]) -> list[str]:
    """Splits in the order of tables, each once."""
    there = {result.split for result in results}
    return [part for part in PARTS if part in there]


def _runs(results: Iterable[Result]) -> tuple[int, ...]:
    return tuple(sorted({run for each in results for run in each.runs}))


def _by_method(results: Sequence[Result]) -> dict[Method, dict[int | None, dict[str, Result]]]:
    found: dict[Method, dict[int | None, dict[str, Result]]] = {}
    for result in results:
        found.setdefault(result.method, {}).setdefault(result.seed, {})[result.split] = result
    return found


def _resampled(results: Sequence[Result], settings: ReportSettings) -> Levels:
    """Levels and differences on one dataset, from resamples of its images and seeds."""
    by_method = _by_method(results)
    levels: Levels = {}

    def shared(*methods: Method) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
        """Seeds that methods have, and splits that they have with all of these."""
        seeds = tuple(seed for seed in by_method[methods[0]] if all(seed in by_method[each] for each in methods))
        parts = [by_method[each][seed] for each in methods for seed in seeds]
        return seeds, tuple(part for part in PARTS if parts and all(part in each for each in parts))

    def add(methods: Sequence[Method], seeds: tuple[int | None, ...], splits: Sequence[str]) -> None:
        """Compare methods with the first of them."""
        samples: dict[str, Any] = {
            method.name: {split: [by_method[method][seed][split].sample for seed in seeds] for split in splits}
            for method in methods
        }
        whole = {method.name for method in methods if seeds == tuple(by_method[method])}
        for row in _compared(samples, [(method.name, methods[0].name) for method in methods[1:]], settings):
            name, minus, _ = row.method.partition(MINUS)
            if minus or name in whole:
                metric = f"{MINUS_PLAIN}{row.metric}" if minus else row.metric
                levels[row.split, name, metric] = row.number

    jobs: dict[tuple[Any, ...], list[Method]] = {}
    for method in by_method:
        plain = plain_of(method, by_method)
        if plain is not None:
            jobs.setdefault((plain, *shared(method, plain)), []).append(method)
    for (plain, seeds, splits), methods in jobs.items():
        if splits:
            add([plain, *methods], seeds, splits)
    known = {name for _, name, metric in levels if metric == "accuracy"}
    for method in by_method:
        if method.name not in known and all(shared(method)):
            add([method], *shared(method))
    return levels


def _compared(
    samples: dict[str, Any], differences: Sequence[tuple[str, str]], settings: ReportSettings
) -> list[ComparedRow]:
    sizes = {"n_bins": settings.bins, "resamples": settings.bootstrap, "seed": settings.seed}
    return compare("", samples, differences=differences, **sizes)


def _gains(
    pair: tuple[Method, Method], results: Sequence[Result], levels: Levels, settings: ReportSettings | None
) -> Levels:
    """What a method changes against the untuned model, which has no seeds; with settings, from resamples."""
    untuned, other = (method.name for method in pair)
    gains: Levels = {}
    for split in _splits(results):
        sides = [[each.sample for each in results if (each.method, each.split) == (m, split)] for m in pair]
        if not all(sides):
            continue
        for metric in DIFFERENCES.values():
            before, after = (levels.get((split, name, metric), Number()).value for name in (untuned, other))
            if before is not None and after is not None:
                gains[split, other, f"{GAIN}{metric}"] = Number(after - before)
        if settings is not None:
            samples: dict[str, Any] = {untuned: {split: sides[0][:1]}, other: {split: sides[1]}}
            rows = _compared(samples, [(other, untuned)], settings)
            gains |= {(split, other, f"{GAIN}{row.metric}"): row.number for row in rows if row.is_difference}
    return gains


def _from_numbers(results: Sequence[Result]) -> Levels:
    """Levels and differences on one dataset, from the numbers of its seeds."""
    by_method = _by_method(results)
    levels: Levels = {}
    splits, plains = _splits(results), [method for method in by_method if method.is_plain]
    for method, seeds in by_method.items():
        plain = plain_of(method, plains)
        partners: Seeds = {} if plain is None else by_method[plain]
        for split in splits:
            there = {seed: parts[split] for seed, parts in seeds.items() if split in parts}
            pairs = [(each, partners[seed][split]) for seed, each in there.items() if split in partners.get(seed, {})]
            for metric in METRICS if there else ():
                levels[split, method.name, metric] = _mean([each.numbers[metric] for each in there.values()])
            for key, metric in DIFFERENCES.items() if pairs else ():
                levels[split, method.name, key] = _mean([_minus(*pair, metric) for pair in pairs])
    return levels


def _minus(first: Result, second: Result, metric: str) -> Number:
    values = [each.numbers[metric].value for each in (first, second)]
    return Number(None if None in values else values[0] - values[1])  # type: ignore[operator]


def _mean(numbers: Sequence[Number]) -> Number:
    """The mean of numbers with Student's interval; one number keeps its own."""
    if len(numbers) == 1:
        return numbers[0]
    values = [number.value for number in numbers if number.value is not None]
    if len(values) < len(numbers):
        return Number(note="some of these runs have no such number")
    found = Number.over(values)
    return found if min(values) < 0 or found.low is None else found._replace(low=max(0.0, found.low))


def _over_datasets(numbers: Mapping[tuple[str, int | None], Number]) -> Number:
    """The mean over datasets of the means over seeds, with Student's interval."""
    values = {key: number.value for key, number in numbers.items() if number.value is not None}
    if len(values) < len(numbers):
        return Number(note="some of these runs have no such number")
    return _mean([Number(value) for value in dataset_means(values)]) if values else Number()


CONFIDENCES = (0.9, 0.8, 0.7, 0.6, 0.5)
MIN_PREDICTIONS = 30  # predictions of a run that are as sure as that
SPLITS = {"novel": "on classes it never saw", "all": "on its test images", "base": "on the classes it was tuned on"}


@dataclass(frozen=True)
class SureSide:
    """What one method reaches when it is sure."""

    predictions: int  # how many there are, of all images and seeds
    sure: int  # how many of them are as sure as that
    confidence: float  # mean confidence of these
    right: Number  # share of them that is right, with its interval
    runs: tuple[int, ...]  # of which runs


@dataclass(frozen=True)
class SureShare:
    """What two methods reach on one dataset and split when they are sure."""

    dataset: str  # which
    split: str  # which
    level: float  # from which confidence on
    methods: tuple[Method, Method]  # the plain one and the other
    sides: tuple[SureSide, SureSide]  # of each of them
    difference: Number  # the second share of right predictions minus the first


def sure_shares(measured: Measurements, settings: ReportSettings) -> list[SureShare]:
    """For every pair of the headline, dataset and split whose logits are here."""
    found = []
    for pair in headline_pairs(measured.methods):
        for dataset in measured.datasets:
            for split in SPLITS:
                share = _share(measured, pair, dataset, split, settings)
                if share is not None:
                    found.append(share)
    return found


def _share(
    measured: Measurements, pair: tuple[Method, Method], dataset: str, split: str, settings: ReportSettings
) -> SureShare | None:
    chosen = tuple(measured.where(method=method, dataset=dataset, split=split) for method in pair)
    if not pair[0].is_zero_shot:  # which has no seeds
        shared = {each.seed for each in chosen[0]} & {each.seed for each in chosen[1]}
        chosen = tuple([each for each in results if each.seed in shared] for results in chosen)
    samples = [[each.sample for each in results if each.sample is not None] for results in chosen]
    if not all(samples) or list(map(len, samples)) != list(map(len, chosen)):
        return None

    def is_enough(level: float) -> bool:
        return all(np.mean([(run.confidence >= level).sum() for run in runs]) >= MIN_PREDICTIONS for runs in samples)

    level = next(filter(is_enough, CONFIDENCES), None)
    if level is None:
        return None
    shares = _right_when_sure(samples, level, settings, split)
    sides = []
    for results, runs, values in zip(chosen, samples, shares, strict=True):
        sure = np.concatenate([run.confidence[run.confidence >= level] for run in runs])
        places = tuple(sorted({run for each in results for run in each.runs}))
        total = sum(len(run.labels) for run in runs)
        sides.append(SureSide(total, len(sure), float(sure.mean()), _number(values), places))
    return SureShare(dataset, split, level, pair, (sides[0], sides[1]), _number(shares[1] - shares[0]))


def _number(values: Floats) -> Number:
    """The first value, with the interval of the others; without one if they are all the same, as if all are right."""
    low, high = percentile_interval(values[1:]) if len(values) > 1 else (0.0, 0.0)
    return Number(float(values[0])) if low == high else Number(float(values[0]), low, high)


def _right_when_sure(
    methods: Sequence[Sequence[Predictions]], level: float, settings: ReportSettings, split: str
) -> list[Floats]:
    """Share of right predictions among sure ones, of each method: of the sample itself, then of the resamples."""
    n = len(methods[0][0].labels)
    if any(len(run.labels) != n for runs in methods for run in runs):
        raise DataError("methods were not evaluated on the same images")
    seeds = max(len(runs) for runs in methods)
    rng = np.random.default_rng((settings.seed, *b"sure", *split.encode()))
    weights = seed_weights(seeds, settings.bootstrap, rng)  # [seeds, 1 + resamples]
    ones = [np.ones((1, n), dtype=np.int64)]
    parts = [*ones, *(resample_counts(rng, n, settings.bootstrap) if settings.bootstrap else ())]
    found = []
    for runs in methods:
        sure = np.stack([run.confidence >= level for run in runs]).astype(np.float64)  # [seeds, N]
        right = sure * np.stack([run.correct for run in runs])
        counted, hits = (np.concatenate([x @ part.T for part in parts], axis=1) for x in (sure, right))
        own = weights if len(runs) == seeds else np.ones((1, weights.shape[1]))
        total = (own * counted).sum(axis=0)
        found.append(np.divide((own * hits).sum(axis=0), total, out=np.zeros_like(total), where=total > 0))
    return found


def sure_table(shares: Sequence[SureShare]) -> Table | None:
    """What the headline rests on, for all splits."""
    if not shares:
        return None
    rows = []
    for share in shares:
        for place, (method, side) in enumerate(zip(share.methods, share.sides, strict=True)):
            cells: list[Cell] = [share.dataset, share.split, method.name, f"{100 * share.level:.0f} %"]
            cells += [Number(side.sure), Number(side.predictions)]
            cells += [Number(side.confidence), side.right, share.difference if place else Number(None)]
            rows.append(Row(tuple(cells), side.runs))
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        Column("level", "at least", about="predictions with this confidence or more are counted", minor=True),
        Column(
            "sure", "confident", COUNT, "predictions with at least this confidence, of all seeds together", minor=True
        ),
        Column("predictions", "of", COUNT, "all predictions: images times seeds", minor=True),
        Column("confidence", "mean confidence", PERCENT, "mean confidence of these predictions, percent"),
        Column("right", "accuracy", PERCENT, "share of these predictions that is right, percent"),
        Column("difference", "difference", POINTS, "share that is right, minus that of the row above, points"),
    )
    caption = (
        "Of the predictions with such a confidence, how many are right? The level is the highest of 90, 80, … 50 % "
        f"at which a run has at least {MIN_PREDICTIONS} predictions. Below a number is its 95 % interval over test "
        "images and seeds. A mean confidence above the accuracy is over-confident, one below it under-confident."
    )
    return Table("sure", "When the model is confident", caption, columns, tuple(rows), ("dataset", "split", "method"))
