"""The pages of results say what the committed numbers say."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paired import Method
from paired_tables import PLACE, PLAIN, TCPT, fill_page

from calprompt.results.collecting import rows_by_run
from calprompt.results.table import read_table
from calprompt.sweep.sweep_file import read_sweep

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The module that makes the tables, which reads the results once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments"))
        module = importlib.import_module("pocket_page")
        yield module
        for keeps in (module.runs, module.results, module.page_table, module.anchored):
            keeps.cache_clear()


@pytest.fixture(scope="module")
def runs(page: ModuleType) -> list[list[Mapping[str, Any]]]:
    """The rows of every run on its own test images."""
    found = ([row for row in rows if "/" not in row["split"]] for rows in page.runs().values())
    return [rows for rows in found if rows]


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("pocket-results", 4),
        pytest.param("pocket-tables", 20, marks=pytest.mark.long),
        ("anchor-results", 2),
        ("photo-results", 8),
    ],
)
def test_tables_of_a_page_follow_from_committed_numbers(page: ModuleType, name: str, tables: int) -> None:
    (path,) = (path for path in page.PAGES if path.stem == name)
    text = path.read_text("utf-8")
    assert len(PLACE.findall(text)) >= tables
    assert fill_page(text, page.page_table) == text


def test_what_readers_see_first_is_what_was_measured(page: ModuleType) -> None:
    """The README's sentence on twelve datasets and on signs, from the committed runs."""
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    found = page.results("tuned_all")
    for split, words in (("base", "by {} points on base classes [{}, {}]"), ("novel", "by {} on novel ones [{}, {}]")):
        effect = found.difference(TCPT, PLAIN, split, "ece", found.shared([PLAIN, TCPT]))
        ends = (effect.value, effect.low, effect.high)
        assert words.format(*(f"{end:+.2f}" for end in ends)) in text
    keys = [key for key in found.shared([PLAIN, TCPT], ["coop"]) if key[1] == "signs"]
    after, before = (found.level(method, "novel", "ece", keys) for method in (TCPT, PLAIN))
    assert f"raises the ECE on novel signs by {after - before:.0f} points" in text


def test_every_committed_run_is_of_a_sweep_file(page: ModuleType) -> None:
    assert set(page.runs()) <= {key for file in page.SWEEPS.glob("*.yaml") for key in page.sweep_keys(file)}


def test_the_page_of_the_paper_says_how_many_runs_there_are(page: ModuleType) -> None:
    runs = {*page.runs(), *rows_by_run(read_table(ROOT / "experiments" / "paper.csv.xz"))}
    text = (ROOT / "docs" / "paper.md").read_text("utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if "` | " in line]
    told = {row[1]: row[4] for row in rows if len(row) == 6}
    assert len(told) == 18
    for name, number in told.items():
        cells = read_sweep(f"paper/pocket-{name}").cells
        found = sum(cell.key in runs for cell in cells)
        assert number == ("all" if found == len(cells) else str(found)), name


def test_every_anchored_run_is_of_a_sweep_file_and_has_its_pair(page: ModuleType) -> None:
    runs = rows_by_run(read_table(page.ANCHORED))
    cells = {cell.key for file in page.SWEEPS.glob("anchor*.yaml") for cell in read_sweep(file).cells}
    assert set(runs) <= cells
    tuned = [rows[0] for rows in runs.values()]
    losses = [Method(f"{loss}, anchored") for loss in ("ce", "tcpt")]
    assert len(page.anchored().shared(losses)) * 2 == len(tuned), "both losses"
    assert page.anchored().shared([*losses, PLAIN, TCPT]) == page.anchored().shared(losses), "as they are, too"
    text = " ".join(page.PAGES[2].read_text("utf-8").split())
    assert f"{len(tuned)} anchored runs" in text


def test_the_page_says_how_many_runs_there_are_and_what_they_took(
    page: ModuleType, runs: list[list[Mapping[str, Any]]]
) -> None:
    told = f"has {len(runs):,} runs, with seven calibrators each; training and prediction took "
    hours = sum(rows[0]["cpu_seconds"] for rows in runs) / 3600
    text = page.PAGES[0].read_text("utf-8")
    assert f"{told}{hours:.1f} hours" in text
    shifted = {
        (key, row["split"].split("/")[0]) for key, rows in page.runs().items() for row in rows if "/" in row["split"]
    }
    assert f"It also has the {len(shifted)} tests on shifts" in text


def test_the_page_says_how_many_runs_have_no_temperature(page: ModuleType, runs: list[list[Mapping[str, Any]]]) -> None:
    without = [rows for rows in runs if "temperature" not in {row["calibrator"] for row in rows}]
    right = [rows for rows in without if "vector" not in {row["calibrator"] for row in rows}]  # all validation pictures
    assert {rows[0]["dataset"] for rows in right} == {"pocket_clothes"}
    text = " ".join(page.PAGES[0].read_text("utf-8").split())
    words = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
    assert f"({len(without)} runs have no temperature:" in text
    assert f"or, {words[len(right)]} on clothes, get all of them right" in text


def test_what_was_run_on_few_datasets_is_in_no_mean_over_all(page: ModuleType) -> None:
    def run_in(group: str) -> dict[str, int]:
        keys = page.results(group).shared([PLAIN, TCPT])
        return {tuner: len({key[1] for key in keys if key[0] == tuner}) for tuner in page.TUNERS}

    assert run_in("published_five")["proda"] == 3
    assert run_in("published_all") == dict.fromkeys(page.TUNERS, 12) | {"proda": 0}
    assert run_in("tuned_far") == dict.fromkeys(page.TUNERS, 3)
    assert run_in("tuned_all") == dict.fromkeys(page.TUNERS, 12)
    assert set(page.results("shifted").shared([PLAIN])[0][1:2]) <= set(page.SHIFTS)


def test_every_run_on_the_model_for_photographs_is_of_a_sweep_file(page: ModuleType) -> None:
    runs = rows_by_run(read_table(page.PHOTO))
    cells = {cell.key for file in page.SWEEPS.glob("*photo*.yaml") for cell in read_sweep(file).cells}
    assert set(runs) <= cells
    text = " ".join(page.PAGES[3].read_text("utf-8").split())
    assert f"{len(runs)} of {len(cells)} runs" in text


def test_the_answer_on_the_model_for_photographs_is_that_of_its_runs(page: ModuleType) -> None:
    found = page.photo()
    keys, texts = found.shared([PLAIN, TCPT], ["coop"]), []
    for split in ("novel", "base"):
        effect = found.difference(TCPT, PLAIN, split, "ece", keys)
        before, after = (found.level(method, split, "ece", keys) for method in (PLAIN, TCPT))
        ends = f"[{effect.low:+.1f}, {effect.high:+.1f}]"
        texts.append(f"on {split} classes from {before:.1f} to {after:.1f} ({after / before:.2f} times; {ends})")
    for path in (page.PAGES[3], ROOT / "README.md"):
        told = " ".join(path.read_text("utf-8").split())
        assert all(text in told for text in texts), (path, texts)
