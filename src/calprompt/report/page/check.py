"""Is a report true? Every number of it is computed again from stored logits and compared with what it says.

    report.html ── data, and what is shown and drawn ─────┐
         │                                                ├── what differs, cell by cell and stroke by stroke
         └─ runs and tables that it remembers ── rebuilt ─┘

Numbers that were read from a table of results, of runs whose folders are not here, are compared with that table.
Figures are drawn again and compared element by element; another version of matplotlib draws other elements, so that
only their text is compared then. Pictures of mistakes are compared with their checksums. If all of that agrees, the
rest of the page is compared as text: headings, captions, styles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, Parameter
from calprompt.progress import Progress, silent
from calprompt.report.page.build import build_report
from calprompt.report.page.document import Figure, Page, Report, ReportSettings, picture_digest, read_page, to_data
from calprompt.report.page.render import BLANK, figure_html, mistake_text, render_report
from calprompt.report.table import Table
from calprompt.results.sources import read_source
from calprompt.runs.folder import RECORD
from calprompt.text import bullets, shorten, visible

EXACT = 5.01e-7  # half of the last digit that is written
SMALL = 1e-5  # differences that another processor may make
NEAR = 0.0201  # points that a stroke may be off for the same reason: coordinates have two digits behind the point
STRETCH = 20.0  # points of a figure that a percentage point may take
PIECES = re.compile(r"<[^>]*>|[^<]+")
COORDINATE = re.compile(r"-?\d+(?:\.\d+)?")
PICTURE = re.compile(r'<img src="(data:[^"]*)" alt="">')
UNTOLD = re.compile(  # what may be another where the runs are now: commands, places, and the pictures
    r'<(pre|code) class="command">.*?</\1>|<details><summary>command</summary>.*?</details>'
    r'|<script type="application/json" id="data">.*?</script>',
    re.DOTALL,
)
HINT = (
    "another processor or another version of a library may change the last digits; allow for that with tolerance=0.001"
)


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        path: Of the report.
        numbers: How many were computed again and compared.
        from_logits: Runs whose numbers were computed from stored logits.
        from_tables: Runs whose numbers could only be compared with a table of results.
        differences: What differs, a line each; empty if the report is true.
        small: Whether all differences are in the last digits of embedded numbers and of strokes.
        drawn_by: What drew its figures, if that is not what is installed here, so that only their text was compared.
    """

    path: Path
    numbers: int
    from_logits: int
    from_tables: int
    differences: tuple[str, ...] = ()
    small: bool = False
    drawn_by: str | None = None


@dataclass
class Comparison:
    """What was compared, and what differs."""

    tolerance: float  # how far numbers may be apart, as a fraction
    numbers: int = 0  # how many were compared
    lines: list[str] = field(default_factory=list)  # what differs, a line each
    largest: float = 0.0  # the largest difference of an embedded number; 1 for anything else that differs

    def text(self, what: str, said: Any, found: Any) -> None:
        if said != found:
            self.lines.append(f"{what}: says {visible(_short(said))}, recomputed {visible(_short(found))}")
            self.largest = 1.0

    def number(self, what: str, said: Any, found: float | None) -> None:
        """An embedded number, which may be off by the tolerance."""
        self.numbers += 1
        if said is None and found is None:
            return
        apart = abs(said - found) if isinstance(said, int | float) and found is not None else 1.0
        if apart > EXACT + self.tolerance:
            self.lines.append(f"{what}: says {said}, recomputed {found}")
            self.largest = max(self.largest, apart)


