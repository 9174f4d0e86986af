"""One definition of a method and of a cell: a number is the same wherever it is shown, and settings are never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import samples
from calprompt.cli import main
from calprompt.demo import DemoSettings, run_demo
from calprompt.errors import DataError
from calprompt.paper.tables import make_tables
from calprompt.report.figures import draw
from calprompt.report.page.build import build_report
from calprompt.report.page.document import ReportSettings, read_page
from calprompt.results.methods import Cells, methods_of
from calprompt.results.sources import ReportSource, read_source
from calprompt.results.table import Table
from calprompt.runs.execute import run

RECIPE = "tuner: coop\noptions: {context: 2}\nshots: 4\nviews: 2\nbatch_size: 8\nlr: 0.01\nepochs: 2\n"
ROW = {"tuner": "coop", "loss": "ce", "model": "tuned", "calibrator": "none", "dataset": "toys", "shots": 16}
OTHER = "a drawing of a {}."


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demonstration of a few seconds: two methods with two seeds each."""
    folder = tmp_path_factory.mktemp("demo")
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE)
    settings = DemoSettings(
        data=(str(samples.pictures()),), seeds=2, resamples=20, backbone=str(samples.backbone()), recipe=str(recipe)
    )
    run_demo(settings, folder / "demo")
    return folder / "demo"


def page_cells(table: dict[str, Any], metric: str) -> dict[tuple[str, str], float]:
    """A metric by split and method, from the data of a page."""
    at = {key: place for place, (key, _) in enumerate(table["columns"])}
    rows = [cells for cells, _ in table["rows"]]
    return {(row[at["split"]], row[at["method"]]): row[at[metric]][0] for row in rows if row[at[metric]]}


@pytest.mark.parametrize("metric", ["accuracy", "ece"])
def test_one_cell_has_one_value(demo: Path, metric: str, tmp_path: Path, capsys: Any) -> None:
    """Through results, table, figure, report, compare and the table of the demo."""
    runs = demo / "runs"
    source = read_source(runs)
    found: dict[str, dict[str, float]] = {}
    assert main(["compare", str(runs), "--resamples", "5", "--json", str(tmp_path / "compared.json")]) == 0
    for name, file in (("compare", tmp_path / "compared.json"), ("demo", demo / "table.json")):
        rows = [
            row for row in json.loads(file.read_text())["rows"] if (row["split"], row["metric"]) == ("novel", metric)
        ]
        found[name] = {row["method"]: row["value"] for row in rows}
    page = read_page(demo / "report.html").data["tables"]
    cells = page_cells(next(table for table in page if table["key"] == "datasets"), metric)
    found["report"] = {method: value for (split, method), value in cells.items() if split == "novel"}
    table = next(each for each in make_tables("main", source) if each.split == "novel")
    names = {"CoOp": "CoOp", "TCPT": "CoOp + TCPT", "Zero-shot": "zero-shot"}
    lines = [line for line in table.rows if line.measure is not None and line.measure.key == metric]
    found["table"] = {names[line.label]: (line.numbers[0].value or 0) / 100 for line in lines}
    axes = draw("shots", source, metric="ece").axes
    novel = axes[1] if metric == "accuracy" else axes[3]
    curves = {bars.get_label(): bars.lines[0].get_ydata()[0] / 100 for bars in novel.containers}
    found["figure"] = {"CoOp": curves["cross-entropy"], "CoOp + TCPT": curves["TCPT"]}
    capsys.readouterr()
    assert main(["results", str(runs), "--filter", "split=novel"]) == 0
    for line in capsys.readouterr().out.splitlines():
        if " tuned " in line:
            words, shown = line.split(), found.setdefault("results", {})
            _, accuracy, ece = words[words.index("novel") + 1 :][:3]  # after how many rows it is the mean of
            value = {"accuracy": accuracy, "ece": ece}[metric]
            shown["CoOp" if " ce " in line else "CoOp + TCPT"] = float(value) / 100
    assert found.keys() == {"results", "table", "figure", "report", "compare", "demo"}
    for method, loss in (("CoOp", "ce"), ("CoOp + TCPT", "tcpt")):
        value = mean(each.metrics["novel"][metric] for each in source.runs if each.record["config"]["loss"] == loss)
        for where, values in found.items():
            digits = {"results": 5.1e-5, "report": 5.1e-7}.get(where, 1e-9)  # as many as are written there
            assert values[method] == pytest.approx(value, abs=digits), (where, method)


def known(source: ReportSource) -> ReportSource:
    """The rows of a source with plain numbers: cross-entropy is right on 47 of 100 images."""
    numbers = {"ce": 0.47, "tcpt": 0.55}
    rows = tuple({**row, "accuracy": numbers[row["loss"]], "images": 100} for row in source.measured.rows)
    return ReportSource("known", Table(rows))


def doubled(source: ReportSource) -> ReportSource:
    """The same results, and those of cross-entropy once more: under another template, 20 points lower."""
    more = tuple(
        {
            **row,
            "template": OTHER,
            "accuracy": row["accuracy"] - 0.2,
            **{name: f"other-{row[name]}" for name in ("run", "fingerprint")},
        }
        for row in source.table.rows
        if row["loss"] == "ce" and row["model"] == "tuned"
    )
    return ReportSource("doubled", Table((*source.table.rows, *more)))


