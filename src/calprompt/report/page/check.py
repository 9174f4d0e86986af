"""Is a report true? Every number of it is computed again from stored logits and compared with what it says.

Numbers that were read from a table of results, of runs whose folders are not here, are compared with that table.
Figures are drawn again and compared element by element; another version of matplotlib draws other elements, so that
only their text is compared then. Pictures of mistakes are compared with their checksums. If all of that agrees, the
rest of the page is compared as text: headings, captions, styles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, Parameter
from calprompt.progress import Progress, silent
from calprompt.report.page.build import build_report
from calprompt.report.page.document import Figure, Page, Report, ReportSettings, picture_digest, read_page, to_data
from calprompt.report.page.render import BLANK, figure_html, render_report
from calprompt.report.table import Table
from calprompt.results.sources import read_source
from calprompt.runs.folder import RECORD
from calprompt.text import bullets, shorten, visible

HALF_DIGIT = 5.01e-7  # half of the last digit that is written
ROUNDING = 1e-5  # differences that another processor may make
STROKE_TOLERANCE = 0.0201  # points that a stroke may be off for the same reason: coordinates have two digits
POINTS_PER_PERCENT = 20.0  # points of a figure that a percentage point may take
PIECES = re.compile(r"<[^>]*>|[^<]+")
IDENTITY = ("name", "fingerprint", "logits")
COORDINATE = re.compile(r"-?\d+(?:\.\d+)?")
PICTURE = re.compile(r'<img src="(data:[^"]*)" alt="">')
UNCHECKED = re.compile(  # what may be another where the runs are now: commands, places, and the pictures
    r'<(pre|code) class="command">.*?</\1>|<details><summary>command</summary>.*?</details>'
    r'|<script type="application/json" id="data">.*?</script>',
    re.DOTALL,
)
HINT = (
    "another processor or another version of a library may change the last digits; allow for that with tolerance=0.001"
)


@dataclass(frozen=True)
class Checked:
    """What a check found."""

    path: Path  # of the report
    numbers: int  # how many were computed again and compared
    from_logits: int  # runs whose numbers were computed from stored logits
    from_tables: int  # runs whose numbers could only be compared with a table of results
    differences: tuple[str, ...] = ()  # what differs, a line each; empty if the report is true
    small: bool = False  # whether all differences are in the last digits of embedded numbers and of strokes
    # what drew its figures, if that is not what is installed here, so that only their text was compared
    drawn_by: str | None = None


@dataclass
class Comparison:
    """What was compared, and what differs."""

    tolerance: float  # how far numbers may be apart, as a fraction
    numbers: int = 0  # how many were compared
    lines: list[str] = field(default_factory=list)  # what differs, a line each
    largest: float = 0.0  # the largest difference of an embedded number; 1 for anything else that differs

    def differ(self, line: str) -> None:
        self.lines.append(line)
        self.largest = 1.0

    def number(self, what: str, actual: Any, found: float | None) -> None:
        """An embedded number, which may be off by the tolerance."""
        self.numbers += 1
        if actual is None and found is None:
            return
        apart = abs(actual - found) if isinstance(actual, int | float) and found is not None else 1.0
        if apart > HALF_DIGIT + self.tolerance:
            self.lines.append(f"{what}: says {actual}, recomputed {found}")
            self.largest = max(self.largest, apart)

    def tree(self, what: str, actual: Any, found: Any, verb: str = "says") -> None:
        """What is said or shown, by what to call it: names with values, lists of numbers, or anything else as text."""
        if isinstance(actual, dict) and isinstance(found, dict):
            for key in dict.fromkeys((*actual, *found)):
                label = key if isinstance(key, str) else key[0]
                self.tree(f"{what}{label}", actual.get(key), found.get(key), verb)
        elif actual is None or found is None:
            self.differ(f"{what}: it is {'missing' if actual is None else 'not of its runs'}")
        elif isinstance(actual, list) and isinstance(found, list):
            for end, pair in zip(("", ", lower end", ", upper end"), zip_longest(actual, found), strict=False):
                self.number(f"{what}{end}", *pair)
        elif actual != found and not (verb == "shows" and self.tolerance and _nearly(actual, found)):
            self.differ(f"{what}: {verb} {_short(actual)}, recomputed {_short(found)}")


def check_report(
    path: str | Path, *, runs: str | Path | None = None, tolerance: float = 0.0, progress: Progress = silent
) -> Checked:
    """Compute every number of a report again and compare it with what the report says and shows.

    Args:
        path: The report's HTML file.
        runs: Folder in which its run folders are now; where they were, unless given.
        tolerance: Largest allowed difference, in percentage points.
        progress: Progress callback.

    Raises:
        NotFoundError: if the report, or the runs or tables that it was made from, are not there.
        DamagedFileError: if it is not a report, or stored logits are not what was written.
    """
    path = Path(path).expanduser()
    page = read_page(path)
    data = page.data
    try:
        kept = {**data["settings"], "errors": tuple(data["settings"]["errors"])}
        settings = ReportSettings(**{**kept, "title": data["title"], "no_images": True})
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
        small=bool(compared.lines) and compared.largest < ROUNDING,
        drawn_by=None if _same_drawer(page, rebuilt) else str(data.get("drawn_by") or "another version of calprompt"),
    )


def compare_with(page: Page, rebuilt: Report, tolerance: float = 0.0) -> Comparison:
    """Compare what a page says and shows with the report that its runs give."""
    compared = Comparison(tolerance / 100)
    notes = tuple(str(note) for note in page.data["notes"])
    expected = Page(render_report(replace(rebuilt, notes=notes)), to_data(rebuilt))
    for actual, found in zip(page.data["runs"], expected.data["runs"], strict=False):
        if not actual.get("logits"):  # was read from a table, and may have its logits now
            found["logits"] = actual.get("logits")
    compared.tree("", _embedded(page, rebuilt), _embedded(expected, rebuilt))
    compared.tree("", _shown(page, rebuilt), _shown(expected, rebuilt), "shows")
    for figure in rebuilt.figures:
        _compare_figure(figure, page.figures.get(figure.key, ""), compared, strokes=_same_drawer(page, rebuilt))
    pictures = [digest for *_, digest in page.data["mistakes"] if isinstance(digest, str)]
    for place, (a, b) in enumerate(zip_longest(map(picture_digest, PICTURE.findall(page.html)), pictures), 1):
        if a != b:
            compared.differ(f"picture {place} of a mistake: it is not the one that was written")
    if not compared.lines and not tolerance and page.data["version"] == rebuilt.version and _same_drawer(page, rebuilt):
        shown = PICTURE.sub(f'<div class="blank">{BLANK}</div>', page.html)
        compared.tree("elsewhere on the page", *_apart(UNCHECKED.sub("", shown), UNCHECKED.sub("", expected.html)))
    return compared


def _embedded(page: Page, rebuilt: Report) -> dict[Any, Any]:
    """What is embedded in a page, by what to call it; rows and columns have their names in the recomputed report."""
    data = page.data
    tree: dict[Any, Any] = {
        f"{name}, sentence {i}": text for name in ("headline", "remarks") for i, text in enumerate(data[name], 1)
    }
    tree |= {f"run {i}": tuple(run.get(key) for key in IDENTITY) for i, run in enumerate(data["runs"], 1)}
    for i, (image, said, confidence, true, probability, *_) in enumerate(data["mistakes"], 1):
        numbers = {", confidence": confidence[:1], ", probability of the true class": probability[:1]}
        tree[f"mistake {i}"] = {"": (image, said, true), **numbers}
    for table in data["tables"]:
        columns = [(f", column {name!r}", at) for at, (name, _) in enumerate(table["columns"])]
        known = rebuilt.table(str(table["key"]))
        tree[f"table {table['key']!r}"] = {", columns": tuple(map(tuple, table["columns"]))} | {
            (f", row {_row_name(known, i)}", i): {", runs": tuple(runs), **dict(zip(columns, cells, strict=False))}
            for i, (cells, runs) in enumerate(table["rows"])
        }
    return tree


def _shown(page: Page, rebuilt: Report) -> dict[Any, Any]:
    """What is shown on a page outside of figures, by what to call it."""
    tree: dict[Any, Any] = {
        f"{name} {i}, as shown": text.removeprefix(BLANK)
        for name, texts in page.sentences.items()
        for i, text in enumerate(texts, 1)
    }
    for table in rebuilt.tables:
        columns = [(f", column {column.label!r}", at) for at, column in enumerate(table.columns)]
        tree[f"table {table.title!r}"] = {
            (f", row {_row_name(table, i)}", i): {
                column: " ".join(filter(None, cell)) for column, cell in zip(columns, row, strict=False)
            }
            for i, row in enumerate(page.tables.get(table.key, []))
        }
    return tree


def _row_name(table: Table | None, place: int) -> str:
    return table.name_of(place) if table is not None and place < len(table.rows) else f"{place + 1}"


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


def _compare_figure(figure: Figure, actual: str, compared: Comparison, *, strokes: bool) -> None:
    """A figure with its caption, piece by piece: an element of the drawing, or what is written between two of them."""
    both = [PIECES.findall(UNCHECKED.sub("", html)) for html in (actual, figure_html(figure))]
    if not strokes:
        both = [[piece for piece in pieces if not piece.startswith("<")] for pieces in both]
    near, wrong = STROKE_TOLERANCE + 100 * compared.tolerance * POINTS_PER_PERCENT, 0
    for a, b in zip_longest(*both, fillvalue=""):
        if a == b:
            continue
        written = not (a or b).startswith("<")
        apart = 1e9 if written else _strokes_apart(a, b)
        if compared.tolerance and apart <= near:
            continue
        wrong += 1
        compared.largest = max(compared.largest, 0.0 if apart <= STROKE_TOLERANCE else 1.0)
        if wrong == 1:
            how = "as shown" if written else "as drawn"
            actual_here, found_here = map(visible, _apart(unescape(a), unescape(b)))
            compared.lines.append(f"figure {figure.title!r}, {how}: says {actual_here}, recomputed {found_here}")
    if wrong > 1:
        compared.lines.append(f"figure {figure.title!r}: {wrong} of {len(both[1]):,} of its pieces differ")


def _strokes_apart(actual: str, found: str) -> float:
    """How far the coordinates of two elements are apart, if they differ in nothing else."""
    if COORDINATE.sub("0", actual) != COORDINATE.sub("0", found):
        return 1e9
    pairs = zip(COORDINATE.findall(actual), COORDINATE.findall(found), strict=True)
    return max((abs(float(a) - float(b)) for a, b in pairs), default=0.0)


def _apart(text: str, other: str, around: int = 40) -> tuple[str, str]:
    """Both texts around the first place where they differ."""
    pairs = enumerate(zip(text, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))
    first, last = max(0, place - around), place + around
    actual, found = (
        f"{'…' if first else ''}{each[first:last]}{'…' if last < len(each) else ''}" or "nothing"
        for each in (text, other)
    )
    return (actual, found) if text != other else ("", "")


def _nearly(shown: str, expected: str) -> bool:
    """Whether two texts differ by a unit in the last digit of their numbers at most, as rounding may make them."""
    words = [text.replace("*", "").replace(",", "").split() for text in (shown, expected)]
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


def _short(value: Any, most: int = 160) -> str:
    text = visible(str(value))
    return text if len(text) <= most else f"{text[:most]}…"
