"""Methods compared: on each dataset, with intervals over images and seeds, and on average, with those over datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calprompt.evaluation.numbers import Number, dataset_means
from calprompt.progress import Progress, silent
from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements, Result, metric_columns
from calprompt.report.table import COUNT, POINTS, Column, Row, Table
from calprompt.results.comparison import HARMONIC, MINUS, compare
from calprompt.results.methods import Method, ordered, plain_of
from calprompt.results.table import PARTS

METRICS = ("accuracy", "ece", "ace", "weighted_mce")
DIFFERENCES = {"difference_accuracy": "accuracy", "difference_ece": "ece"}  # to the plain tuner
MIN_DATASETS = 3  # datasets that means are taken over
STAR = "* says that the interval of a difference excludes 0."

Levels = dict[tuple[str, str, str], Number]  # split, method, and metric or difference
Seeds = Mapping[int | None, Mapping[str, Result]]  # seed -> split -> result


def compare_datasets(
    measured: Measurements, settings: ReportSettings, progress: Progress = silent
) -> dict[str, Levels]:
    """On each dataset, means over seeds and paired differences to the plain tuner."""
    found = {}
    datasets = measured.datasets
    for number, dataset in enumerate(datasets):
        progress("comparing methods", number, len(datasets), dataset)
        results = _own(measured.where(dataset=dataset))
        here = measured.resamples and all(result.sample is not None for result in results)
        found[dataset] = _resampled(results, settings) if here else _from_numbers(results)
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
        for row in compare(
            "",
            samples,
            differences=[(method.name, methods[0].name) for method in methods[1:]],
            n_bins=settings.bins,
            resamples=settings.bootstrap,
            seed=settings.seed,
        ):
            name, minus, _ = row.method.partition(MINUS)
            if minus or name in whole:
                metric = f"difference_{row.metric}" if minus else row.metric
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
