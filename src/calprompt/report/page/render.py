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

from calprompt.errors import SettingError
from calprompt.files import write_bytes
from calprompt.report.page.document import Figure, Mistake, Number, Report, Row, RunIdentity, Table, to_data
from calprompt.text import visible

WIDE = 620  # pixels from which on a figure takes a whole line
BLANK = "no picture"
FIGURES, MISTAKES = "figures", "mistakes"
BEFORE = {"averages": FIGURES, "datasets": FIGURES, "confusions": MISTAKES}  # tables, and what comes before them
LONG = 24  # characters of a name that may be folded


def write_report(report: Report, path: str | Path) -> Path:
    """Write the page; a file that is there is replaced in one step.

    Args:
        report: What to write.
        path: Of the file, which ends in .html.

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
    """The page as text.

    Args:
        report: What it shows.
    """
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    parts = list(_sections(report))
    links = "".join(f'<li><a href="#{key}">{_text(title)}</a></li>' for key, title, _ in parts)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<meta name="generator" content="calprompt {_text(report.version)}">\n',
            f"<title>{_text(report.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            '<a class="skip" href="#main">Skip to the results</a>\n<header>\n<div class="top"><div>',
            f"<p>calprompt report</p><h1>{_text(report.title)}</h1></div>",
            '<button type="button" id="theme" hidden>Theme: auto</button></div>\n',
            *(f'<p class="headline">{_text(line)}</p>\n' for line in report.headline),
            '<ul class="remarks">',
            *(f"<li>{_text(line)}</li>" for line in report.remarks),
            f'</ul>\n<nav aria-label="Contents"><ul>{links}</ul></nav>\n</header>\n<main id="main">\n',
            *(html for _, _, html in parts),
            _notes(report),
            "</main>\n<footer>",
            f"<p>Written by calprompt {_text(report.version)}. Every number can be computed again from the stored ",
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
        yield f"table-{table.key}", table.title, _table(table, report.runs)
    yield from (section for section in extra.values() if section is not None)


def _table(table: Table, runs: Sequence[RunIdentity]) -> str:
    key, names = escape(table.key), table.names
    texts = (cell for row in table.rows for cell in row.cells if isinstance(cell, str))
    fold = " fold" if any(len(text) > LONG for text in texts) else ""
    minor = "".join(f" m{place}" for place, column in enumerate(table.columns, 1) if column.minor)
    minor = f"{minor} few" if minor else ""
    chosen = [
        f'<label>{_text(column.label)}<select data-column="{place}"><option value="">all</option></select></label>'
        for place, column in enumerate(table.columns)
        if column.key in table.filters
    ]
    heads = [
        f"<th scope=col{' class=text' if place < names else ''}{_title(column.about)}>"
        f"<button type=button disabled>{_text(column.label)}</button></th>"
        for place, column in enumerate(table.columns)
    ]
    about = "".join(
        f"<dt>{_text(column.label)}</dt><dd>{_text(column.about)}</dd>" for column in table.columns if column.about
    )
    command = f'<pre class="command">{_text(table.command)}</pre>' if table.command else ""
    return "".join(
        (
            f'<section id="table-{key}" aria-labelledby="title-{key}">\n',
            f'<h2 id="title-{key}">{_text(table.title)}</h2>\n',
            f'<div class="tools" hidden>{"".join(chosen)}',
            '<label>find<input type="search" autocomplete="off" placeholder="any words"></label>',
            '<p class="count" role="status"></p></div>\n',
            f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(table.title)}">',
            f'<table class="n{names}{fold}{minor}"><caption><span>{_text(table.caption)}</span></caption>\n',
            f"<thead><tr>{''.join(heads)}",
            f"<th scope=col class=text>{'again' if key == 'runs' else 'from'}</th></tr></thead>\n<tbody>\n",
            *(_row(table, row, runs) for row in table.rows),
            "</tbody></table></div>\n",
            '<p class="more" hidden><button type="button"></button></p>\n',
            f"<details><summary>How these numbers are computed</summary><dl>{about}</dl>{command}</details>\n",
            "</section>\n",
        )
    )


def _row(table: Table, row: Row, runs: Sequence[RunIdentity]) -> str:
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
        main, below = column.shown(cell)
        tag, kind = ("th scope=row", "") if place == 0 else ("td", "")
        if isinstance(cell, Number):
            kind = " class=none" if cell.value is None else " class=clear" if main.endswith("*") else ""
        small = f"<small>{_text(below)}</small>" if below else ""
        cells.append(f"<{tag}{kind}>{_text(main)}{small}</{tag[:2]}>")
    identity = f' id="run-{row.runs[0]}"' if table.key == "runs" and row.runs else ""
    kind = f' class="{escape(row.kind)}"' if row.kind else ""
    return f"<tr{identity}{kind}>{''.join(cells)}<td class=from>{_origin(table, row, runs)}</td></tr>\n"


def _origin(table: Table, row: Row, runs: Sequence[RunIdentity]) -> str:
    """Which runs a row is from; in the table of runs, the command that makes it again."""
    if table.key == "runs":
        command = runs[row.runs[0]].command if row.runs else ""
        return f"<details><summary>command</summary><code>{_text(command)}</code></details>" if command else ""
    if not row.runs:
        return ""
    what = runs[row.runs[0]].fingerprint[:6] if len(row.runs) == 1 else f"{len(row.runs)} runs"
    return f"<a href=#run-{row.runs[0]}>{_text(what)}</a>"


def _figures(figures: Sequence[Figure]) -> str:
    shown = "".join(f"{figure_html(figure)}\n" for figure in figures)
    return f'<section id="figures"><h2>Figures</h2>\n<div class="figures">{shown}</div></section>\n'


def figure_html(figure: Figure) -> str:
    """A figure as a page has it, with its caption."""
    wide = " wide" if _width(figure.svg) > WIDE else ""
    command = f'<br><code class="command">{_text(figure.command)}</code>' if figure.command else ""
    return (
        f'<figure id="figure-{escape(figure.key)}" class="drawn{wide}" data-title="{_text(figure.title)}">'
        f'<div class="paper">{figure.svg}</div><figcaption><b>{_text(figure.title)}.</b> {_text(figure.caption)} '
        f'<button type="button" hidden aria-label="Enlarge: {_text(figure.title)}">Enlarge</button>{command}'
        "</figcaption></figure>"
    )


def _width(svg: str) -> float:
    return float(svg.partition(' width="')[2].partition('"')[0] or 0)


def _mistakes(report: Report) -> str:
    groups = []
    for group, members in groupby(report.mistakes, key=lambda each: each.group):
        items = "".join(f"<li>{_mistake(each)}</li>\n" for each in members)
        groups.append(f'<h3>{_text(group)}</h3>\n<ul class="mistakes">{items}</ul>\n')
    return (
        '<section id="mistakes"><h2>Most confident mistakes</h2>\n<p>Where it was most sure and wrong: wrong labels, '
        f"classes that look alike, or what it has not learned.</p>\n{''.join(groups)}</section>\n"
    )


def _mistake(mistake: Mistake) -> str:
    picture = f'<div class="blank">{BLANK}</div>'
    if mistake.picture is not None:
        picture = f'<img src="{escape(mistake.picture)}" alt="">'
    said, true = _probabilities(mistake)
    return (
        f"{picture}<p>says <b class=said>{_text(mistake.said)}</b>, {said}</p>"
        f"<p>is <b class=true>{_text(mistake.true)}</b>, which got {true}</p><p>{_text(mistake.image)}</p>"
    )


def _probabilities(mistake: Mistake) -> tuple[str, str]:
    said, true = (
        f"{100 * (number.value or 0):.1f}\N{NO-BREAK SPACE}%"
        for number in (mistake.confidence, mistake.true_probability)
    )
    return said, true


def mistake_text(mistake: Mistake) -> str:
    """What a page writes about a mistake."""
    said, true = _probabilities(mistake)
    return f"says {mistake.said}, {said}is {mistake.true}, which got {true}{mistake.image}"


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    lines = "".join(f'<p class="note">{_text(line)}</p>\n' for line in report.notes)
    return f'<section id="notes"><h2>What is not shown</h2>\n{lines}</section>\n'


def _title(about: str) -> str:
    return f' title="{_text(about)}"' if about else ""


def _text(text: str) -> str:
    """Text of any origin inside HTML."""
    return escape(visible(text))


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
