"""What a report says, as plain data: sentences, tables of cells, figures, mistakes, and the runs they are from.

    Report ── settings      what was asked for
           ├─ headline      sentences
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

from calprompt.errors import DamagedFileError, NewerFormatError, SettingError
from calprompt.registry import check_types
from calprompt.report.table import Cell, Number, Table

FORMAT = 1
DIGITS = 6  # behind the point of embedded numbers


@dataclass(frozen=True)
class ReportSettings:
    """What a report contains; checked when it is made.

    Attributes:
        title: Of the page; what was run, if None.
        bins: Bins of the calibration errors.
        bootstrap: Resamples of the images for the intervals; 0: no such intervals.
        seed: Of the resamples, and of halving the validation images for thresholds.
        errors: Error rates to find thresholds for, as fractions.
        mistakes: How many of the most confident mistakes to show of each split.
        no_images: Leave out the pictures of mistakes.
        no_figures: Leave out the figures.
    """

    title: str | None = None
    bins: int = 10
    bootstrap: int = 1000
    seed: int = 0
    errors: tuple[float, ...] = (0.05, 0.1, 0.2)
    mistakes: int = 8
    no_images: bool = False
    no_figures: bool = False

    def __post_init__(self) -> None:
        from calprompt.metrics.binning import check_n_bins

        check_types("", type(self).__init__, vars(self))
        check_n_bins(self.bins, "bins")
        for name in ("bootstrap", "seed", "mistakes"):
            if getattr(self, name) < 0:
                raise SettingError(f"must be at least 0, got {getattr(self, name)}", parameter=name)
        for value in self.errors:
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise SettingError(f"must be fractions above 0 and below 1, got {value}", parameter="errors")

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "errors": list(self.errors)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ReportSettings:
        """From what `record` gave."""
        return cls(**{**record, "errors": tuple(record["errors"])})


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


_FLAT = ("title", "headline", "remarks", "settings", "sources", "calibrators", "unfinished", "notes", "version")


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
