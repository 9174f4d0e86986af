"""What docs/classifier.md says of measurements is what was measured, and the promises were kept."""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "classifier.md").read_text(encoding="utf-8")


@cache
def experiment(name: str = "classifier") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_experiment", ROOT / "experiments" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", ["classifier", "learners", "promised_folders"])
def test_the_page_has_the_tables(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "classifier", experiment())  # which others import by this name
    for table in experiment(file).tables().values():
        assert table in PAGE, f"python experiments/{file}.py tables prints them"


def test_the_page_of_data_has_the_table_of_spoiled_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "classifier", experiment())
    monkeypatch.setitem(sys.modules, "learners", experiment("learners"))
    table = experiment("wrong_folders").tables()
    assert table in (ROOT / "docs" / "data.md").read_text("utf-8")


def test_the_promises_were_kept() -> None:
    rows = experiment().read("promises.csv")
    assert len({row["dataset"] for row in rows}) == 12
    for row in rows:
        trials, wanted = int(row["trials"]), float(row["coverage_wanted"])
        assert trials >= 2000
        assert float(row["coverage"]) >= wanted - 3 * float(row["coverage_error"]), row
        assert float(row["threshold_broken"]) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials), row
        if row["kind"] == "in all":
            assert float(row["all_classes"]) == 1, "4 and 16 images are too few for 95 %"


def kept(row: dict[str, str], least: int) -> None:
    """Promises of a row were kept, or not made."""
    fits = int(row["fits"])
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / fits)
    assert fits >= least
    if int(row["sets_made"]):
        assert float(row["coverage"]) >= 0.9 - 3 * float(row["coverage_error"]), row
    assert int(row["error_broken"]) / fits <= allowed, row
    assert int(row["sure_made"]) - int(row["sure_kept"]) <= allowed * fits, row


def test_promises_were_kept_on_folders_of_all_kinds() -> None:
    module = experiment("promised_folders")
    rows = module.read("promised_folders.csv")
    assert {row["folder"] for row in rows} == {folder.name for folder in module.FOLDERS}
    for row in rows:
        kept(row, 2000)
    for row in module.read("promised_folders_fewer.csv"):
        kept(row, 200)
    fits = module.read("promised_fits.csv")
    assert {row["folder"] for row in fits} == set(module.DATASETS)
    for row in fits:
        kept(row, 10)


def test_classes_that_must_not_be_missed_were_not() -> None:
    module = experiment("promised_folders")
    rows = module.read("never_miss.csv")
    assert {row["folder"] for row in rows} == {folder.name for folder, _ in module.GUARDED}
    for row in rows:
        fits = int(row["fits"])
        allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / fits)
        assert fits >= 2000
        assert int(row["broken"]) / fits <= allowed, row
        assert int(row["error_broken"]) / fits <= allowed, row
    assert int(rows[-1]["made"]) == 0, "50 images are too few"


@pytest.mark.parametrize(
    "name",
    [
        "20 hard classes of 4, 20 easy ones of 5",
        "100 single, easy; 100 in 10 groups, hard",
        "100 single, easy; 240 in 80 groups, hard",
        "one class of 60, 30 of 2 that it cannot tell",
    ],
)
def test_promises_are_kept_on_folders_drawn_here(name: str) -> None:
    module = experiment("promised_folders")
    (folder,) = (each for each in module.FOLDERS if each.name == name)
    kept({key: str(value) for key, value in module.simulate(folder, 100, world=5000).items()}, 100)


def test_the_interval_of_none_of_these_covers_classes_never_used() -> None:
    rows = experiment().read("none_of_these.csv")
    assert len(rows) == 12
    assert sum(row["covered"] == "True" for row in rows) / len(rows) >= 0.9


def test_the_simulation_keeps_its_promises_on_logits_made_up_here() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 60)
    logits = rng.normal(size=(240, 4))
    logits[np.arange(240), labels] += rng.uniform(0, 6, 240)
    found = experiment().simulate(logits, labels, "per class", 16, 200)
    assert found["coverage"] >= 0.9 - 3 * found["coverage_error"]
    assert found["threshold_broken"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
