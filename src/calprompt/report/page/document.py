"""What a report says, as plain data: sentences, tables of cells, figures, mistakes, and the runs they are from.

A number is a fraction and the ends of its 95 % interval, embedded with six digits behind the point. A number that is
not there has a reason instead; it is never 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import unescape
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
        title: Title of the page; by default, what was run.
        bins: Bins of the calibration errors.
        bootstrap: Resamples of the images for the intervals; 0: no such intervals.
        seed: Seed for resampling and for halving the validation images for thresholds.
        errors: Error rates to find thresholds for, as fractions.
        mistakes: Number of most confident mistakes to show per split.
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
    predicted: str  # class
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
    """Everything that a page shows."""

    title: str  # of the page
    headline: tuple[str, ...]  # the most important sentences
    remarks: tuple[str, ...]  # what has to be known to read it, such as which runs are missing
    settings: Mapping[str, Any]  # of the report
    sources: tuple[str, ...]  # tables of results that rows were read from
    calibrators: tuple[str, ...]  # what stored logits were measured with
    runs: tuple[RunIdentity, ...]  # of all numbers
    unfinished: tuple[tuple[str, str, str], ...]  # title, status and reason of planned runs without a result
    tables: tuple[Table, ...]  # in the order of the page
    figures: tuple[Figure, ...] = ()  # in the order of the page
    mistakes: tuple[Mistake, ...] = ()  # the most confident ones
    notes: tuple[str, ...] = ()  # why something is not there
    version: str = ""  # of calprompt
    drawn_by: str = ""  # what drew the figures, with its version; empty without figures

    def table(self, key: str) -> Table | None:
        """A table by its name, if there is one."""
        return next((table for table in self.tables if table.key == key), None)


def to_data(report: Report) -> dict[str, Any]:
    """A report as plain data for JSON: cells as text, or as [value, low, high]; of pictures, their checksums."""
    return {
        "format": FORMAT,
        **{name: getattr(report, name) for name in _FLAT},
        "runs": [asdict(run) for run in report.runs],
        "tables": [
            {
                "key": table.key,
                "columns": [[column.key, column.kind] for column in table.columns],
                "rows": [[[_cell(cell) for cell in row.cells], list(row.runs)] for row in table.rows],
            }
            for table in report.tables
        ],
        "figures": [{"key": each.key, "title": each.title} for each in report.figures],
        "drawn_by": report.drawn_by,
        "mistakes": [
            [
                *(each.image, each.predicted, _cell(each.confidence), each.true, _cell(each.true_probability)),
                *(each.run, None if each.picture is None else picture_digest(each.picture)),
            ]
            for each in report.mistakes
        ],
    }


def picture_digest(uri: str) -> str:
    """The checksum of a picture that is written out in a page."""
    return hashlib.sha256(uri.encode()).hexdigest()[:16]


_FLAT = ("title", "headline", "remarks", "settings", "sources", "calibrators", "unfinished", "notes", "version")


def _cell(cell: Cell) -> Any:
    if isinstance(cell, str):
        return cell
    numbers = [
        round(each, DIGITS) + 0.0 if isinstance(each, float) else each  # + 0.0: no negative zero
        for each in (cell.value, cell.low, cell.high)
    ]
    while numbers and numbers[-1] is None:
        numbers.pop()
    return numbers


Shown = tuple[str, str]  # what a cell shows, and what stands below it
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
SECTION = re.compile(r'<section id="table-([^"]*)".*?<tbody>(.*?)</tbody>', re.DOTALL)
ROW = re.compile(r"<tr[^>]*>(.*?)</tr>", re.DOTALL)
CELL = re.compile(r"<(t[dh])[^>]*>(.*?)</\1>", re.DOTALL)
FIGURE = re.compile(r'<figure id="figure-([^"]*)".*?</figure>', re.DOTALL)
HEADLINE = re.compile(r'<p class="headline">(.*?)</p>', re.DOTALL)
LIST = {kind: re.compile(rf'<ul class="{kind}">(.*?)</ul>', re.DOTALL) for kind in ("remarks", "mistakes")}
ITEM = re.compile(r"<li>(.*?)</li>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")


@dataclass
class Page:
    """A report file as it was read."""

    html: str  # all of the file
    data: dict[str, Any]  # what is embedded

    @cached_property
    def tables(self) -> dict[str, list[list[Shown]]]:
        """What is shown: rows of cells by the key of a table."""
        return {
            unescape(key): [[_shown(cell) for _, cell in CELL.findall(row)] for row in ROW.findall(body)]
            for key, body in SECTION.findall(self.html)
        }

    @cached_property
    def figures(self) -> dict[str, str]:
        """The HTML of every figure, by its key."""
        return {found[1]: found[0] for found in FIGURE.finditer(self.html)}

    @cached_property
    def sentences(self) -> dict[str, list[str]]:
        """What is written outside of tables: headline, remarks, and mistakes."""
        items = {
            kind: [item for part in form.findall(self.html) for item in ITEM.findall(part)]
            for kind, form in LIST.items()
        }
        found = {"headline": HEADLINE.findall(self.html), "remarks": items["remarks"], "mistake": items["mistakes"]}
        return {kind: list(map(_words, texts)) for kind, texts in found.items()}


def _words(html: str) -> str:
    return unescape(TAG.sub("", html))


def _shown(cell: str) -> Shown:
    main, _, below = cell.partition("<small>")
    return _words(main), _words(below)


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
    embedded = DATA.search(text)
    if embedded is None:
        raise DamagedFileError(f"{path} is not a report of calprompt: there are no data in it")
    try:
        data = json.loads(embedded[1])
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is a damaged report: its data are not JSON: {parse_problem(error)}") from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise DamagedFileError(f"{path} is not a report of calprompt: its data have no format number")
    if data["format"] > FORMAT:
        raise NewerFormatError(
            f"{path} was written by a newer version of calprompt (report format {data['format']}, this version reads "
            f"{FORMAT}); update calprompt"
        )
    lacking = [name for name in (*_FLAT, "runs", "tables", "mistakes") if name not in data]
    if lacking:
        raise DamagedFileError(f"{path} is a damaged report: its data have no {lacking[0]!r}; write it again")
    return Page(text, data)
