"""What docs/classifier.md says of measurements is what was measured, and the promises were kept."""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "classifier.md").read_text(encoding="utf-8")


@cache
def experiment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("classifier_experiment", ROOT / "experiments" / "classifier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["compare", "promises", "none of these"])
def test_the_page_has_the_tables(name: str) -> None:
    assert experiment().tables()[name] in PAGE, "python experiments/classifier.py tables prints them"


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
