"""Reports to test: runs of a second on pictures whose classes have hostile names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import samples
from calprompt.report.page.build import build_report
from calprompt.report.page.document import Report, ReportSettings
from calprompt.report.page.render import write_report
from calprompt.results.sources import read_source
from calprompt.runs.execute import run

HOSTILE = (
    "<script>alert(1)",
    '"><img src=x onerror=alert(2)>',
    "cat & dog",
    "{{7*7}}",
    "</script><b>bold",
    "'; drop table",
)
NAMES = tuple(name.replace("/", "\N{DIVISION SLASH}") for name in HOSTILE)  # a folder's name has no slash
SETTINGS = ReportSettings(bootstrap=40, mistakes=3)


@cache
def photos() -> Path:
    return samples.picture_folder(samples.shared() / "report" / "photos <b>", NAMES)


@cache
def runs() -> Path:
    """Two losses with two seeds each."""
    out = samples.shared() / "report" / "runs"
    for loss in ("ce", "tcpt"):
        for seed in (1, 2):
            run(samples.config(photos(), loss=loss, seed=seed, validation="train:0.2", epochs=2), out)
    return out


def folders() -> list[Path]:
    return sorted(path.parent for path in runs().glob("*/run.json"))


@cache
def report() -> Report:
    return build_report(read_source(runs(), calibrators=["temperature"]), SETTINGS, near=runs().parent)


@cache
def written() -> Path:
    """The page, beside its runs."""
    report_file = runs().parent / "report.html"
    write_report(report(), report_file)
    return report_file


def altered(text: str, place: int) -> str:
    """The same with another digit at a place."""
    assert text[place].isdigit(), text[place - 5 : place + 5]
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def cell_places(html: str, table: str) -> list[int]:
    """Where the digits of the numbers of a table are."""
    start = html.index(f'<section id="table-{table}"')
    body = html[start : html.index("</tbody>", start)]
    places = []
    for match in re.finditer(r"<td(?: class=clear)?>([^<]*)<(?:small>([^<]*)<)?", body):
        for group in (1, 2):
            if match[group]:
                places += [start + match.start(group) + i for i, sign in enumerate(match[group]) if sign.isdigit()]
    return places


def cells(table: Any) -> list[dict[str, Any]]:
    """Rows of a table of a report, by column."""
    return [dict(zip((column.key for column in table.columns), row.cells, strict=True)) for row in table.rows]
