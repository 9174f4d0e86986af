"""Means of a metric over datasets and seeds, for groups of runs: the data of several figures.

Groups are compared on the datasets and seeds that all of them have, so that a run that is missing does not look like an
effect. The spread is the standard deviation over seeds of the means over datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, TypeVar

from calprompt.errors import NotFoundError
from calprompt.report.figures import selection
from calprompt.report.figures.style import sample_text
from calprompt.results.sources import ReportSource

Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True)
class Point:
    """A mean and its spread.

    Attributes:
        mean: Over datasets and seeds.
        spread: Standard deviation over seeds; None if there is only one.
    """

    mean: float
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of all splits, metrics and groups, and of how much they are made.

    Attributes:
        points: Split, metric -> group -> point.
        datasets: How many.
        seeds: How many.
        left_out: Datasets and seeds that some groups have and others lack.
    """

    points: Mapping[tuple[str, str], Mapping[Any, Point]]
    datasets: int
    seeds: int
    left_out: int = 0

    @property
    def note(self) -> str:
        """What the points are made of, in words."""
        spread = "; bars: s.d. over seeds" if self.seeds > 1 else "; one seed: no spread known"
        lacking = f"; {self.left_out} datasets and seeds left out, which some lack" if self.left_out else ""
        return f"means over {sample_text(datasets=self.datasets, seeds=self.seeds)}{spread}{lacking}"


def read_series(
    source: ReportSource, by: Callable[[Mapping[str, Any]], Group | None], metrics: tuple[str, ...], what: str
) -> Series:
    """The series of a source's tuned models as they are.

    Args:
        source: Results.
        by: The group of a row; rows without one are left out.
        metrics: Which.
        what: What errors call the groups.

    Raises:
        NotFoundError: if there are not two groups that share a dataset and a seed.
    """
    values: dict[tuple[str, str], dict[Group, dict[tuple[str, int], float]]] = {}
    for split in selection.splits_of(source):
        rows = [row for row in selection.uncalibrated(source.measured.rows, split) if by(row) is not None]
        for metric in metrics:
            values[split, metric] = selection.grouped(source, rows, selection.metric_value(metric), by)
    groups = {group for each in values.values() for group in each}
    if len(groups) < 2:
        raise NotFoundError(f"{source.title} has results of {len(groups)} {what}, and the figure compares several")
    every = [set(places) for each in values.values() for places in each.values()]
    shared, whole = set.intersection(*every), set.union(*every)
    if not shared:
        raise NotFoundError(f"no dataset and seed of {source.title} has results of all {len(groups)} {what}")
    points = {
        key: {group: _point({place: places[place] for place in shared}) for group, places in each.items()}
        for key, each in values.items()
    }
    datasets, seeds = ({place[which] for place in shared} for which in (0, 1))
    return Series(points, len(datasets), len(seeds), len(whole - shared))


def _point(values: Mapping[tuple[str, int], float]) -> Point:
    by_seed: dict[int, list[float]] = {}
    for (_, seed), value in values.items():
        by_seed.setdefault(seed, []).append(value)
    means = [mean(each) for each in by_seed.values()]
    return Point(mean(values.values()), stdev(means) if len(means) > 1 else None)
