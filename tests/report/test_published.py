"""Published numbers: all of them are there, found where they belong, and judged by the spread of our seeds."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.paper.published import (
    AVERAGE,
    is_apart,
    published_table,
    published_tables,
    row_means,
    same_backbone,
    variance_verdict,
    verdict,
)
from calprompt.paper.tables import TABLES, make_tables
from calprompt.report.table import Table as ShownTable
from calprompt.report.table import TableOptions
from calprompt.report.writers import to_csv, to_latex, to_markdown
from calprompt.results.sources import ReportSource
from calprompt.sweep.sweep_file import read_sweep
from report import rows as sample_rows

PUBLISHED = TableOptions(published=True)


def tables(name: str, metric: sample_rows.Metric = sample_rows.chance, sweep: str | None = None) -> list[ShownTable]:
    found = read_sweep(sweep or f"paper/{name}")
    return make_tables(name, ReportSource(name, sample_rows.sweep_rows(found, metric), sweeps=(found,)), PUBLISHED)


def verdicts(found: list[ShownTable]) -> Counter[str]:
    return Counter(
        number.verdict for table in found for line in table.rows for number in line.numbers if number.verdict
    )


def test_every_published_number_belongs_to_a_table() -> None:
    """No number of the paper is lost: each table that the file has is one of ours, and none stands twice."""
    assert set(published_tables()) == {name for table in TABLES.values() for name in table.published.values()}
    assert sum(map(len, published_tables().values())) == 3147


@pytest.mark.parametrize("name", [name for name in TABLES if name != "gradients"])
@pytest.mark.parametrize("form", ["", "pocket-"])
def test_every_published_number_stands_in_its_table(name: str, form: str) -> None:
    """Whatever was run, all numbers of the paper's table are shown, and those of the pocket are never judged."""
    found = tables(name, sweep=f"paper/{form}{name}")
    expected = sum(len(published_table(table)) for table in TABLES[name].published.values())
    counts = verdicts(found)
    assert sum(counts.values()) == expected
    if form:
        assert not {"agrees", "differs", "one seed"} & set(counts)
    elif name != "time":
        assert set(counts) <= {"agrees", "differs", "no test"}
        assert counts["no test"] == (16 if name == "variance" else 0)


def of_the_paper(row: Mapping[str, Any], metric: str) -> float:
    """What the paper has in this place, for tests of Tables 1 and 2; seeds vary by a tenth of a point around it."""
    method = {("ce", "temperature"): "temperature", ("ce", "dac"): "dac", ("ce", "none"): "vanilla"}.get(
        (row["loss"], row["calibrator"]), row["loss"]
    )
    tuner = row["tuner"]
    if row["model"] != "tuned":
        tuner = method = "zero_shot"
    table = published_table("T1" if row["split"] == "base" else "T2")
    value = table.get((row["split"], "ViT-B/16", tuner, method, metric, row["dataset"]))
    return sample_rows.chance(row, metric) if value is None else (value + 0.1 * (row["seed"] - 2)) / 100


def test_equal_numbers_agree_with_published_ones() -> None:
    """Averages too: they are compared with the mean of the paper's row, whatever average it prints."""
    found = tables("main", of_the_paper)
    assert verdicts(found) == {"agrees": len(published_table("T1")) + len(published_table("T2"))}
    base = found[0]
    marked = {
        (line.group, line.label, line.measure.key if line.measure else ""): number
        for line in base.rows
        for number in line.numbers
        if number.row_mean is not None
    }
    assert len(marked) == 10
    mbls = marked["MaPLe", "MbLS", "ece"]
    assert (mbls.published, mbls.row_mean) == (8.36, pytest.approx(10.243, abs=5e-4))
    assert "*8.36 (10.24)=*" in to_markdown(base)
    assert "mean of the paper's own row" in to_markdown(base)
    assert ",8.36,10.24272727,agrees" in to_csv([base]).decode()


def test_printed_averages_that_are_not_the_mean_of_their_row() -> None:
    """Recomputed from the file alone; the page on the paper lists all of them."""
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    with (files("calprompt.paper") / "published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            *key, dataset, value = row.values()
            rows.setdefault(tuple(key), {})[dataset] = float(value)
    printed = {key: values.pop(AVERAGE) for key, values in rows.items() if AVERAGE in values}
    apart = {
        key: mean(rows[key].values())
        for key, value in printed.items()
        if rows[key] and abs(value - mean(rows[key].values())) > 0.1
    }
    assert len([key for key in printed if rows[key]]) == 275
    every = [(v, row_means(name).get(key)) for name, table in published_tables().items() for key, v in table.items()]
    found = [(number, mean) for number, mean in every if mean is not None and is_apart(number, mean)]
    assert len(found) == len(apart) == 30
    assert [mean_of_row for _, mean_of_row in found] == pytest.approx(list(apart.values()))
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    start = page.index("| table | split | backbone |")
    listed = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page[start:].split("\n\n")[0].splitlines()
    ]
    assert [tuple(row[-2:]) for row in listed[2:]] == [(f"{n:.2f}", f"{m:.2f}") for n, m in found]


def test_the_average_is_compared_only_over_the_same_datasets() -> None:
    pocket = tables("main", sweep="paper/pocket-main")[0]
    heads = [column.label for column in pocket.number_columns]
    assert heads[:4] == ["animals", "food", "signs", "Avg"]
    assert heads[-1] == "Avg, paper"
    line = pocket.rows[0]
    assert (line.numbers[3].published, line.numbers[-1].value) == (None, None)
    assert line.numbers[-1].published is not None


def test_published_numbers_are_marked_in_all_renderings() -> None:
    table = tables("lambda", sweep="paper/pocket-lambda")[0]
    assert "*89.71~*" in to_markdown(table)
    assert r"\textit{89.71$\sim$}" in to_latex(table)
    assert ",89.71,,other backbone" in to_csv([table]).decode()
    assert "printed in the paper, not measured here" in to_markdown(table)


def test_another_backbone_is_not_compared() -> None:
    """Results of ViT-B/32 on the paper's datasets stand beside its ViT-B/16 without a verdict."""
    sweep = read_sweep("paper/main")
    rows = sample_rows.sweep_rows(sweep)
    other = replace(rows, rows=tuple({**row, "backbone": "ViT-B-32-quickgelu/openai"} for row in rows.rows))
    found = make_tables("main", ReportSource("other", other), PUBLISHED)
    assert set(verdicts(found)) == {"other backbone"}


def test_backbones_are_found_by_what_the_paper_calls_them() -> None:
    assert same_backbone("RN50-quickgelu/openai", "RN50")
    assert same_backbone("hf-hub:wisdomik/QuiltNet-B-32", "QuiltNet")
    assert not same_backbone("ViT-B-32-quickgelu/openai", "ViT-B/16")


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.floats(-1, 1))
def test_a_verdict_depends_on_the_difference_alone(ours: list[float], shift: float) -> None:
    """The mean of our own seeds always agrees, and so does its mirror image."""
    assert verdict(mean(ours), ours) == "agrees"
    assert verdict(mean(ours) + shift, ours) == verdict(mean(ours) - shift, ours)


def test_verdicts_of_few_seeds() -> None:
    assert verdict(70.0, []) == "not run"
    assert verdict(70.0, [70.04]) == "agrees"  # rounding
    assert verdict(70.0, [75.0]) == "one seed"  # nobody knows how far a second one would be
    assert verdict(70.0, [75.0, 75.0, 75.0]) == "differs"
    assert variance_verdict(1.0, [70.0]) == "one seed"
    assert variance_verdict(1.0, []) == "not run"
