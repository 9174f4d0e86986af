"""Methods compared: on each dataset, with intervals over images and seeds, and on average, with those over datasets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from calprompt.metrics import Predictions
from calprompt.progress import Progress, silent
from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements, Result, metric_columns
from calprompt.report.table import COUNT, POINTS, Cell, Column, Number, Row, Table
from calprompt.results.comparison import HARMONIC, MINUS, Interval, compare
from calprompt.results.methods import Method, ordered, plain_of
from calprompt.results.table import PARTS

METRICS = ("accuracy", "ece", "ace", "weighted_mce")
DIFFERENCES = ("accuracy", "ece")
FEWEST = 3  # datasets that means are taken over
STAR = "* says that the interval of a difference excludes 0."

Levels = dict[tuple[str, str], Number]  # split and metric
Seeds = tuple[int | None, ...]


def dataset_table(measured: Measurements, settings: ReportSettings, progress: Progress = silent) -> Table:
    """A row per dataset, split and method: means over seeds, and the paired difference to the plain tuner."""
    rows: list[Row] = []
    datasets = measured.datasets
    for number, dataset in enumerate(datasets):
        progress("comparing methods", number, len(datasets), dataset)
        results = _own(measured.where(dataset=dataset))
        here = measured.resamples and all(result.sample is not None for result in results)
        levels, differences = _resampled(results, settings) if here else _from_numbers(results)
        rows += _rows(dataset, results, levels, differences)
    progress("comparing methods", len(datasets), len(datasets), "")
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
        Column("dataset", "dataset"),
        Column("split", "classes"),
        Column("method", "method"),
        Column("seeds", "seeds", COUNT, "how many runs the mean is of", minor=True),
        *(column for column in metric_columns() if column.key in METRICS),
        *_difference_columns(),
    )
    return Table("datasets", "Each dataset", caption, columns, tuple(rows), ("dataset", "split", "method"))


def average_table(measured: Measurements) -> Table | None:
    """A row per split and method: means over datasets; None if there are so few that an interval says nothing."""
    if len(measured.datasets) < FEWEST:
        return None
    rows = []
    results = _own(measured.results)
    for split in _splits(result.split for result in results):
        by_method: dict[Method, dict[tuple[str, int | None], Result]] = {}
        for result in results:
            if result.split == split:
                by_method.setdefault(result.method, {})[result.dataset, result.seed] = result
        plains = [method for method in by_method if method.is_plain]
        rows += [_average_row(split, method, by_method, plain_of(method, plains)) for method in ordered(by_method)]
    caption = (
        "Percent; the mean over datasets of the means over seeds, below it Student's 95 % interval with datasets as "
        "the unit: what would happen on other datasets like these. A difference is to the plain tuner on the datasets "
        f"and seeds that both have, in percentage points. {STAR}"
    )
    columns = (
        Column("split", "classes"),
        Column("method", "method"),
        Column("datasets", "datasets", COUNT, "how many datasets the mean is of", minor=True),
        Column("runs", "runs", COUNT, "how many runs the mean is of", minor=True),
        *(column for column in metric_columns() if column.key in METRICS),
        *_difference_columns(),
    )
    return Table("averages", "All datasets together", caption, columns, tuple(rows), ("split", "method"))


def _difference_columns() -> list[Column]:
    about = "the method minus the plain tuner, on the same images and seeds, percentage points"
    labels = {column.key: column.label for column in metric_columns()}
    return [Column(f"difference_{name}", f"{labels[name]} difference", POINTS, about) for name in DIFFERENCES]


def _own(results: Sequence[Result]) -> list[Result]:
    """Results on the test images of the runs' own data."""
    return [result for result in results if result.split in PARTS and result.numbers["accuracy"].value is not None]


def _splits(names: Iterable[str]) -> tuple[str, ...]:
    """Splits in the order of tables, each once."""
    there = set(names)
    return tuple(part for part in PARTS if part in there)


def _by_method(results: Sequence[Result]) -> dict[Method, dict[int | None, dict[str, Result]]]:
    """Method -> seed -> split -> result."""
    found: dict[Method, dict[int | None, dict[str, Result]]] = {}
    for result in results:
        found.setdefault(result.method, {}).setdefault(result.seed, {})[result.split] = result
    return found


def _resampled(
    results: Sequence[Result], settings: ReportSettings
) -> tuple[dict[Method, Levels], dict[Method, Levels]]:
    """Levels and differences of methods on one dataset, from resamples of its images and seeds."""
    by_method = _by_method(results)
    plains = [method for method in by_method if method.is_plain]
    jobs: dict[tuple[Seeds, tuple[str, ...], Method | None], list[Method]] = {}
    for method, seeds in by_method.items():
        plain = plain_of(method, plains)
        if plain is not None:
            shared = tuple(seed for seed in seeds if seed in by_method[plain])
            splits = tuple(set(_complete(by_method[method], shared)) & set(_complete(by_method[plain], shared)))
            jobs.setdefault((shared, _splits(splits), plain), []).append(method)
    levels: dict[Method, Levels] = {}
    differences: dict[Method, Levels] = {}
    for (shared, splits, plain), methods in jobs.items():
        assert plain is not None
        found = _compared(by_method, [plain, *methods], shared, splits, settings, plain)
        for method in (plain, *methods):
            if shared == tuple(by_method[method]):
                levels[method] = found[method.name]
        differences |= {method: found[f"{method.name}{MINUS}{plain.name}"] for method in methods if shared and splits}
    for method, of_seeds in by_method.items():
        if method not in levels:
            splits = _splits(_complete(of_seeds, tuple(of_seeds)))
            levels[method] = _compared(by_method, [method], tuple(of_seeds), splits, settings)[method.name]
    return {method: levels[method] for method in by_method}, differences


