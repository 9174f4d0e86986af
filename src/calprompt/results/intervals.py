"""Means over datasets with Student's intervals: datasets are the unit, so what would happen on others like these."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

Key = tuple[str, str, int]  # tuner, dataset, seed
Values = Mapping[Key, float]


@dataclass(frozen=True)
class Interval:
    """A mean over datasets with its 95 % interval.

    Attributes:
        mean: The mean.
        half: Half the width of the interval, which a single dataset does not have.
    """

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """That of one value per dataset.

        >>> str(Interval.of([3.0, 1.0]))
        '+2.00 [-10.71, +14.71]'
        """
        n = len(values)
        return cls(mean(values), student_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None)

    @property
    def ends(self) -> tuple[float, float | None, float | None]:
        """The mean, and the lower and upper end."""
        return self.mean, *((None, None) if self.half is None else (self.mean - self.half, self.mean + self.half))

    @property
    def clear(self) -> bool:
        """Whether it excludes 0."""
        return self.half is not None and abs(self.mean) > self.half

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:+.2f}"
        star = "*" if self.clear else ""
        return f"{self.mean:+.2f}{star} [{self.mean - self.half:+.2f}, {self.mean + self.half:+.2f}]"


@cache
def student_quantile(degrees: int) -> float:
    """Half of a 95 % interval in standard errors, to four decimals."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return round(float(stdtrit(degrees, 0.975)), 4)


def by_dataset(values: Values, keys: Iterable[Key]) -> list[float]:
    """Means over tuners and seeds, one per dataset in the order of their names."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for key in keys:
        grouped[key[1]].append(values[key])
    return [mean(group) for _, group in sorted(grouped.items())]