def check_report(
    path: str | Path, *, runs: str | Path | None = None, tolerance: float = 0.0, progress: Progress = silent
) -> Checked:
    """Compute every number of a report again and compare it with what the report says and shows.

    Args:
        path: Of the report.
        runs: Folder in which its run folders are now; where they were, unless given.
        tolerance: How far numbers may be apart, in percentage points.
        progress: Shows how far it is.

    Raises:
        NotFoundError: if the report, or the runs or tables that it was made from, are not there.
        DamagedFileError: if it is not a report, or stored logits are not what was written.
    """
    path = Path(path).expanduser()
    page = read_page(path)
    data = page.data
    try:
        settings = ReportSettings.from_record(dict(data["settings"], title=data["title"], no_images=True))
        places, from_logits = _places(path, data, None if runs is None else Path(runs).expanduser())
        unfinished = [(str(title), str(status), str(reason)) for title, status, reason in data["unfinished"]]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CalpromptError):
            raise
        raise DamagedFileError(f"{path} is a damaged report: {error}; write it again") from error
    source = read_source(*places, calibrators=data["calibrators"], progress=progress)
    had_logits = {run["name"] for run in data["runs"] if run["folder"] is not None}  # others were rows of a table
    source = replace(source, folders=tuple(folder for folder in source.folders if folder.name in had_logits))
    rebuilt = build_report(source, settings, near=path.parent, unfinished=unfinished, progress=progress)
    compared = compare_with(page, rebuilt, tolerance)
    return Checked(
        path,
        compared.numbers,
        from_logits,
        len(data["runs"]) - from_logits,
        tuple(dict.fromkeys(compared.lines)),
        small=bool(compared.lines) and compared.largest < SMALL,
        drawn_by=None if _same_drawer(page, rebuilt) else str(data.get("drawn_by") or "another version of calprompt"),
    )


def compare_with(page: Page, rebuilt: Report, tolerance: float = 0.0) -> Comparison:
    """Compare what a page says and shows with the report that its runs give."""
    compared = Comparison(tolerance / 100)
    _compare_data(page.data, to_data(rebuilt), compared)
    _compare_page(page, rebuilt, compared, loose=tolerance > 0)
    _compare_pictures(page, compared)
    if not compared.lines and not tolerance and page.data["version"] == rebuilt.version and _same_drawer(page, rebuilt):
        _compare_rest(page, rebuilt, compared)
    return compared


def _same_drawer(page: Page, rebuilt: Report) -> bool:
    return not rebuilt.figures or page.data.get("drawn_by") == rebuilt.drawn_by


def require_true(checked: Checked) -> None:
    """Raise what a check found, if it found anything."""
    if checked.differences:
        hint = f"\n{HINT}" if checked.small else ""
        raise CalpromptError(f"{checked.path} does not match its runs:{bullets(checked.differences)}{hint}")


def _places(path: Path, data: dict[str, Any], runs: Path | None) -> tuple[list[Path], int]:
    """Run folders and tables to read, and how many runs have their folder."""
    found: list[Path] = []
    lost: list[str] = []
    tables = [path.parent / place for place in data["sources"]]
    for run in data["runs"]:
        candidates = [runs / run["name"]] if runs is not None else []
        candidates += [path.parent / run["folder"]] if run["folder"] is not None else []
        place = next((place for place in candidates if (place / RECORD).is_file()), None)
        if place is not None:
            found.append(place)
        elif run["folder"] is not None:
            lost.append(run["name"])
    if lost:
        where = f"in {runs}" if runs is not None else f"where they were when {path.name} was written"
        raise NotFoundError(
            f"{len(lost)} of {len(data['runs'])} runs of {path} are not {where}: {shorten(lost, 3)}; say where they "
            "are with ",
            Parameter("runs", "DIR"),
        )
    if len(found) == len(data["runs"]):
        return found, len(found)
    for table in tables:
        if not table.is_file():
            raise NotFoundError(
                f"{table}, which {path} was made from, is not there; put it back, or give the folder of the runs with ",
                Parameter("runs", "DIR"),
            )
    return [*found, *tables], len(found)


