"""What a report file says: the data inside it, and what its tables, sentences and figures show."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from calprompt.report.page.document import check_data
from calprompt.text import os_problem, parse_problem

FIGURE = re.compile(r'<figure id="figure-([^"]*)".*?</figure>', re.DOTALL)
Shown = tuple[str, str]  # what a cell shows, and what stands below it


@dataclass
class Page:
    """A report file as it was read.

    Attributes:
        data: What is embedded.
        tables: What is shown: rows of cells by the key of a table.
        headline: The sentences at the top.
        remarks: What stands below them.
        mistakes: The text of every mistake.
        figures: The HTML of every figure, by its key.
        html: All of the file.
    """

    data: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[Shown]]] = field(default_factory=dict)
    headline: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    html: str = ""


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
