"""A report as one HTML file that needs nothing else: styles, script, figures, pictures and data are inside.

The page may load nothing: its policy allows the one style and the one script whose hashes it names, and pictures that
are written out in it. Every name is text and never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from calprompt.errors import SettingError
from calprompt.files import write_bytes
from calprompt.report.page.document import Figure, Mistake, Report, RunIdentity, to_data
from calprompt.report.table import Row, Table
from calprompt.report.writers import html_text, to_html
from calprompt.text import visible

WIDE = 620  # pixels from which on a figure takes a whole line
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
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    parts = list(_sections(report))
    links = "".join(f'<li><a href="#{key}">{html_text(title)}</a></li>' for key, title, _ in parts)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<meta name="generator" content="calprompt {html_text(report.version)}">\n',
            f"<title>{html_text(report.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            '<a class="skip" href="#main">Skip to the results</a>\n<header>\n<div class="top"><div>',
            f"<p>calprompt report</p><h1>{html_text(report.title)}</h1></div>",
            '<button type="button" id="theme" hidden>Theme: auto</button></div>\n',
            *(f'<p class="headline">{html_text(line)}</p>\n' for line in report.headline),
            '<ul class="remarks">',
            *(f"<li>{html_text(line)}</li>" for line in report.remarks),
            f'</ul>\n<nav aria-label="Contents"><ul>{links}</ul></nav>\n</header>\n<main id="main">\n',
            *(html for _, _, html in parts),
            _notes(report),
            "</main>\n<footer>",
            f"<p>Written by calprompt {html_text(report.version)}. Every number can be computed again from the stored ",
            "logits: <code>calprompt report --check FILE</code>, with <code>--runs DIR</code> if the runs have ",
            "moved.</p>",
            '</footer>\n<dialog id="enlarged"><button type="button">Close</button><div class="paper"></div></dialog>\n',
            f'<script type="application/json" id="data">{_json(report)}</script>\n',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


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
        yield f"table-{table.key}", table.title, to_html(table, partial(_origin, report.runs))
    yield from (section for section in extra.values() if section is not None)


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
    wide = " wide" if _width(figure.svg) > WIDE else ""
    command = f'<br><code class="command">{html_text(figure.command)}</code>' if figure.command else ""
    return (
        f'<figure id="figure-{escape(figure.key)}" class="drawn{wide}" data-title="{html_text(figure.title)}">'
        f'<div class="paper">{figure.svg}</div><figcaption><b>{html_text(figure.title)}.</b> '
        f"{html_text(figure.caption)} "
        f'<button type="button" hidden aria-label="Enlarge: {html_text(figure.title)}">Enlarge</button>{command}'
        "</figcaption></figure>"
    )


def _width(svg: str) -> float:
    return float(svg.partition(' width="')[2].partition('"')[0] or 0)


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


def _asset(name: str) -> str:
    return (files("calprompt.report.page") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