def _compare_data(said: dict[str, Any], found: dict[str, Any], compared: Comparison) -> None:
    """The embedded data."""
    for name in ("headline", "remarks"):
        for place, (a, b) in enumerate(_both(said[name], found[name])):
            compared.text(f"{name}, sentence {place + 1}", a, b)
    tables = {table["key"]: table for table in found["tables"]}
    for table in said["tables"]:
        key = str(table.get("key"))
        if key not in tables:
            compared.lines.append(f"table {key!r}: it is not in the recomputed report")
            continue
        _compare_table(key, table, tables.pop(key), compared)
    compared.lines += [f"table {key!r}: it is missing" for key in tables]
    runs = [(run.get("name"), run.get("fingerprint"), run.get("logits")) for run in said["runs"]]
    again = [(run["name"], run["fingerprint"], run["logits"]) for run in found["runs"]]
    for place, (a, b) in enumerate(_both(runs, again)):
        if a is not None and b is not None and not a[2]:  # was read from a table, and may have its logits now
            a, b = a[:2], b[:2]
        compared.text(f"run {place + 1}", a, b)
    for place, (a, b) in enumerate(_both(said["mistakes"], found["mistakes"])):
        if a is None or b is None or [a[i] for i in (0, 1, 3)] != [b[i] for i in (0, 1, 3)]:
            compared.text(f"mistake {place + 1}", a, b)
            continue
        compared.number(f"mistake {place + 1} ({a[0]}), confidence", a[2][0], b[2][0])
        compared.number(f"mistake {place + 1} ({a[0]}), probability of the true class", a[4][0], b[4][0])


def _compare_table(key: str, said: dict[str, Any], found: dict[str, Any], compared: Comparison) -> None:
    compared.text(f"table {key!r}, columns", said["columns"], found["columns"])
    names = [column for column, _ in found["columns"]]
    for place, (a, b) in enumerate(_both(said["rows"], found["rows"])):
        if a is None or b is None:
            compared.lines.append(
                f"table {key!r}, row {place + 1}: it is {'missing' if a is None else 'not of its runs'}"
            )
            continue
        row = ", ".join(cell for cell in b[0] if isinstance(cell, str) and cell) or f"row {place + 1}"
        compared.text(f"table {key!r}, row {row}, runs", a[1], b[1])
        for name, cell, again in zip(names, *_same_length(a[0], b[0]), strict=False):
            what = f"table {key!r}, row {row}, column {name!r}"
            if isinstance(cell, list) and isinstance(again, list):
                for end, (x, y) in zip(("", ", lower end", ", upper end"), _both(cell, again), strict=False):
                    compared.number(f"{what}{end}", x, y)
            else:
                compared.text(what, cell, again)


def _compare_page(page: Page, rebuilt: Report, compared: Comparison, *, loose: bool) -> None:
    """What is shown."""
    for name, said, found in (
        ("headline", page.headline, rebuilt.headline),
        ("remarks", page.remarks, rebuilt.remarks),
        ("mistake", [text.removeprefix(BLANK) for text in page.mistakes], [mistake_text(m) for m in rebuilt.mistakes]),
    ):
        for place, (a, b) in enumerate(_both(said, found)):
            compared.text(f"{name} {place + 1}, as shown", a, b if b is None else visible(b))
    for table in rebuilt.tables:
        _compare_shown(table, page.tables.get(table.key, []), compared, loose=loose)
    same = _same_drawer(page, rebuilt)
    for figure in rebuilt.figures:
        _compare_figure(figure, page.figures.get(figure.key, ""), compared, strokes=same)


def _compare_figure(figure: Figure, said: str, compared: Comparison, *, strokes: bool) -> None:
    """A figure with its caption, piece by piece: an element of the drawing, or what is written between two of them."""
    both = [PIECES.findall(UNTOLD.sub("", html)) for html in (said, figure_html(figure))]
    if not strokes:
        both = [[piece for piece in pieces if not piece.startswith("<")] for pieces in both]
    near, wrong = NEAR + 100 * compared.tolerance * STRETCH, 0
    for a, b in zip_longest(*both, fillvalue=""):
        if a == b:
            continue
        written = not (a or b).startswith("<")
        apart = 1e9 if written else _strokes_apart(a, b)
        if compared.tolerance and apart <= near:
            continue
        wrong += 1
        compared.largest = max(compared.largest, 0.0 if apart <= NEAR else 1.0)
        if wrong == 1:
            how = "as shown" if written else "as drawn"
            compared.lines.append(
                f"figure {figure.title!r}, {how}: says {visible(_apart(unescape(a), unescape(b)))}, recomputed "
                f"{visible(_apart(unescape(b), unescape(a)))}"
            )
    if wrong > 1:
        compared.lines.append(f"figure {figure.title!r}: {wrong} of {len(both[1]):,} of its pieces differ")


