"""Checking a report: one that says what its runs say passes, and of any other the wrong cell is named."""

from __future__ import annotations

import re
import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calprompt.cli import main
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, NotFoundError
from calprompt.report.page.build import build_report
from calprompt.report.page.check import UNCHECKED, check_report, compare_with, require_true
from calprompt.report.page.document import Page, read_page
from calprompt.report.page.render import write_report
from calprompt.results.sources import read_source
from report import reports

TABLES = ("datasets", "thresholds", "classes", "confusions", "results")


@cache
def html() -> str:
    return reports.written().read_text(encoding="utf-8")


@cache
def digits() -> list[int]:
    """Where digits of shown numbers are, in all tables."""
    return [place for table in TABLES for place in reports.cell_places(html(), table)]


@cache
def embedded_digits() -> list[int]:
    """Where digits of embedded numbers are."""
    start = html().index('"tables":', html().index('id="data"'))
    end = html().index('"figures":', start)
    rows = [m.start() + start for m in re.finditer(r"(?<=[\[,])-?\d+\.\d+(?=[,\]])", html()[start:end])]
    return [place for number in rows for place in range(number, number + 12) if html()[place].isdigit()][::3]


def read_altered(text: str) -> Page:
    path = reports.runs().parent / "altered.html"
    path.write_text(text, encoding="utf-8")
    return read_page(path)


def any_of(data: st.DataObject, places: list[int]) -> int:
    """One of many places; Hypothesis would look at each of them in a list."""
    return places[data.draw(st.sampled_from(range(len(places))))]


def test_check_passes_where_the_report_was_written() -> None:
    checked = check_report(reports.written())
    assert checked.differences == ()
    assert (checked.from_logits, checked.from_tables, checked.drawn_by) == (4, 0, None)
    assert checked.numbers > 500
    require_true(checked)


@settings(max_examples=30)
@given(st.data())
def test_check_notices_any_changed_digit(data: st.DataObject) -> None:
    place = any_of(data, digits())
    compared = compare_with(read_altered(reports.altered(html(), place)), reports.report())
    assert len(compared.lines) == 1
    assert re.match(r"table '.*', row .*, column '.*': shows .*, recomputed ", compared.lines[0])


@settings(max_examples=30)
@given(st.data())
def test_check_notices_any_changed_embedded_digit(data: st.DataObject) -> None:
    place = any_of(data, embedded_digits())
    compared = compare_with(read_altered(reports.altered(html(), place)), reports.report())
    assert len(compared.lines) == 1
    assert re.match(r"table '.*', row .*, column '.*'(, \w+ end)?: says .*, recomputed ", compared.lines[0])


@cache
def strokes() -> list[int]:
    """Where digits of paths are, in all figures."""
    found = re.finditer(r' d="([^"]*)"', html()[: html().index('id="data"')])
    return [place for path in found for place in range(*path.span(1)) if html()[place].isdigit()]


@cache
def anywhere() -> list[int]:
    """Everywhere but in commands and embedded data."""
    skipped = [found.span() for found in UNCHECKED.finditer(html())]
    places, start = [], 0
    for first, last in [*skipped, (len(html()), 0)]:
        places += [place for place in range(start, first) if html()[place].isalnum()]
        start = last
    return places


@settings(max_examples=25)
@given(st.data())
def test_check_notices_any_changed_stroke(data: st.DataObject) -> None:
    place = any_of(data, strokes())
    compared = compare_with(read_altered(reports.altered(html(), place)), reports.report())
    assert len(compared.lines) == 1
    assert re.match(r"figure '.*', as drawn: says .*, recomputed ", compared.lines[0])


@settings(max_examples=25)
@given(st.data())
def test_check_notices_any_changed_letter(data: st.DataObject) -> None:
    """Headings, captions, styles and pictures too."""
    place = any_of(data, anywhere())
    other = "x" if html()[place] != "x" else "y"
    assert compare_with(read_altered(html()[:place] + other + html()[place + 1 :]), reports.report()).lines


def test_check_tolerates_small_shifts_of_strokes() -> None:
    """The last digit of a coordinate, as another processor may round it; never more."""
    path = re.search(r' d="M (\d+\.\d)(\d) ', html())
    assert path is not None
    last, first = reports.altered(html(), path.start(2)), reports.altered(html(), path.start(1))
    exact = compare_with(read_altered(last), reports.report())
    assert exact.lines
    assert exact.largest < 1e-5
    assert not compare_with(read_altered(last), reports.report(), tolerance=0.001).lines
    assert compare_with(read_altered(first), reports.report(), tolerance=0.001).lines