def test_settings_are_distinguished_wherever_results_are_shown(demo: Path, tmp_path: Path, capsys: Any) -> None:
    plain = known(read_source(demo / "runs"))
    both = doubled(plain)
    quick = ReportSettings(bootstrap=5, no_figures=True)
    (alone, other), mixed = ("CoOp (template default)", f"CoOp (template '{OTHER}')"), build_report(both, quick)
    expected = build_report(plain, quick)
    tables = [next(each for each in report.tables if each.key == "datasets") for report in (expected, mixed)]
    before, after = (
        {(row.cells[1], row.cells[2]): row.cells[4].value for row in table.rows}  # type: ignore[union-attr]
        for table in tables
    )
    for split in ("base", "novel"):
        assert after[split, alone] == before[split, "CoOp"]
        assert after[split, other] == pytest.approx(before[split, "CoOp"] - 0.2)
        assert after[split, "CoOp + TCPT"] == before[split, "CoOp + TCPT"]
    assert mixed.headline[0].replace(alone, "CoOp") == expected.headline[0]
    assert f"the ECE of {alone} " in mixed.headline[0]
    assert "its accuracy (47.00 to" in mixed.headline[0]
    novel = make_tables("main", both)[1]
    labels = list(dict.fromkeys(line.label for line in novel.rows))
    assert labels == ["Zero-shot", alone, other, "TCPT"]
    legend = draw("cost", both).legends[0].get_texts()
    assert [text.get_text() for text in legend][:2] == [
        name.replace("CoOp", "cross-entropy") for name in (alone, other)
    ]
    with pytest.raises(DataError, match=r"template default or 'a drawing of a \{\}\.'"):
        draw("shots", both)
    (tmp_path / "both.csv").write_bytes(both.table.to_csv())
    assert main(["results", str(tmp_path / "both.csv")]) == 0
    assert OTHER.split()[1] in capsys.readouterr().out


def test_runs_under_two_templates_compare_as_two_methods(tmp_path: Path) -> None:
    config = samples.config(samples.pictures(), loss="ce", epochs=1, options={"context": 2})
    for template in (None, OTHER):
        run(replace(config, template=template), tmp_path / "runs")
    out = tmp_path / "compared.json"
    assert main(["compare", str(tmp_path / "runs"), "--zero-shot", "--resamples", "5", "--json", str(out)]) == 0
    methods = json.loads(out.read_text())["settings"]["methods"]
    templates = ("default", f"'{OTHER}'")
    assert set(methods) == {f"{name} (template {each})" for name in ("CoOp", "zero-shot") for each in templates}


def test_settings_of_data_or_run_do_not_distinguish_methods() -> None:
    rows = [{**ROW, "seed": seed, "device": device, "chunk": seed} for seed, device in ((1, "cpu"), (2, "cuda"))]
    rows += [{**ROW, "dataset": "pets", "template": "a {}, a pet.", "classes_file": "pets.json"}]
    assert {method.name for method in methods_of(rows)} == {"CoOp"}
    assert len(set(methods_of(rows))) == 1
    more = methods_of([*rows, {**ROW, "template": "a {}."}])
    assert len(set(more)) == 3, "on toys there are two templates, so that of pets is one more"


def test_equal_settings_in_other_words_are_one_method() -> None:
    words = ({"options": '{"average":[15,1]}'}, {"options": '{"average":[15.0,1]}'})
    files = ({"imports": '["/a/mine.py"]'}, {"imports": '["/b/mine.py"]'})
    sums = ({"loss": "penalty"}, {"loss": "ce + 10*penalty"})
    for pair in (words, files, sums):
        assert len(set(methods_of([{**ROW, **each} for each in pair]))) == 1, pair
    apart = methods_of([{**ROW, "options": '{"context":4}'}, {**ROW, "options": '{"context":16}'}])
    assert [method.name for method in apart] == ["CoOp (context 4)", "CoOp (context 16)"]


def test_zero_shot_rows_with_other_numbers_or_templates_are_separate() -> None:
    untuned = {**ROW, "model": "zero-shot", "split": "base", "ece": 0.1}
    same = methods_of([untuned, {**untuned, "tuner": "maple", "loss": "tcpt", "shots": 4}])
    assert [method.name for method in same] == ["zero-shot"] * 2
    apart = methods_of([untuned, {**untuned, "tuner": "maple", "ece": 0.2}])
    assert [method.name for method in apart] == ["zero-shot (tuner coop)", "zero-shot (tuner maple)"]
    named = methods_of([untuned, {**untuned, "template": "a {}."}])
    assert [method.name for method in named] == ["zero-shot (template default)", "zero-shot (template 'a {}.')"]


def test_cell_rejects_rows_of_another_method() -> None:
    first, second = methods_of([ROW, {**ROW, "shots": 4}])
    cells: Cells[str] = Cells()
    cells.add("toys", {**ROW, "seed": 1, "fingerprint": "a"}, first)
    cells.add("toys", {**ROW, "seed": 1, "fingerprint": "a"}, first)
    cells.add("toys", {**ROW, "seed": 2, "fingerprint": "b"}, first)
    assert list(cells.rows["toys"]) == [1, 2]
    with pytest.raises(DataError, match=r"differ in their settings \(shots 16 or 4\) and are not averaged"):
        cells.add("toys", {**ROW, "seed": 3, "shots": 4}, second)
    again = {**ROW, "seed": 1, "fingerprint": "c", "run": "x"}
    cells.add("toys", again, first)  # with the same numbers, or none
    with pytest.raises(DataError, match="seed 1 have other numbers and the same settings but for images or weights"):
        cells.add("toys", {**again, "ece": 0.1}, first)
    with pytest.raises(DataError, match=r"but for device None or cuda: None and x"):
        cells.add("toys", {**again, "ece": 0.1, "device": "cuda"}, first)
