"""A table as data: columns, lines of numbers, and which of them are best. Renderings turn it into text.

columns          heading by heading, from the widest to the narrowest: ("PLIP", "Kather", "ECE")
lines            a group (a tuner), a label (a method), a measure, and one number per column
numbers          a value, its seeds and their spread; and what the paper printed, with a verdict
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from calprompt.results.intervals import Interval

Kind = Literal["value", "average", "difference"]


@dataclass(frozen=True)
class Measure:
    """What numbers are of, and how they are written.

    Attributes:
        name: As in results, such as weighted_mce.
        label: In the table, such as MCE.
        better: higher, lower, zero, or none: nothing is best.
        decimals: Digits behind the point.
        scale: From the unit of results to that of the table: 100 for fractions that are shown as per cent.
    """

    name: str
    label: str
    better: Literal["higher", "lower", "zero", "none"] = "lower"
    decimals: int = 2
    scale: float = 1.0


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        headings: From the widest to the narrowest.
        kind: value, average, or difference: to the plain tuner.
        measure: Of all its numbers, if lines have none of their own.
    """

    headings: tuple[str, ...]
    kind: Kind = "value"
    measure: Measure | None = None


@dataclass(frozen=True)
class Number:
    """A cell.

    Attributes:
        value: In the unit of the table; None if there is no result, which is never shown as 0.
        seeds: The value of each seed, if it is a mean of them.
        spread: Standard deviation over seeds; None for one seed.
        interval: Of a difference, over datasets.
        published: What the paper has in this place.
        row_mean: The mean of the paper's own row, where its printed average is another number.
        verdict: agrees, differs, not run, one seed or other backbone; None if nothing was published.
        lacking: How many seeds are missing of those that other cells have.
    """

    value: float | None = None
    seeds: tuple[float, ...] = ()
    spread: float | None = None
    interval: Interval | None = None
    published: float | None = None
    row_mean: float | None = None
    verdict: str | None = None
    lacking: int = 0


@dataclass(frozen=True)
class Line:
    """A line of numbers.

    Attributes:
        group: That it belongs to, such as a tuner; empty if it stands alone.
        label: Of the method or setting.
        numbers: One per column.
        measure: Of its numbers, if columns have none of their own.
    """

    group: str
    label: str
    numbers: tuple[Number, ...]
    measure: Measure | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table in the layout of the paper.

    Attributes:
        name: Of the kind of table, such as main.
        split: That it is of, such as novel; empty if it is of several.
        title: What it shows, in a sentence.
        stub: Headings of what stands left of the numbers.
        columns: The columns of numbers.
        lines: The lines, those of a group one after another.
        notes: What has to be known to read it, a sentence each.
        spread: Whether means are shown with their standard deviation over seeds.
    """

    name: str
    split: str
    title: str
    stub: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    spread: bool = False
    ranks: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", dict(_ranks(self)))

    def measure(self, line: Line, column: Column) -> Measure:
        """What a number is of."""
        found = line.measure or column.measure
        assert found is not None, "either lines or columns have measures"
        return found

    @property
    def has_measures(self) -> bool:
        """Whether lines have measures, which then stand left of the numbers."""
        return any(line.measure is not None for line in self.lines)

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, Line]]]]:
        """The lines by group, each with its place."""
        numbered = groupby(enumerate(self.lines), key=lambda pair: pair[1].group)
        return [(group, list(lines)) for group, lines in numbered]

    @property
    def has_published(self) -> bool:
        """Whether published numbers stand beside ours."""
        return any(number.published is not None for line in self.lines for number in line.numbers)


def _ranks(table: PaperTable) -> Iterator[tuple[tuple[int, int], int]]:
    """Which numbers are the best (1) and the second best (2) of their column, group and measure, as they are shown."""
    for _, lines in table.groups:
        names = dict.fromkeys(line.measure.name if line.measure else "" for _, line in lines)
        for name in names:
            same = [(place, line) for place, line in lines if (line.measure.name if line.measure else "") == name]
            for at, column in enumerate(table.columns):
                measure = table.measure(same[0][1], column)
                if column.kind == "difference" or measure.better == "none":
                    continue
                values = [line.numbers[at].value for _, line in same]
                for (place, _), rank in zip(same, rank_values(values, measure), strict=True):
                    if rank:
                        yield (place, at), rank


def rank_values(values: Sequence[float | None], measure: Measure) -> list[int]:
    """1 for the best, 2 for the second best, 0 for the rest; values that look the same have the same rank.

    >>> rank_values([71.204, 71.196, 70.0, None, 69.0], Measure("accuracy", "Acc.", "higher"))
    [1, 1, 2, 0, 0]
    >>> rank_values([5.0, None], Measure("ece", "ECE"))
    [0, 0]
    """
    sign = -1 if measure.better == "higher" else 1
    shown = [None if value is None else round(value, measure.decimals) for value in values]
    sizes = [None if value is None else (abs(value) if measure.better == "zero" else sign * value) for value in shown]
    if sum(size is not None for size in sizes) < 2:
        return [0] * len(values)
    places = {size: place for place, size in enumerate(sorted({size for size in sizes if size is not None}), 1)}
    return [places[size] if size is not None and places[size] <= 2 else 0 for size in sizes]
