"""A number on its way from a run to a table, figure or page: with its interval, or with its seeds and their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any, NamedTuple


class Number(NamedTuple):
    """A number; or why there is none, which is never shown as 0."""

    value: float | None = None  # a fraction where it is shown as percent; None if there is no result
    low: float | None = None  # lower end of the 95 % interval
    high: float | None = None  # upper end of the 95 % interval
    note: str | None = None  # what has to stand beside it, such as why there is no number
    seeds: tuple[float, ...] = ()  # the value of each seed, if it is a mean of them
    spread: float | None = None  # standard deviation over seeds; None for one seed
    lacking: int = 0  # how many seeds are missing of those that other cells have
    published: float | None = None  # what a paper has in this place
    row_mean: float | None = None  # the mean of the paper's own row, where its printed average is another number
    verdict: str | None = None  # whether the published number agrees; None if nothing was published

    @classmethod
    def over(cls, values: Sequence[float]) -> Number:
        """The mean of one value per dataset, with Student's interval, which a single dataset does not have.

        >>> str(Number.over([3.0, 1.0]))
        '+2.00 [-10.71, +14.71]'
        """
        n, middle = len(values), mean(values)
        if n == 1:
            return cls(middle)
        deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))
        half = student_quantile(n - 1) * deviation / math.sqrt(n)
        return cls(middle, middle - half, middle + half)

    @property
    def half(self) -> float | None:
        """Half the width of the interval, if there is one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        ends = "" if self.low is None or self.high is None else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.value:+.2f}{'*' if self.excludes_zero else ''}{ends}"


@cache
def student_quantile(degrees: int) -> float:
    """Half of a 95 % interval in standard errors, to four decimals."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return round(float(stdtrit(degrees, 0.975)), 4)


def dataset_means(values: Mapping[tuple[str, Any], float]) -> list[float]:
    """Means over seeds, or whatever else there is, of values by dataset; in the order of the datasets' names."""
    grouped: dict[str, list[float]] = {}
    for (dataset, _), value in sorted(values.items(), key=lambda pair: pair[0][0]):
        grouped.setdefault(dataset, []).append(value)
    return [mean(group) for group in grouped.values()]
