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
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, NotFoundError, SettingError
from calprompt.registry import check_types
from calprompt.report.table import Cell, Number, Table
from calprompt.text import os_problem, parse_problem

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
    """A figure."""

    key: str  # its name in the data
    title: str  # what it shows
    caption: str  # how to read it
    svg: str  # the drawing
    command: str = ""  # what draws it again


@dataclass(frozen=True)
class Mistake:
    """An image that was classified wrongly."""

    image: str  # its name
    said: str  # the class that was predicted
    confidence: Number  # how sure that was
    true: str  # the class it is of
    true_probability: Number  # what the model gave the true class
    run: int  # of which run, in `Report.runs`
    group: str  # dataset, split and method
    picture: str | None = None  # a data URI; None if there is no picture


@dataclass(frozen=True)
class RunIdentity:
    """Which run numbers are from."""

    name: str  # of its folder
    fingerprint: str  # sha256 of everything that its result depends on
    title: str  # what was run, in a line
    # where it is, from the folder of the report if that is near; None if only rows of a table are there
    folder: str | None = None
    # checksums of its stored logits, by what was evaluated
    logits: Mapping[str, str | None] = field(default_factory=dict)
    command: str = ""  # what makes it again


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


FIGURE = re.compile(r'<figure id="figure-([^"]*)".*?</figure>', re.DOTALL)
Shown = tuple[str, str]  # what a cell shows, and what stands below it


@dataclass
class Page:
    """A report file as it was read."""

    data: dict[str, Any] = field(default_factory=dict)  # what is embedded
    # what is shown: rows of cells by the key of a table
    tables: dict[str, list[list[Shown]]] = field(default_factory=dict)
    headline: list[str] = field(default_factory=list)  # the sentences at the top
    remarks: list[str] = field(default_factory=list)  # what stands below them
    mistakes: list[str] = field(default_factory=list)  # the text of every mistake
    figures: dict[str, str] = field(default_factory=dict)  # the HTML of every figure, by its key
    html: str = ""  # all of the file


def read_page(path: str | Path) -> Page:
    """Read a report file."""
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no report at {path}") from error
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path} is not a report of calprompt: it is no text in UTF-8") from error
    except OSError as error:
        raise CalpromptError(f"cannot read {os_problem(error)}") from error
    reader = _Reader()
    reader.feed(text)
    reader.close()
    if not reader.embedded:
        raise DamagedFileError(f"{path} is not a report of calprompt: there are no data in it")
    try:
        data = json.loads("".join(reader.embedded))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is a damaged report: its data are not JSON: {parse_problem(error)}") from error
    page = reader.page
    page.data, page.html = check_data(data, str(path)), text
    page.figures = {found[1]: found[0] for found in FIGURE.finditer(text)}
    return page


class _Reader(HTMLParser):
    """Collects what a page shows while its elements go by."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.embedded: list[str] = []
        self.table: str | None = None  # key of the section we are in
        self.in_body = False
        self.below = False
        self.text: list[str] | None = None  # collects the words of the innermost thing that is read
        self.small: list[str] = []
        self.in_data = False
        self.in_remarks = self.in_mistakes = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        name, kind = given.get("id") or "", (given.get("class") or "").split()
        if tag == "section" and name.startswith("table-"):
            self.table = name.removeprefix("table-")
            self.page.tables[self.table] = []
        elif tag == "script":
            self.in_data = name == "data"
        elif tag == "tbody":
            self.in_body = True
        elif tag == "tr" and self.in_body and self.table is not None:
            self.page.tables[self.table].append([])
        elif tag in ("td", "th") and self.in_body:
            self.text, self.small = [], []
        elif tag == "small":
            self.below = True
        elif tag == "ul":
            self.in_remarks, self.in_mistakes = "remarks" in kind, "mistakes" in kind
        elif (tag == "p" and "headline" in kind) or (tag == "li" and (self.in_remarks or self.in_mistakes)):
            self.text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.in_data = False
        elif tag == "tbody":
            self.in_body = False
        elif tag == "section":
            self.table = None
        elif tag == "small":
            self.below = False
        elif tag == "ul":
            self.in_remarks = self.in_mistakes = False
        elif self.text is not None:
            self._finish(tag)

    def _finish(self, tag: str) -> None:
        words = "".join(self.text or [])
        if tag in ("td", "th") and self.in_body and self.table is not None:
            self.page.tables[self.table][-1].append((words, "".join(self.small)))
        elif tag == "p" and not self.in_mistakes:
            self.page.headline.append(words)
        elif tag == "li":
            (self.page.remarks if self.in_remarks else self.page.mistakes).append(words)
        else:
            return  # of something inside it
        self.text = None

    def handle_data(self, data: str) -> None:
        if self.in_data:
            self.embedded.append(data)
        elif self.text is not None:
            (self.small if self.below else self.text).append(data)
