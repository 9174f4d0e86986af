"""A report as one HTML file that needs nothing else: styles, script, figures, pictures and data are inside.

The page may load nothing: its policy allows the one style and the one script whose hashes it names, and pictures that
are written out in it. Every name is text and never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template

from calprompt.errors import SettingError
from calprompt.files import write_bytes
from calprompt.report.page.document import Figure, Mistake, Report, RunIdentity, to_data
from calprompt.report.table import Number, Row, Table
from calprompt.text import visible

WIDE = 620  # pixels from which on a figure takes a whole line
LONG_NAME = 24  # characters of a name that may be folded
BLANK = "no picture"
FIGURES, MISTAKES = "figures", "mistakes"
BEFORE = {"averages": FIGURES, "datasets": FIGURES, "confusions": MISTAKES}  # tables, and what comes before them


def write_report(report: Report, path: str | Path) -> Path:
    """Write the page; a file that is there is replaced in one step.

    Args:
        report: The report to write.
        path: The file to write, ending in .html.

    Raises:
        SettingError: if it ends in something else, or is a folder.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in (".html", ".htm"):
        raise SettingError(f"a report is written as .html, got {path.name!r}")
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, render_report(report).encode())
    return path


def render_report(report: Report) -> str:
    """The page as text."""
    style, script = _asset("report.css"), _asset("report.js")
    sections = [*_sections(report), ("", "", _notes(report))]
    return Template(_asset("report.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        version=html_text(report.version),
        title=html_text(report.title),
        headline="".join(f'<p class="headline">{html_text(line)}</p>\n' for line in report.headline),
        remarks="".join(f"<li>{html_text(line)}</li>" for line in report.remarks),
        links="".join(f'<li><a href="#{key}">{html_text(title)}</a></li>' for key, title, _ in sections if key),
        sections="".join(html for _, _, html in sections),
        data=_json(report),
    )


def _asset(name: str) -> str:
    return (files("calprompt.report.page") / "assets" / name).read_text(encoding="utf-8")


def _sections(report: Report) -> Iterable[tuple[str, str, str]]:
    """Identifier, title and HTML of every section, in the order of the page."""
    extra = {
        FIGURES: ("figures", "Figures", _figures(report.figures)) if report.figures else None,
        MISTAKES: ("mistakes", "Most confident mistakes", _mistakes(report)) if report.mistakes else None,
    }
    for table in report.tables:
        before = extra.pop(BEFORE.get(table.key, ""), None)
        if before is not None:
            yield before
        yield f"table-{table.key}", table.title, _table_html(table, report.runs)
    yield from (section for section in extra.values() if section is not None)


def _table_html(table: Table, runs: Sequence[RunIdentity]) -> str:
    """The table as a section of a page, with what its script and its readers need: filters, headings, explanations."""
    names = table.names
    texts = (cell for row in table.rows for cell in row.cells if isinstance(cell, str))
    fold = " fold" if any(len(text) > LONG_NAME for text in texts) else ""
    minor = "".join(f" m{place}" for place, column in enumerate(table.columns, 1) if column.minor)
    minor = f"{minor} few" if minor else ""
    filters = [
        f'<label>{html_text(column.label)}<select data-column="{place}"><option value="">all</option></select></label>'
        for place, column in enumerate(table.columns)
        if column.key in table.filters
    ]
    heads = [
        f"<th scope=col{' class=text' if place < names else ''}"
        + (f' title="{html_text(column.about)}">' if column.about else ">")
        + f"<button type=button disabled>{html_text(column.label)}</button></th>"
        for place, column in enumerate(table.columns)
    ]
    about = "".join(
        f"<dt>{html_text(column.label)}</dt><dd>{html_text(column.about)}</dd>"
        for column in table.columns
        if column.about
    )
    command = f'<pre class="command">{html_text(table.command)}</pre>' if table.command else ""
    return Template(_asset("table.html")).substitute(
        key=escape(table.key),
        title=html_text(table.title),
        filters="".join(filters),
        kinds=f"n{names}{fold}{minor}",
        caption=html_text(table.caption),
        heads="".join(heads),
        last="again" if table.key == "runs" else "from",
        rows="".join(_row_html(table, row, runs) for row in table.rows),
        about=about,
        command=command,
    )


def _row_html(table: Table, row: Row, runs: Sequence[RunIdentity]) -> str:
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        main, below = table.measure(row, column).shown(cell)
        tag, kind = ("th scope=row" if place == 0 else "td"), ""
        if isinstance(cell, Number):
            kind = " class=none" if cell.value is None else " class=clear" if main.endswith("*") else ""
        small = f"<small>{html_text(below)}</small>" if below else ""
        cells.append(f"<{tag}{kind}>{html_text(main)}{small}</{tag[:2]}>")
    identity = f' id="run-{row.runs[0]}"' if table.key == "runs" and row.runs else ""
    kind = f' class="{escape(row.kind)}"' if row.kind else ""
    return f"<tr{identity}{kind}>{''.join(cells)}<td class=from>{_origin(runs, table, row)}</td></tr>\n"


def html_text(text: str) -> str:
    """Text of any origin inside HTML."""
    return escape(visible(text))


def _origin(runs: Sequence[RunIdentity], table: Table, row: Row) -> str:
    """Which runs a row is from; in the table of runs, the command that makes it again."""
    if table.key == "runs":
        command = runs[row.runs[0]].command if row.runs else ""
        return f"<details><summary>command</summary><code>{html_text(command)}</code></details>" if command else ""
    if not row.runs:
        return ""
    what = runs[row.runs[0]].fingerprint[:6] if len(row.runs) == 1 else f"{len(row.runs)} runs"
    return f"<a href=#run-{row.runs[0]}>{html_text(what)}</a>"


def _figures(figures: Sequence[Figure]) -> str:
    shown = "".join(f"{figure_html(figure)}\n" for figure in figures)
    return f'<section id="figures"><h2>Figures</h2>\n<div class="figures">{shown}</div></section>\n'


def figure_html(figure: Figure) -> str:
    """A figure as a page has it, with its caption."""
    width = float(figure.svg.partition(' width="')[2].partition('"')[0] or 0)
    wide = " wide" if width > WIDE else ""
    command = f'<br><code class="command">{html_text(figure.command)}</code>' if figure.command else ""
    return (
        f'<figure id="figure-{escape(figure.key)}" class="drawn{wide}" data-title="{html_text(figure.title)}">'
        f'<div class="paper">{figure.svg}</div><figcaption><b>{html_text(figure.title)}.</b> '
        f"{html_text(figure.caption)} "
        f'<button type="button" hidden aria-label="Enlarge: {html_text(figure.title)}">Enlarge</button>{command}'
        "</figcaption></figure>"
    )


def _mistakes(report: Report) -> str:
    groups = []
    for group, members in groupby(report.mistakes, key=lambda each: each.group):
        items = "".join(f"<li>{_mistake(each)}</li>\n" for each in members)
        groups.append(f'<h3>{html_text(group)}</h3>\n<ul class="mistakes">{items}</ul>\n')
    return (
        '<section id="mistakes"><h2>Most confident mistakes</h2>\n<p>Where it was most sure and wrong: wrong labels, '
        f"classes that look alike, or what it has not learned.</p>\n{''.join(groups)}</section>\n"
    )


def _mistake(mistake: Mistake) -> str:
    picture = f'<div class="blank">{BLANK}</div>'
    if mistake.picture is not None:
        picture = f'<img src="{escape(mistake.picture)}" alt="">'
    said, true = (
        f"{100 * (number.value or 0):.1f}\N{NO-BREAK SPACE}%"
        for number in (mistake.confidence, mistake.true_probability)
    )
    return (
        f"{picture}<p>says <b class=said>{html_text(mistake.predicted)}</b>, {said}</p>"
        f"<p>is <b class=true>{html_text(mistake.true)}</b>, which got {true}</p><p>{html_text(mistake.image)}</p>"
    )


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    lines = "".join(f'<p class="note">{html_text(line)}</p>\n' for line in report.notes)
    return f'<section id="notes"><h2>What is not shown</h2>\n{lines}</section>\n'


def _json(report: Report) -> str:
    """The data of a report for a script element, in which "<" would end it."""
    text = json.dumps(to_data(report), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return visible(text)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