def test_figures_of_another_matplotlib_are_compared_by_their_text() -> None:
    """Its strokes cannot be; the check says so."""
    drawer = f"matplotlib {version('matplotlib')}"
    other = html().replace(f'"drawn_by":"{drawer}"', '"drawn_by":"matplotlib 1.0"')
    assert other != html()
    assert not compare_with(read_altered(reports.altered(other, strokes()[0])), reports.report()).lines
    written = re.search(r"ECE (\d+)\.\d+ % \(10 bins\)</text>", other)
    assert written is not None
    assert compare_with(read_altered(reports.altered(other, written.start(1))), reports.report()).lines
    page = reports.runs().parent / "drawn-by.html"
    page.write_text(other, encoding="utf-8")
    assert check_report(page).drawn_by == "matplotlib 1.0"


def test_check_notices_changed_sentences_mistakes_figures_and_rows() -> None:
    report = reports.report()
    headline = re.search(r"\((\d+\.\d\d) to ", report.headline[0])
    assert headline is not None
    changed = html().replace(headline[0], headline[0].replace(headline[1], "99.99"), 1)
    assert any(line.startswith("headline 1, as shown") for line in compare_with(read_altered(changed), report).lines)
    said = re.search(r"says <b class=said>[^<]*</b>, (\d+\.\d)", html())
    assert said is not None
    lines = compare_with(read_altered(reports.altered(html(), said.end() - 1)), report).lines
    assert any(line.startswith("mistake 1, as shown") for line in lines)
    figure = re.search(r"ECE (\d+)\.\d+ % \(10 bins\)</text>", html())
    assert figure is not None
    lines = compare_with(read_altered(reports.altered(html(), figure.end(1) - 1)), report).lines
    assert any(line.startswith("figure ") for line in lines)
    row = re.search(r"<tr><th scope=row>photos.*?</tr>\n", html())
    assert row is not None
    assert compare_with(read_altered(html().replace(row[0], "", 1)), report).lines


def test_the_command_names_the_cell(capsys: pytest.CaptureFixture[str]) -> None:
    place = reports.cell_places(html(), "results")[2]
    path = reports.runs().parent / "wrong.html"
    path.write_text(reports.altered(html(), place), encoding="utf-8")
    assert main(["report", "--check", str(path), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "does not match its runs:" in error
    assert "table 'All results', row photos <b>, " in error
    assert main(["report", "--check", str(reports.written()), "--quiet"]) == 0
    assert "is true" in capsys.readouterr().out


def test_runs_that_moved_are_found_with_runs(tmp_path: Path) -> None:
    shutil.copy(reports.written(), tmp_path / "report.html")
    with pytest.raises(NotFoundError, match=r"4 of 4 runs of .* are not where they were .*runs=DIR"):
        check_report(tmp_path / "report.html")
    shutil.copytree(reports.runs(), tmp_path / "moved")
    assert check_report(tmp_path / "report.html", runs=tmp_path / "moved").differences == ()
    shutil.copytree(reports.runs(), tmp_path / "runs")  # beside the report, as it was
    assert check_report(tmp_path / "report.html").differences == ()


def test_check_notices_other_logits(tmp_path: Path) -> None:
    shutil.copy(reports.written(), tmp_path / "report.html")
    shutil.copytree(reports.runs(), tmp_path / "runs")
    first, second = (tmp_path / "runs" / folder.name / "logits.safetensors" for folder in reports.folders()[:2])
    shutil.copy(first, second)
    with pytest.raises(CalpromptError):
        require_true(check_report(tmp_path / "report.html"))


def test_a_report_of_a_table_is_compared_with_the_table_and_with_logits(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_bytes(read_source(reports.runs()).table.to_csv())
    path = write_report(build_report(read_source(table), reports.SETTINGS, near=tmp_path), tmp_path / "report.html")
    checked = check_report(path)
    assert (checked.differences, checked.from_logits, checked.from_tables) == ((), 0, 4)
    again = check_report(path, runs=reports.runs())
    assert (again.differences, again.from_logits, again.from_tables) == ((), 4, 0)
    text = table.read_text()
    number = re.search(r"0\.\d{6,}", text)
    assert number is not None
    table.write_text(text.replace(number[0], "0.123456789", 1))
    assert check_report(path).differences
    table.unlink()
    with pytest.raises(NotFoundError, match=r"results.csv, which .* was made from, is not there"):
        check_report(path)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("<p>hello</p>", DamagedFileError, "there are no data in it"),
        ('<script type="application/json" id="data">{</script>', DamagedFileError, "its data are not JSON"),
        ('<script type="application/json" id="data">[]</script>', DamagedFileError, "no format number"),
        ('<script type="application/json" id="data">{"format":99}</script>', NewerFormatError, "update calprompt"),
        ('<script type="application/json" id="data">{"format":1}</script>', DamagedFileError, "have no 'title'"),
    ],
)
def test_check_rejects_files_that_are_no_reports(
    content: str, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(content)
    with pytest.raises(kind, match=message):
        check_report(path)


def test_check_of_a_missing_report_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--check", str(tmp_path / "none.html")]) == 2
    assert f"there is no report at {tmp_path / 'none.html'}" in capsys.readouterr().err
    assert main(["report", "runs", "--check", "x.html"]) == 2
    assert "--check takes one report" in capsys.readouterr().err