def _complete(seeds: Mapping[int | None, Mapping[str, Result]], wanted: Seeds) -> list[str]:
    """The splits that all of some seeds have results of."""
    return [part for part in PARTS if wanted and all(part in seeds[seed] for seed in wanted)]


def _compared(
    by_method: Mapping[Method, Mapping[int | None, Mapping[str, Result]]],
    methods: Sequence[Method],
    seeds: Seeds,
    splits: Sequence[str],
    settings: ReportSettings,
    plain: Method | None = None,
) -> dict[str, Levels]:
    """Numbers by the name of a method, or of a difference to the plain one."""
    found: dict[str, Levels] = defaultdict(dict)
    if not seeds or not splits:
        return found
    samples: dict[str, dict[str, list[Predictions]]] = {
        method.name: {split: [_sample(by_method[method][seed][split]) for seed in seeds] for split in splits}
        for method in methods
    }
    rows = compare(
        "",
        samples,
        differences=[(method.name, plain.name) for method in methods if plain is not None and method != plain],
        n_bins=settings.bins,
        resamples=settings.bootstrap,
        seed=settings.seed,
    )
    for row in rows:
        found[row.method][row.split, row.metric] = Number(row.value, row.low, row.high)
    return found


def _sample(result: Result) -> Predictions:
    assert result.sample is not None
    return result.sample


def _from_numbers(results: Sequence[Result]) -> tuple[dict[Method, Levels], dict[Method, Levels]]:
    """Levels and differences of methods on one dataset, from the numbers of its seeds."""
    by_method = _by_method(results)
    plains = [method for method in by_method if method.is_plain]
    splits = _splits(result.split for result in results)
    levels: dict[Method, Levels] = {}
    differences: dict[Method, Levels] = {}
    for method, seeds in by_method.items():
        plain = plain_of(method, plains)
        for split in splits:
            there = [parts[split] for parts in seeds.values() if split in parts]
            pairs = [
                (parts[split], by_method[plain][seed][split])
                for seed, parts in seeds.items()
                if plain is not None and split in parts and split in by_method[plain].get(seed, {})
            ]
            for metric in METRICS:
                if there:
                    levels.setdefault(method, {})[split, metric] = _mean([each.numbers[metric] for each in there])
                if pairs:
                    gaps = [_minus(first.numbers[metric], second.numbers[metric]) for first, second in pairs]
                    differences.setdefault(method, {})[split, metric] = _mean(gaps)
    return levels, differences


def _minus(first: Number, second: Number) -> Number:
    return Number(None if first.value is None or second.value is None else first.value - second.value)


def _mean(numbers: Sequence[Number]) -> Number:
    """The mean of numbers with Student's interval; one number keeps its own."""
    values = [number.value for number in numbers if number.value is not None]
    if len(values) < len(numbers) or len(numbers) == 1:
        return numbers[0] if len(numbers) == 1 else Number(None, note="some of these runs have no such number")
    interval = Interval.of(values)
    half, signed = interval.half or 0.0, min(values) < 0
    low, high = interval.mean - half, interval.mean + half
    return Number(interval.mean, low if signed else max(0.0, low), high)


def _rows(
    dataset: str,
    results: Sequence[Result],
    levels: Mapping[Method, Levels],
    differences: Mapping[Method, Levels],
) -> list[Row]:
    rows = []
    by_method: dict[Method, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    for split in [*_splits(result.split for result in results), HARMONIC]:
        for method in ordered(levels):
            of_method = levels[method]
            if (split, "accuracy") not in of_method:
                continue
            own = [each for each in by_method[method] if each.split in (split, "base")]
            cells: list[Cell] = [dataset, split, method.name, Number(len({each.seed for each in own}))]
            cells += [of_method.get((split, metric), Number(None)) for metric in METRICS]
            pair = differences.get(method, {})
            cells += [pair.get((split, metric), Number(None)) for metric in DIFFERENCES]
            rows.append(Row(tuple(cells), tuple(sorted({run for each in own for run in each.runs}))))
    return rows


def _average_row(
    split: str,
    method: Method,
    by_method: Mapping[Method, Mapping[tuple[str, int | None], Result]],
    plain: Method | None,
) -> Row:
    own = by_method[method]
    partners = by_method[plain] if plain is not None else {}
    cells: list[Cell] = [split, method.name, Number(len({dataset for dataset, _ in own})), Number(len(own))]
    for metric in METRICS:
        cells.append(_over_datasets({key: each.numbers[metric].value for key, each in own.items()}))
    for metric in DIFFERENCES:
        pairs = {
            key: _minus(each.numbers[metric], partners[key].numbers[metric]).value
            for key, each in own.items()
            if key in partners
        }
        cells.append(_over_datasets(pairs))
    return Row(tuple(cells), tuple(sorted({run for each in own.values() for run in each.runs})))


def _over_datasets(values: Mapping[tuple[str, int | None], float | None]) -> Number:
    """The mean over datasets of the means over seeds, with Student's interval."""
    by_dataset: dict[str, list[float]] = {}
    for (dataset, _), value in values.items():
        if value is None:
            return Number(None, note="some of these runs have no such number")
        by_dataset.setdefault(dataset, []).append(value)
    if not by_dataset:
        return Number(None)
    return _mean([Number(mean(group)) for group in by_dataset.values()])
