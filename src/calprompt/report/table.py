"""Tables as data, whatever they show; `report.writers` has them as text, Markdown, LaTeX, CSV and HTML.

columns   what stands in them, and how numbers are written: counts, percent, points; text columns come first
rows      a cell per column; the group it belongs to, such as a tuner; the runs that its numbers are from
numbers   a value with its interval, or with its seeds and their spread; or the reason why there is none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from calprompt.errors import SettingError
from calprompt.evaluation.numbers import Number

DASH = "–"  # noqa: RUF001 what stands where there is no number

TEXT, COUNT, PERCENT, PLAIN = "text", "count", "percent", "plain"
POINTS = "points"  # a difference of fractions, shown in percentage points
DIFFERENCE = "difference"  # a difference in the unit of the table
DIFFERENCES = (POINTS, DIFFERENCE)
HARMONIC = "harmonic"  # base and novel as one number
TABLE_SPLITS = ("base", "novel", "all", HARMONIC)


Cell = str | Number


@dataclass(frozen=True)
class Column:
    """What stands in a column, or in the numbers of a row, and how it is written."""

    key: str  # its name in the data, such as weighted_mce
    label: str  # its heading, such as MCE
    kind: str = TEXT  # text, count, percent, plain, points or difference
    about: str = ""  # how its numbers are computed
    signed: bool = False  # whether numbers are shown with their sign
    digits: int = 3  # digits behind the point of plain numbers and differences
    minor: bool = False  # whether a phone, which has no room for all columns, leaves it out
    above: tuple[str, ...] = ()  # headings that it shares with its neighbours, from the widest to the narrowest
    better: str = ""  # higher, lower or zero; empty if nothing is best
    scale: float = 1.0  # from the unit of results to that of the table: 100 for fractions that are stored as percent

    def number(self, value: float) -> str:
        """A number as it is written; no zero is negative."""
        sign = "+" if self.signed or self.kind in DIFFERENCES else ""
        if self.kind == COUNT:
            return f"{value:,.0f}"
        text = f"{100 * value:{sign}.2f}" if self.kind in (PERCENT, POINTS) else f"{value:{sign}.{self.digits}f}"
        return text if text.strip("+-0.") else text.replace("-", "+" if sign else "")

    def parts(self, cell: Cell, empty: str = DASH) -> tuple[str, str, str]:
        """What a cell shows, and the ends of its interval; a star marks a difference whose interval excludes 0."""
        if isinstance(cell, str):
            return cell, "", ""
        if cell.value is None:
            return empty, "", ""
        star = "*" if self.kind in DIFFERENCES and cell.excludes_zero else ""
        low, high = ("" if end is None else self.number(end) for end in (cell.low, cell.high))
        return f"{self.number(cell.value)}{star}", low, high

    def shown(self, cell: Cell) -> tuple[str, str]:
        """What a page shows: the number or text; and below it the interval, why there is no number, or nothing.

        >>> Column("ece", "ECE", PERCENT).shown(Number(0.1234, 0.1, 0.15))
        ('12.34', '10.00 to 15.00')
        """
        main, low, high = self.parts(cell)
        if isinstance(cell, Number) and cell.value is None:
            return main, cell.note or ""
        return main, f"{low} to {high}" if low and high else ""

    def line(self, cell: Cell, *, empty: str = "n/a", between: str = " ") -> str:
        """What a terminal shows: the number with its interval in brackets.

        >>> Column("ece", "ECE", PERCENT).line(Number(0.1234, 0.1, 0.15))
        '12.34 [10.00, 15.00]'
        """
        main, low, high = self.parts(cell, empty)
        return f"{main}{between}[{low}, {high}]" if low and high else main


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    cells: tuple[Cell, ...]  # one per column
    runs: tuple[int, ...] = ()  # places of the runs that its numbers are from, in `Report.runs`
    kind: str = ""  # "missing" for what has no result
    group: str = ""  # what it belongs to, such as a tuner; rows of a group come one after another
    measure: Column | None = None  # what all of its numbers are, if columns do not say it

    @property
    def label(self) -> str:
        """The first cell, which names the row."""
        return str(self.cells[0])

    @property
    def numbers(self) -> tuple[Number, ...]:
        return tuple(cell for cell in self.cells if isinstance(cell, Number))

    @property
    def has_published(self) -> bool:
        return any(number.published is not None for number in self.numbers)


@dataclass(frozen=True)
class Table:
    """A table with its caption."""

    key: str  # its name in the data
    title: str  # its heading
    caption: str  # what it shows, and how to read it
    columns: tuple[Column, ...]  # text columns first; they name the row
    rows: tuple[Row, ...]  # the rows
    filters: tuple[str, ...] = ()  # columns that rows can be chosen by
    command: str = ""  # what computes its numbers again
    notes: tuple[str, ...] = ()  # what has to be known to read it, a sentence each
    split: str = ""  # which classes it is of; empty if it is of several
    spread: bool = False  # whether means are shown with their standard deviation over seeds

    @property
    def names(self) -> int:
        """How many columns at the start name the row."""
        return next((i for i, column in enumerate(self.columns) if column.kind != TEXT), len(self.columns))

    @property
    def number_columns(self) -> tuple[Column, ...]:
        return self.columns[self.names :]

    def name_of(self, row: int) -> str:
        """A row in words."""
        cells = self.rows[row].cells[: self.names]
        return ", ".join(cell for cell in cells if isinstance(cell, str) and cell) or f"row {row + 1}"

    def measure(self, row: Row, column: Column) -> Column:
        """How a number is written: as its row says, else its column; differences as their column says."""
        if row.measure is None:
            return column
        if column.kind in DIFFERENCES:
            return replace(column, key=row.measure.key)
        return row.measure

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, Row]]]]:
        """The rows by group, each with its place."""
        numbered = groupby(enumerate(self.rows), key=lambda pair: pair[1].group)
        return [(group, list(rows)) for group, rows in numbered]

    @property
    def has_published(self) -> bool:
        """Whether published numbers stand beside ours."""
        return any(row.has_published for row in self.rows)

    @cached_property
    def ranks(self) -> dict[tuple[int, int], int]:
        """Row and column of the best (1) and the second best (2) numbers of a column, group and measure."""
        return dict(_ranks(self))


def _ranks(table: Table) -> Iterator[tuple[tuple[int, int], int]]:
    for _, rows in table.groups:
        for key in dict.fromkeys(row.measure.key if row.measure else "" for _, row in rows):
            same = [(place, row) for place, row in rows if (row.measure.key if row.measure else "") == key]
            for at, column in enumerate(table.columns):
                measure = table.measure(same[0][1], column)
                if at < table.names or column.kind in DIFFERENCES or not measure.better:
                    continue
                cells = [row.cells[at] for _, row in same]
                values = [cell.value if isinstance(cell, Number) else None for cell in cells]
                for (place, _), rank in zip(same, rank_values(values, measure), strict=True):
                    if rank:
                        yield (place, at), rank


def rank_values(values: Sequence[float | None], measure: Column) -> list[int]:
    """1 for the best, 2 for the second best, 0 for the rest; values that look the same have the same rank.

    >>> rank_values([71.204, 71.196, 70.0, None, 69.0], Column("accuracy", "Acc.", PLAIN, digits=2, better="higher"))
    [1, 1, 2, 0, 0]
    >>> rank_values([5.0, None], Column("ece", "ECE", PLAIN, better="lower"))
    [0, 0]
    """
    sign = -1 if measure.better == "higher" else 1
    shown = [None if value is None else round(value, measure.digits) for value in values]
    sizes = [None if value is None else (abs(value) if measure.better == "zero" else sign * value) for value in shown]
    if sum(size is not None for size in sizes) < 2:
        return [0] * len(values)
    places = {size: place for place, size in enumerate(sorted({size for size in sizes if size is not None}), 1)}
    return [places[size] if size is not None and places[size] <= 2 else 0 for size in sizes]


def metric_column(name: str, *, minor: bool = False, label: str | None = None) -> Column:
    """The column of a metric, written as the metric says.

    >>> metric_column("confidence_gap").number(0.02), metric_column("nll").number(1.25)
    ('+2.00', '1.250')
    """
    from calprompt.metrics import metric_info

    info = metric_info(name)
    kind = PERCENT if info.unit == "%" else PLAIN
    return Column(name, label or info.label, kind, info.about, info.signed, minor=minor)


@dataclass(frozen=True)
class TableOptions:
    """What a table of a paper shows, where it is not what the paper shows.

    Attributes:
        splits: base, novel, all or harmonic (the harmonic mean of base and novel accuracy, the mean of errors); those
            of the paper, if empty.
        metrics: In the place of the paper's, if any.
        methods: Only these, such as vanilla and tcpt, or a loss, or "tcpt, temperature"; the paper's, and other losses
            that the results have, if empty.
        spread: Show the standard deviation over seeds.
        difference: Show the average's paired difference from the plain tuner, with its interval over datasets.
        published: Show the paper's numbers.
    """

    splits: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    spread: bool = False
    difference: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        wrong = [split for split in self.splits if split not in TABLE_SPLITS]
        if wrong:
            raise SettingError(f"must be one of {', '.join(TABLE_SPLITS)}; got {wrong[0]!r}", parameter="split")
