"""What a report says, as plain data: sentences, tables of cells, figures, mistakes, and the runs they are from.

    Report ── headline      sentences
           ├─ runs          identity, folder, the command that makes it again      ◀─┐
           ├─ tables        columns (how a number is computed) × rows (of which runs) ┘
           ├─ figures       SVG, and what drew them
           └─ mistakes      pictures with what was said and what is true

A number is a fraction and the ends of its 95 % interval, embedded with six digits behind the point. A number that is
not there has a reason instead; it is never 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from calprompt.errors import DamagedFileError, NewerFormatError

FORMAT = 1
DIGITS = 6  # behind the point of embedded numbers
DASH = "–"  # noqa: RUF001 what stands where there is no number

TEXT, COUNT, PERCENT, POINTS, PLAIN = "text", "count", "percent", "points", "plain"  # kinds of columns


@dataclass(frozen=True)
class Number:
    """A number and its 95 % interval; or why there is none.

    Attributes:
        value: As a fraction, where it is shown as percent; None if there is none.
        low: Lower end of the interval.
        high: Upper end of the interval.
        note: What has to stand beside it, such as why there is no number.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


Cell = str | Number


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name in the data.
        label: Its heading.
        kind: text, count, percent, points (a signed difference in percentage points) or plain.
        about: How its numbers are computed.
        signed: Whether numbers are shown with their sign.
        digits: Behind the point of a plain number.
        minor: Whether a phone, which has no room for all columns, leaves it out.
    """

    key: str
    label: str
    kind: str = TEXT
    about: str = ""
    signed: bool = False
    digits: int = 3
    minor: bool = False

    def shown(self, cell: Cell) -> tuple[str, str]:
        """What a cell shows: the number or text; and below it the interval, why there is no number, or nothing.

        >>> Column("ece", "ECE", PERCENT).shown(Number(0.1234, 0.1, 0.15))
        ('12.34', '10.00 to 15.00')
        """
        if isinstance(cell, str):
            return cell, ""
        if cell.value is None:
            return DASH, cell.note or ""
        low, high = cell.low, cell.high
        interval = "" if low is None or high is None else f"{self._digits(low)} to {self._digits(high)}"
        star = "*" if self.kind == POINTS and cell.excludes_zero else ""
        return self._digits(cell.value) + star, interval

    def _digits(self, value: float) -> str:
        sign = "+" if self.signed or self.kind == POINTS else ""
        if self.kind == COUNT:
            return f"{value:,.0f}"
        text = f"{100 * value:{sign}.2f}" if self.kind in (PERCENT, POINTS) else f"{value:{sign}.{self.digits}f}"
        return text if text.strip("+-0.") else text.replace("-", "+" if sign else "")


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: One per column.
        runs: Places of the runs that its numbers are from, in `Report.runs`.
        kind: "difference" for a paired one, "missing" for what has no result.
    """

    cells: tuple[Cell, ...]
    runs: tuple[int, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its caption.

    Attributes:
        key: Its name in the data.
        title: Its heading.
        caption: What it shows, and how to read it.
        columns: Text columns first; they name the row.
        rows: The rows.
        filters: Columns that rows can be chosen by.
        command: What computes its numbers again.
    """

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    filters: tuple[str, ...] = ()
    command: str = ""

    @property
    def names(self) -> int:
        """How many columns at the start name the row."""
        return next((i for i, column in enumerate(self.columns) if column.kind != TEXT), len(self.columns))

    def name_of(self, row: int) -> str:
        """A row in words."""
        cells = self.rows[row].cells[: self.names]
        return ", ".join(cell for cell in cells if isinstance(cell, str) and cell) or f"row {row + 1}"


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        key: Its name in the data.
        title: What it shows.
        caption: How to read it.
        svg: The drawing.
        command: What draws it again.
    """

    key: str
    title: str
    caption: str
    svg: str
    command: str = ""


@dataclass(frozen=True)
class Mistake:
    """An image that was classified wrongly.

    Attributes:
        image: Its name.
        said: The class that was predicted.
        confidence: How sure that was.
        true: The class it is of.
        true_probability: What the model gave the true class.
        run: Of which run, in `Report.runs`.
        group: Dataset, split and method.
        picture: A data URI; None if there is no picture.
    """

    image: str
    said: str
    confidence: Number
    true: str
    true_probability: Number
    run: int
    group: str
    picture: str | None = None


@dataclass(frozen=True)
class RunIdentity:
    """Which run numbers are from.

    Attributes:
        name: Of its folder.
        fingerprint: sha256 of everything that its result depends on.
        title: What was run, in a line.
        folder: Where it is, from the folder of the report if that is near; None if only rows of a table are there.
        logits: Checksums of its stored logits, by what was evaluated.
        command: What makes it again.
    """

    name: str
    fingerprint: str
    title: str
    folder: str | None = None
    logits: Mapping[str, str | None] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that a page shows.

    Attributes:
        title: Of the page.
        headline: The most important sentences.
        remarks: What has to be known to read it, such as which runs are missing.
        settings: Of the report.
        sources: Tables of results that rows were read from.
        calibrators: What stored logits were measured with.
        runs: Of all numbers.
        unfinished: Title, status and reason of planned runs without a result.
        tables: In the order of the page.
        figures: In the order of the page.
        mistakes: The most confident ones.
        notes: Why something is not there.
        version: Of calprompt.
        drawn_by: What drew the figures, with its version; empty without figures.
    """

    title: str
    headline: tuple[str, ...]
    remarks: tuple[str, ...]
    settings: Mapping[str, Any]
    sources: tuple[str, ...]
    calibrators: tuple[str, ...]
    runs: tuple[RunIdentity, ...]
    unfinished: tuple[tuple[str, str, str], ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""
    drawn_by: str = ""

    def table(self, key: str) -> Table | None:
        """A table by its name, if there is one."""
        return next((table for table in self.tables if table.key == key), None)


def to_data(report: Report) -> dict[str, Any]:
    """A report as plain data for JSON: cells as text, or as [value, low, high]; of pictures, their checksums."""
    return {
        "format": FORMAT,
        **{name: _plain(getattr(report, name)) for name in _FLAT},
        "runs": [asdict(run) for run in report.runs],
        "tables": [_table(table) for table in report.tables],
        "figures": [{"key": each.key, "title": each.title} for each in report.figures],
        "drawn_by": report.drawn_by,
        "mistakes": [
            [
                *(each.image, each.said, _cell(each.confidence), each.true, _cell(each.true_probability), each.run),
                None if each.picture is None else picture_digest(each.picture),
            ]
            for each in report.mistakes
        ],
    }


def picture_digest(uri: str) -> str:
    """The checksum of a picture that is written out in a page."""
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


_FLAT = (*("title", "headline", "remarks", "settings", "sources", "calibrators", "unfinished", "notes", "version"),)


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _table(table: Table) -> dict[str, Any]:
    return {
        "key": table.key,
        "columns": [[column.key, column.kind] for column in table.columns],
        "rows": [[[_cell(cell) for cell in row.cells], list(row.runs)] for row in table.rows],
    }


def _cell(cell: Cell) -> Any:
    if isinstance(cell, str):
        return cell
    numbers = [_rounded(number) for number in (cell.value, cell.low, cell.high)]
    while numbers and numbers[-1] is None:
        numbers.pop()
    return numbers


def _rounded(number: float | None) -> float | None:
    return round(number, DIGITS) + 0.0 if isinstance(number, float) else number  # + 0.0: no negative zero


def check_data(data: Any, source: str) -> dict[str, Any]:
    """The embedded data of a report, if that is what it is."""
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise DamagedFileError(f"{source} is not a report of calprompt: its data have no format number")
    if data["format"] > FORMAT:
        raise NewerFormatError(
            f"{source} was written by a newer version of calprompt (report format {data['format']}, this version "
            f"reads {FORMAT}); update calprompt"
        )
    lacking = [name for name in (*_FLAT, "runs", "tables", "mistakes") if name not in data]
    if lacking:
        raise DamagedFileError(f"{source} is a damaged report: its data have no {lacking[0]!r}; write it again")
    return data
