"""Numbers of a table from values by seed and dataset: means, variances, averages over datasets, paired differences.

An average over datasets needs all of them: where one is missing there is no average, because that of the others could
not be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev, variance

from calprompt.report.published import NOT_RUN, verdict
from calprompt.report.tables.paper_table import Number
from calprompt.results.intervals import Interval

BySeed = Mapping[int, float]
Judge = Callable[[float, Sequence[float]], str]


def mean_number(values: BySeed) -> Number:
    """The mean over seeds, with their standard deviation.

    >>> mean_number({1: 70.0, 2: 72.0}).value, round(mean_number({1: 70.0, 2: 72.0}).spread, 3), mean_number({}).value
    (71.0, 1.414, None)
    """
    seeds = tuple(values.values())
    if not seeds:
        return Number()
    return Number(mean(seeds), seeds, stdev(seeds) if len(seeds) > 1 else None)


def variance_number(values: BySeed) -> Number:
    """The variance over seeds, with n − 1 in the denominator; nothing for one seed.

    >>> variance_number({1: 70.0, 2: 72.0, 3: 74.0}).value
    4.0
    """
    seeds = tuple(values.values())
    return Number(variance(seeds), seeds) if len(seeds) > 1 else Number(None, seeds)


def average(numbers: Sequence[Number], by_seed: Sequence[BySeed]) -> Number:
    """The mean over datasets, with the standard deviation over seeds of that mean.

    Args:
        numbers: One per dataset.
        by_seed: The values behind them.
    """
    values = [number.value for number in numbers if number.value is not None]
    if not values or len(values) < len(numbers):
        return Number()
    shared = set.intersection(*(set(each) for each in by_seed))
    complete = all(set(each) == shared for each in by_seed)
    seeds = tuple(mean(each[seed] for each in by_seed) for seed in sorted(shared)) if complete else ()
    return Number(mean(values), seeds, stdev(seeds) if len(seeds) > 1 else None)


def paired_difference(ours: Sequence[BySeed], plain: Sequence[BySeed]) -> Number:
    """A method minus the plain tuner: paired by seed, and an interval over datasets.

    Args:
        ours: Values by seed, one record per dataset.
        plain: Of the plain tuner on the same datasets.
    """
    found = []
    for one, other in zip(ours, plain, strict=True):
        shared = sorted(set(one) & set(other))
        if not shared:
            return Number()
        found.append(mean(one[seed] - other[seed] for seed in shared))
    if not found:
        return Number()
    interval = Interval.of(found)
    return Number(interval.mean, interval=interval)


def with_published(number: Number, published: float | None, judge: Judge = verdict) -> Number:
    """A number beside the published one.

    Args:
        number: Ours.
        published: The paper's; None if it has none here.
        judge: From the published number and our seeds to what is said about them.
    """
    if published is None:
        return number
    return replace(number, published=published, verdict=judge(published, number.seeds))


def only_context(word: str) -> Judge:
    """A judge for numbers that cannot be compared: a word where there is a number of ours, else that it was not run."""
    return lambda published, ours: word if ours else NOT_RUN