def _strokes_apart(said: str, found: str) -> float:
    """How far the coordinates of two elements are apart, if they differ in nothing else."""
    if COORDINATE.sub("0", said) != COORDINATE.sub("0", found):
        return 1e9
    pairs = zip(COORDINATE.findall(said), COORDINATE.findall(found), strict=True)
    return max((abs(float(a) - float(b)) for a, b in pairs), default=0.0)


def _compare_pictures(page: Page, compared: Comparison) -> None:
    """The pictures of mistakes against the checksums that were embedded when they were made."""
    expected = [digest for *_, digest in page.data["mistakes"] if isinstance(digest, str)]
    for place, (a, b) in enumerate(_both([picture_digest(uri) for uri in PICTURE.findall(page.html)], expected)):
        if a != b:
            compared.lines.append(f"picture {place + 1} of a mistake: it is not the one that was written")
            compared.largest = 1.0


def _compare_rest(page: Page, rebuilt: Report, compared: Comparison) -> None:
    """Whatever else stands in the page: it is as it would be written now."""
    notes = tuple(str(note) for note in page.data["notes"])
    said, found = (
        UNTOLD.sub("", PICTURE.sub(f'<div class="blank">{BLANK}</div>', html))
        for html in (page.html, render_report(replace(rebuilt, notes=notes)))
    )
    if said != found:
        compared.text("elsewhere on the page", _apart(said, found), _apart(found, said))


def _apart(text: str, other: str, around: int = 40) -> str:
    """A text around the first place where another one differs from it."""
    place = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    first, last = max(0, place - around), place + around
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}" or "nothing"


def _compare_shown(
    table: Table, rows: Sequence[Sequence[tuple[str, str]]], compared: Comparison, *, loose: bool
) -> None:
    for place, (cells, row) in enumerate(_both(rows, table.rows)):
        where = f"table {table.title!r}, row {table.name_of(place) if row is not None else place + 1}"
        if cells is None or row is None:
            compared.lines.append(f"{where}: it is {'not shown' if cells is None else 'not of its runs'}")
            continue
        for column, cell, shown in zip(table.columns, row.cells, cells, strict=False):
            main, below = column.shown(cell)
            expected = visible(main), visible(below)
            if shown != expected and not (loose and _nearly(shown, expected)):
                compared.lines.append(
                    f"{where}, column {column.label!r}: shows {_short(' '.join(filter(None, shown)))}, recomputed "
                    f"{_short(' '.join(filter(None, expected)))}"
                )
                compared.largest = 1.0


def _nearly(shown: tuple[str, str], expected: tuple[str, str]) -> bool:
    """Whether two cells differ by a unit in their last digit at most, as rounding may make them."""
    words = [" ".join(each).replace("*", "").replace(",", "").split() for each in (shown, expected)]
    if len(words[0]) != len(words[1]):
        return False
    for a, b in zip(*words, strict=True):
        try:
            digits = len(b.partition(".")[2])
            if abs(float(a) - float(b)) > 1.01 * 10.0**-digits:
                return False
        except ValueError:
            if a != b:
                return False
    return True


def _both(said: Sequence[Any], found: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of what is there and what should be; None where one has no more."""
    for place in range(max(len(said), len(found))):
        yield (said[place] if place < len(said) else None, found[place] if place < len(found) else None)


def _same_length(said: list[Any], found: list[Any]) -> tuple[list[Any], list[Any]]:
    return [*said, *[None] * (len(found) - len(said))], found


def _short(value: Any, most: int = 160) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= most else f"{text[:most]}…"
