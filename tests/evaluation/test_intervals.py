"""What the docs say of intervals is what was counted, and they cover."""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@cache
def experiment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("intervals_experiment", ROOT / "experiments" / "intervals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def least(trials: int) -> float:
    """The share of samples, below which an interval of 95 % does not cover; 3 standard errors are chance."""
    return 0.95 - 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(
    ("name", "page"), [("calibration", "evaluate.md"), ("differences", "evaluate.md"), ("track record", "serve.md")]
)
def test_the_pages_have_the_tables(name: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert experiment().tables()[name] in text, "python experiments/intervals.py tables prints them"


def test_debiased_errors_are_covered_and_the_test_keeps_its_level() -> None:
    rows = experiment().read("intervals_calibration.csv")
    cells = {(int(row["images"]), float(row["true"])) for row in rows}
    assert cells == {(n, error) for n in (50, 200, 1000, 5000) for error in (0, 0.02, 0.05, 0.1)}
    for row in rows:
        assert float(row["covered"]) >= least(int(row["trials"])), row
        if float(row["true"]) == 0:
            assert float(row["refused"]) <= 1 - least(int(row["trials"])), row


def test_the_stated_meaning_of_a_confidence_covers_the_truth() -> None:
    rows = experiment().read("intervals_track_record.csv")
    assert {int(row["held_out"]) for row in rows} == {30, 60, 200, 1000}
    assert min(int(row["trials"]) for row in rows) >= 2000
    for row in rows:
        if int(row["told"]):
            assert float(row["covered"]) >= least(int(row["told"])), row


def test_intervals_of_differences_have_their_coverage() -> None:
    for row in experiment().read("intervals_differences.csv"):
        trials = int(row["trials"])
        assert float(row["covered"]) >= least(trials), row
        assert float(row["level_covered"]) >= least(trials), row
        if row["first"] == row["second"]:
            assert float(row["excludes_zero"]) <= 1 - least(trials), row


def test_a_cell_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment(), "HERE", tmp_path)
    table = experiment().Table("cell.csv", ("images",))
    experiment()._calibration_cell(table, 200, "spread", "over-confident", 0.05, 40, both=True)
    assert [row["metric"] for row in experiment().read("cell.csv")] == ["ece", "ace"]
    for row in table.rows:
        assert float(row["covered"]) >= least(40)
        assert float(row["measured"]) > 0.05 + float(row["low"])
