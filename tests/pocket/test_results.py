"""The pages of results say what the committed numbers say."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> Iterator[ModuleType]:
    """The module that makes the tables, which reads each group of results once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments"))
        module = importlib.import_module("pocket_table")
        patch.setattr(module, "read", cache(module.read))
        yield module


def test_the_tables_of_the_pages_are_those_of_the_numbers(made: ModuleType) -> None:
    for path, least in zip(made.PAGES, (4, 20), strict=True):
        page = path.read_text()
        assert len(made.PLACE.findall(page)) >= least
        assert made.filled(page) == page


def test_the_page_says_how_many_runs_there_are_and_what_they_took(made: ModuleType) -> None:
    named = ("settings", "tuner", "loss", "dataset", "shots", "seed", "rate")
    rows = importlib.import_module("pocket_numbers").rows()
    seconds = {
        tuple(row[name] for name in named): float(row["cpu_seconds"]) for row in rows if row["settings"] != "shifted"
    }
    told = f"has {len(seconds):,} runs, with seven calibrators each; training and prediction took "
    assert f"{told}{sum(seconds.values()) / 3600:.1f} hours" in made.PAGES[0].read_text()


def test_the_page_says_how_many_runs_have_no_temperature(made: ModuleType) -> None:
    found: dict[tuple[str, ...], set[str]] = {}
    for row in importlib.import_module("pocket_numbers").rows():
        if row["settings"] != "shifted":
            run = tuple(row[name] for name in ("settings", "tuner", "loss", "dataset", "shots", "seed", "rate"))
            found.setdefault(run, set()).add(row["calibrator"])
    without = [run for run, calibrators in found.items() if "temperature" not in calibrators]
    right = [run for run in without if "vector" not in found[run]]  # all validation pictures
    assert {run[3] for run in right} == {"clothes"}
    page = " ".join(made.PAGES[0].read_text().split())
    words = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
    assert f"({len(without)} runs have no temperature:" in page
    assert f"or, {words[len(right)]} on clothes, get all of them right" in page


def write(table: Path, accuracy: dict[tuple[str, str, str, str, int], float]) -> None:
    """Results by settings, tuner, loss, dataset and seed, the same on both halves."""
    with table.open("w", newline="") as file:
        run = ("settings", "tuner", "loss", "dataset", "seed")
        names = (*run, "model", "calibrator", "split", "accuracy", "ece", "ace", "mce", "nll", "mean_confidence")
        writer = csv.DictWriter(file, [*names, "accuracy_on_shots"])
        writer.writeheader()
        for key, value in accuracy.items():
            for split in ("base", "novel"):
                row = {**dict(zip(run, key, strict=True)), "model": "tuned", "calibrator": "none", "split": split}
                row |= dict.fromkeys(("ece", "ace", "mce", "nll"), 0.1)
                writer.writerow({**row, "accuracy": value, "mean_confidence": value + 0.05, "accuracy_on_shots": 0.7})


def test_what_was_run_on_few_datasets_is_in_no_mean_over_all(made: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "few.csv"
    runs = [("published", tuner, "ce", name, 1) for tuner in ("coop", "proda") for name in ("photos", "digits")]
    write(
        table, dict.fromkeys([*runs, ("published", "coop", "ce", "food", 1), ("tuned", "proda", "ce", "food", 1)], 0.5)
    )

    def run_in(group: str) -> set[tuple[str, str]]:
        return {key[:2] for key in made.shared(made.read(group, table), [made.Method("ce")], made.TUNERS)}

    five = {("coop", "photos"), ("coop", "digits"), ("proda", "photos"), ("proda", "digits")}
    assert run_in("published_five") == five
    assert run_in("published_all") == {("coop", "photos"), ("coop", "digits"), ("coop", "food")}
    assert run_in("published_far") == {("coop", "digits")}
    assert run_in("tuned_all") == {("proda", "food")}


def test_a_difference_is_paired_by_tuner_dataset_and_seed(made: ModuleType, tmp_path: Path) -> None:
    """By hand: flags and food, two seeds, of which food has only one with both losses."""
    accuracy = {
        ("ce", "flags", 1): 0.50, ("ce", "flags", 2): 0.60, ("ce", "food", 1): 0.30, ("ce", "food", 2): 0.90,
        ("tcpt", "flags", 1): 0.54, ("tcpt", "flags", 2): 0.62, ("tcpt", "food", 1): 0.31,
    }  # fmt: skip
    table = tmp_path / "few.csv"
    write(table, {("tuned", "coop", *key): value for key, value in accuracy.items()})
    found = made.read("tuned", table)
    first, second = made.Method("tcpt"), made.Method("ce")
    keys = made.shared(found, [first, second], ["coop"])
    assert [key[1:] for key in keys] == [("flags", 1), ("flags", 2), ("food", 1)]
    assert made.level(found, second, "base", "gap", keys) == pytest.approx(5.0)
    # flags: (4 + 2) / 2 = 3, food: 1; mean 2, deviation √2, half an interval 12.71
    found_difference = made.difference(found, first, second, "base", "accuracy", keys)
    assert str(found_difference) == "+2.00 [-10.71, +14.71]"
    assert not found_difference.clear
