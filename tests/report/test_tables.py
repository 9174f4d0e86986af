"""Tables in the layout of the paper: every number is that of the rows, and every rendering shows the same numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, variance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from calprompt.cli import main
from calprompt.errors import CalpromptError, DataError, NotFoundError, SettingError, UnknownNameError
from calprompt.paper.published import metric_measure
from calprompt.paper.tables import TABLES, make_tables
from calprompt.paper.values import collect
from calprompt.report.table import PLAIN, Column, Number, Row, TableOptions, rank_values
from calprompt.report.table import Table as ShownTable
from calprompt.report.writers import cell_text, print_table, to_csv, to_latex, to_markdown
from calprompt.results.sources import ReportSource, read_source
from calprompt.results.table import Table
from calprompt.sweep.sweep_file import read_sweep
from report import rows as sample_rows

LATEX_ROW = re.compile(r"(?<!\\)&")


def source(name: str, metric: sample_rows.Metric = sample_rows.chance) -> ReportSource:
    """All results of a sweep of the package."""
    sweep = read_sweep(name)
    return ReportSource(name, sample_rows.sweep_rows(sweep, metric), sweeps=(sweep,))


def without(found: ReportSource, **wanted: Any) -> ReportSource:
    """The source without the results of some runs, which are then missing."""

    def is_meant(row: Mapping[str, Any]) -> bool:
        return all(row.get(name) == value for name, value in wanted.items())

    def emptied(row: Mapping[str, Any]) -> dict[str, Any]:
        metrics = {*sample_rows.METRICS, *sample_rows.TIMES, "model", "calibrator", "split", "run", "fingerprint"}
        return {**{name: value for name, value in row.items() if name not in metrics}, "status": "missing"}

    return replace(found, table=Table(tuple(emptied(row) if is_meant(row) else row for row in found.table.rows)))


def cell(table: ShownTable, group: str, label: str, metric: str, heading: str) -> Number:
    """A number by where it stands."""
    line = next(
        line
        for line in table.rows
        if (line.group, line.label) == (group, label) and line.measure and line.measure.key == metric
    )
    return line.numbers[[column.label for column in table.number_columns].index(heading)]


def values(found: ReportSource, metric: str, **wanted: Any) -> list[float]:
    rows = [row for row in found.table.rows if all(row.get(name) == value for name, value in wanted.items())]
    return [100 * row[metric] for row in rows]


@pytest.mark.parametrize("form", ["", "pocket-"])
@pytest.mark.parametrize("name", [name for name in TABLES if name != "gradients"])
def test_every_table_of_the_paper_comes_out_complete(name: str, form: str) -> None:
    """A sweep that ran to its end fills every cell, and all renderings can be made."""
    tables = make_tables(name, source(f"paper/{form}{name}"))
    assert [table.split for table in tables] == list(TABLES[name].splits or [""])
    for table in tables:
        assert all(number.value is not None for line in table.rows for number in line.numbers)
        assert all(number.lacking == 0 for line in table.rows for number in line.numbers)
        check_renderings(table)


def test_a_cell_is_the_mean_over_seeds_and_the_average_that_over_datasets() -> None:
    found = source("paper/pocket-main")
    base, novel = make_tables("main", found)
    seeds = values(
        found, "ece", tuner="coop", loss="tcpt", model="tuned", calibrator="none", split="novel", data="pocket_food"
    )
    number = cell(novel, "CoOp", "TCPT", "ece", "food")
    assert number.value == pytest.approx(mean(seeds))
    assert sorted(number.seeds) == pytest.approx(sorted(seeds))
    shown = [cell(base, "MaPLe", "Temp. scaling", "accuracy", name).value for name in ("animals", "food", "signs")]
    assert cell(base, "MaPLe", "Temp. scaling", "accuracy", "Avg").value == pytest.approx(
        np.mean(np.array(shown, dtype=float))
    )


def test_methods_and_groups_are_in_the_order_of_the_paper() -> None:
    table = make_tables("main", source("paper/main"))[0]
    assert list(dict.fromkeys(line.group for line in table.rows)) == ["", "CoOp", "MaPLe", "KgCoOp"]
    labels = dict.fromkeys(line.label for line in table.rows if line.group == "MaPLe")
    assert list(labels) == ["MaPLe", "MbLS", "Temp. scaling", "DAC", "ZS-Norm", "Penalty", "TCPT"]
    heads = [column.label for column in table.number_columns]
    assert heads == ["INet", "Calt", "Pets", "Cars", "Flow", "Food", "Air", "SUN", "DTD", "Euro", "UCF", "Avg"]


def test_missing_results_are_never_numbers() -> None:
    """A missing dataset leaves its cell and the average empty, and is no worse or better than others."""
    found = without(source("paper/pocket-ablation"), loss="margin_l1", data="pocket_food")
    table = make_tables("ablation", found)[0]
    assert cell(table, "MaPLe", "margin + L1", "ece", "food").value is None
    assert cell(table, "MaPLe", "margin + L1", "ece", "Avg").value is None
    assert cell(table, "MaPLe", "margin + L1", "ece", "signs").value is not None
    assert "| - |" in to_markdown(table)
    one_seed = without(source("paper/pocket-ablation"), loss="tcpt", data="pocket_food", seed=2)
    number = cell(make_tables("ablation", one_seed)[0], "MaPLe", "margin + moments", "ece", "food")
    assert (number.lacking, len(number.seeds)) == (1, 2)
    assert "†" in to_markdown(make_tables("ablation", one_seed)[0])


def test_variance_is_taken_over_seeds() -> None:
    found = source("paper/pocket-variance")
    table = make_tables("variance", found)[0]
    seeds = values(
        found,
        "accuracy",
        tuner="kgcoop",
        loss="ce",
        model="tuned",
        calibrator="none",
        split="novel",
        data="pocket_food",
    )
    assert cell(table, "KgCoOp", "KgCoOp", "accuracy", "food").value == pytest.approx(variance(seeds))
    shown = [cell(table, "KgCoOp", "KgCoOp", "accuracy", name).value for name in ("animals", "food", "signs")]
    assert cell(table, "KgCoOp", "KgCoOp", "accuracy", "Avg").value == pytest.approx(
        np.mean(np.array(shown, dtype=float))
    )


def test_a_difference_has_the_interval_of_a_paired_t_test() -> None:
    found = source("paper/pocket-main")
    novel = make_tables("main", found, TableOptions(difference=True, splits=("novel",)))[0]
    common = {"tuner": "coop", "model": "tuned", "calibrator": "none", "split": "novel"}
    means = [
        [
            mean(values(found, "ece", loss=loss, data=data, **common))
            for data in ("pocket_animals", "pocket_food", "pocket_signs")
        ]
        for loss in ("tcpt", "ce")
    ]
    low, high = stats.ttest_rel(*means).confidence_interval(0.95)
    number = cell(novel, "CoOp", "TCPT", "ece", "Avg - plain")
    assert (number.low, number.high) == pytest.approx((low, high), rel=1e-4)
    assert cell(novel, "CoOp", "CoOp", "ece", "Avg - plain").value is None


def test_harmonic_is_of_accuracies_and_a_mean_of_errors() -> None:
    found = source("paper/pocket-main")
    base, novel, both = make_tables("main", found, TableOptions(splits=("base", "novel", "harmonic")))
    first, second = (cell(table, "CoOp", "TCPT", "accuracy", "food").seeds for table in (base, novel))
    expected = mean(2 * a * b / (a + b) for a, b in zip(first, second, strict=True))
    assert cell(both, "CoOp", "TCPT", "accuracy", "food").value == pytest.approx(expected)
    errors = [cell(table, "CoOp", "TCPT", "ece", "food").value for table in (base, novel)]
    assert cell(both, "CoOp", "TCPT", "ece", "food").value == pytest.approx(np.mean(np.array(errors, dtype=float)))
    labels = {line.measure.label for line in both.rows if line.measure}
    assert labels == {"H Acc.", "mean ECE"}


def test_metrics_and_methods_can_be_chosen() -> None:
    options = TableOptions(metrics=("nll", "mce"), methods=("tcpt", "tcpt, dac"), splits=("base",))
    table = make_tables("main", source("paper/pocket-main"), options)[0]
    assert {line.label for line in table.rows} == {"TCPT", "TCPT, dac"}
    assert {line.measure.label for line in table.rows if line.measure} == {"NLL", "MCE (textbook)"}
    with pytest.raises(UnknownNameError, match="ece"):
        make_tables("main", source("paper/pocket-main"), TableOptions(metrics=("eze",)))
    with pytest.raises(SettingError, match="base, novel, all, harmonic"):
        TableOptions(splits=("old",))
    with pytest.raises(UnknownNameError, match="ablation"):
        make_tables("ablations", source("paper/pocket-main"))


def test_zero_shot_stands_once_or_with_each_tuner_if_they_differ() -> None:
    shared = make_tables("main", source("paper/pocket-main"))[0]
    assert [line.group for line in shared.rows if line.label == "Zero-shot"] == ["", ""]

    def other_template(row: Mapping[str, Any], metric: str) -> float:
        return sample_rows.chance({**row, "dataset": f"{row['dataset']} {row['tuner']}"}, metric)

    apart = make_tables("main", source("paper/pocket-main", other_template))[0]
    groups = [line.group for line in apart.rows if line.label == "Zero-shot"]
    assert groups == ["CoOp", "CoOp", "MaPLe", "MaPLe", "KgCoOp", "KgCoOp"]


def test_runs_of_different_settings_are_not_mixed() -> None:
    """Two numbers of shots in one cell would be a number of nothing: they are lines of their own."""
    table = source("paper/pocket-main").table
    more = tuple({**row, "shots": 4, "fingerprint": f"4{row['fingerprint']}"} for row in table.rows)
    mixed = ReportSource("both", Table((*table.rows, *more)))
    base = make_tables("main", mixed, TableOptions(splits=("base",), difference=True))[0]
    alone = make_tables("main", source("paper/pocket-main"), TableOptions(splits=("base",), difference=True))[0]
    for label in ("CoOp", "TCPT", "DAC"):
        expected = cell(alone, "CoOp", label, "ece", "food")
        assert cell(base, "CoOp", f"{label} (shots 16)", "ece", "food") == expected
        assert cell(base, "CoOp", f"{label} (shots 4)", "ece", "food") == expected
        assert cell(base, "CoOp", f"{label} (shots 4)", "ece", "Avg - plain") == cell(
            alone, "CoOp", label, "ece", "Avg - plain"
        )
    again = tuple({**row, "fingerprint": f"4{row['fingerprint']}", "ece": 0.05} for row in table.rows)
    with pytest.raises(DataError, match="the same settings but for images or weights"):
        make_tables("main", ReportSource("both", Table((*table.rows, *again))))
    chosen = make_tables("main", mixed.filter(shots="4"))[0]
    assert all(number.value is not None for line in chosen.rows for number in line.numbers)
    with pytest.raises(NotFoundError, match="no row with shots=5"):
        mixed.filter(shots="5")
    twice, once = (ReportSource("it", Table(table.rows * times)) for times in (2, 1))
    assert collect(twice).rows.keys() == collect(once).rows.keys()


def test_results_without_a_split_or_times_say_so() -> None:
    with pytest.raises(NotFoundError, match="no results on all classes"):
        make_tables("main", source("paper/pocket-main"), TableOptions(splits=("all",)))
    timeless = source("paper/pocket-time")
    rows = tuple({k: v for k, v in row.items() if k not in sample_rows.TIMES} for row in timeless.table.rows)
    with pytest.raises(NotFoundError, match="no times"):
        make_tables("time", replace(timeless, table=Table(rows)))
    with pytest.raises(NotFoundError, match="train with steps diagnosed"):
        make_tables("gradients", source("paper/pocket-gradients"))


@given(st.lists(st.none() | st.floats(0, 100), max_size=8), st.sampled_from(["higher", "lower"]))
def test_the_best_is_never_beaten(shown: list[float | None], better: Any) -> None:
    """Whatever is bold is as good as anything in the column, as far as two decimals tell."""
    ranks = rank_values(shown, Column("m", "m", PLAIN, digits=2, better=better))
    rounded = [None if value is None else round(value, 2) for value in shown]
    there = [value for value in rounded if value is not None]
    best = [value for value, rank in zip(rounded, ranks, strict=True) if rank == 1]
    if len(there) < 2:
        assert not any(ranks)
    else:
        assert set(best) == {max(there) if better == "higher" else min(there)}
        assert all(rank == 0 for value, rank in zip(shown, ranks, strict=True) if value is None)


NAMES = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\n|"), min_size=1, max_size=9)
NUMBERS = st.builds(
    Number, st.none() | st.floats(0, 100), spread=st.none() | st.floats(0, 9), lacking=st.integers(0, 2)
)


@given(st.lists(NAMES, min_size=1, max_size=4), st.data())
def test_any_names_survive_all_renderings(names: list[str], data: st.DataObject) -> None:
    """Whatever methods and datasets are called, no rendering gains or loses a cell."""
    columns = (Column("method", "method"), Column("metric", ""), *(Column(name, name, PLAIN) for name in names))
    measure = metric_measure("ece")
    rows = tuple(
        Row((name, measure.label, *(data.draw(NUMBERS) for _ in names)), group=name, measure=measure)
        for name in dict.fromkeys(names)
    )
    notes = ("50 % of {x}",)
    check_renderings(ShownTable("any", "A & B_c % of $", "", columns, rows, notes=notes, split="base", spread=True))


def check_renderings(table: ShownTable) -> None:
    """All renderings have a cell for every number, and LaTeX is well formed."""
    width = len(table.columns)
    grid = [line for line in to_markdown(table).splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == width + 1 for line in grid)
    latex = to_latex(table)
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2
    plain = re.sub(r"\\[\\&%$#_{}]", "", latex)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    rows = [line for line in latex.splitlines() if line.endswith(r"\\") and r"\multicolumn" not in line]
    assert {len(LATEX_ROW.findall(line)) + 1 for line in rows} == {width}
    records = list(csv.DictReader(io.StringIO(to_csv([table]).decode())))
    assert len(records) == len(table.rows) * len(table.number_columns)
    numbers = [number for line in table.rows for number in line.numbers]
    for record, number in zip(records, numbers, strict=True):
        assert (record["value"] == "") == (number.value is None)
        assert number.value is None or float(record["value"]) == pytest.approx(number.value, rel=1e-9, abs=1e-12)
    console = Console(width=400, file=io.StringIO(), force_terminal=False)
    print_table(table, console)
    assert isinstance(console.file, io.StringIO)
    assert table.title in console.file.getvalue()


def test_the_command_writes_all_formats(tmp_path: Path, capsys: Any) -> None:
    results = str(sample_rows.write_rows(tmp_path / "results.csv", "paper/pocket-lambda"))
    assert main(["table", "lambda", results]) == 0
    assert "means over animals, food, signs and 3 seeds" in " ".join(capsys.readouterr().out.split())
    for suffix, sign in ((".md", "| lambda |"), (".tex", r"\toprule"), (".csv", "table,split,group")):
        assert main(["table", "lambda", results, "--out", str(tmp_path / f"table{suffix}")]) == 0
        assert sign in (tmp_path / f"table{suffix}").read_text()
    capsys.readouterr()
    assert main(["table", "lambda", results, "--format", "latex", "--spread"]) == 0
    assert r"\pm" in capsys.readouterr().out
    assert main(["table", "lambda", str(tmp_path / "nothing.csv")]) == 2
    assert "there is no table" in capsys.readouterr().err
    assert main(["table", "lambda", results, "--filter", "tuner"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_the_sweep_of_a_table_is_found_among_other_results(tmp_path: Path) -> None:
    """Results of several sweeps and forms: the table takes the runs of its own sweep, in the form that was run."""
    first = sample_rows.write_rows(tmp_path / "main.csv", "paper/pocket-main")
    second = sample_rows.write_rows(tmp_path / "tuners.csv", "paper/pocket-tuners")
    found = read_source(first, second, usual=TABLES["variance"].sweeps)
    assert [sweep.name for sweep in found.sweeps] == ["pocket-variance"]
    table = make_tables("variance", found)[0]
    assert {line.group for line in table.rows} == {"CoCoOp", "KgCoOp"}
    assert all(number.value is not None for line in table.rows for number in line.numbers)


def test_the_committed_results_make_the_tables_of_the_documentation() -> None:
    found = read_source("experiments/paper.csv.xz", usual=TABLES["medical"].sweeps)
    table = make_tables("medical", found)[0]
    assert [line.label for line in table.rows] == ["cross-entropy", "MbLS", "ZS-Norm", "Penalty", "TCPT"]
    rows = [
        row
        for row in found.measured.rows
        if (row["loss"], row["model"], row["dataset"]) == ("tcpt", "tuned", "pocket_photos")
        and row["calibrator"] == "none"
    ]
    assert table.rows[-1].numbers[0].value == pytest.approx(100 * mean(row["accuracy"] for row in rows))
    with pytest.raises(CalpromptError):
        make_tables("gradients", read_source("experiments/paper.csv.xz"))


def test_the_page_on_the_paper_shows_what_the_command_prints() -> None:
    """Time and memory: one name has one meaning, on the page and in the table."""
    source = read_source("experiments/paper.csv.xz", usual=TABLES["time"].sweeps)
    (table,) = make_tables("time", source)
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    assert f"| method | {' | '.join(column.label for column in table.number_columns)} |" in page
    for line in table.rows:
        pairs = zip(line.numbers, table.number_columns, strict=True)
        cells = [cell_text(number, table.measure(line, column)) for number, column in pairs]
        assert f"| {line.label} | {' | '.join(cells)} |" in page
