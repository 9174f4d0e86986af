"""The public TCPT and DAC evaluators' numbers, reproduced by the named conventions."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from calprompt.metrics import DAC, DEFAULT, TCPT, calibration_errors_from_confidence, evaluate

GOLDEN = Path(__file__).parents[1] / "golden"


def load_case() -> ModuleType:
    spec = importlib.util.spec_from_file_location("metrics_case", GOLDEN / "metrics_case.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def case() -> ModuleType:
    return load_case()


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return load_file(GOLDEN / "data" / "metrics.safetensors")


@pytest.fixture(scope="module")
def entry() -> dict[str, Any]:
    manifest = json.loads((GOLDEN / "data" / "manifest.json").read_text())
    return next(part for part in manifest["standalone"] if part["name"] == "metrics")


def test_every_golden_value(case: ModuleType, tensors: dict[str, np.ndarray], entry: dict[str, Any]) -> None:
    case.check(tensors, entry)


def test_unknown_tensor_is_a_failure(case: ModuleType, tensors: dict[str, np.ndarray], entry: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="random1000/bins10/tcpt_new"):
        case.check(tensors | {"random1000/bins10/tcpt_new": np.zeros(())}, entry)


def test_missing_tensor_is_a_failure(case: ModuleType, tensors: dict[str, np.ndarray], entry: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="random1000/conf"):
        case.check({name: t for name, t in tensors.items() if name != "random1000/conf"}, entry)


@pytest.mark.parametrize("name", ["random1000/bins15/tcpt_ece", "saturated400/bins20/dac_piece_newer_default"])
def test_changed_value_is_a_failure(
    case: ModuleType, tensors: dict[str, np.ndarray], entry: dict[str, Any], name: str
) -> None:
    with pytest.raises(AssertionError, match=name):
        case.check(tensors | {name: tensors[name] + 1e-11}, entry)


@pytest.mark.parametrize(
    ("theirs", "wrong"),
    [
        ("tcpt", replace(TCPT, ece=replace(TCPT.ece, outermost="keep"))),
        ("tcpt", replace(TCPT, ece=replace(TCPT.ece, edges="linspace"))),
        ("tcpt", replace(TCPT, ece=replace(TCPT.ece, closed="left"))),
        ("tcpt", replace(TCPT, mce=DEFAULT.mce)),
        ("tcpt", replace(TCPT, ace="averaged_inverted_cdf")),
        ("dac", replace(DAC, ece=replace(DAC.ece, outermost="keep"))),
        ("dac", replace(DAC, ece=replace(DAC.ece, outermost="drop"))),
        ("dac", replace(DAC, mce=replace(DAC.mce, edges="fraction"))),
        ("dac", replace(DAC, ece=replace(DAC.ece, closed="right"))),
    ],
)
def test_every_choice_of_a_convention_changes_a_golden_value(
    tensors: dict[str, np.ndarray], theirs: str, wrong: Any
) -> None:
    """With any one choice changed, some golden value is missed: the presets have no idle options."""
    worst = 0.0
    for name in tensors:
        scenario, _, leaf = name.rpartition("/bins")
        if not scenario or not leaf.endswith(f"/{theirs}_ece"):
            continue
        n_bins = int(leaf.split("/")[0])
        given = {key: tensors[f"{scenario}/{key}"] for key in ("conf", "pred", "gt", "knndist")}
        errors = calibration_errors_from_confidence(
            given["conf"],
            given["pred"] == given["gt"],
            distances=given["knndist"],
            n_bins=n_bins,
            convention=wrong,
        )
        for ours, published in (("ece", "ece"), ("weighted_mce", "mce"), ("ace", "ace"), ("piece", "piece")):
            worst = max(worst, abs(errors[ours] - tensors[f"{scenario}/bins{n_bins}/{theirs}_{published}"]))
    assert worst > 1e-3


@pytest.mark.parametrize("scenario", ["random1000", "saturated400"])
def test_evaluator_table_from_logits(tensors: dict[str, np.ndarray], scenario: str) -> None:
    """The whole public table from logits, up to the rounding of a float32 softmax."""
    values = evaluate(tensors[f"{scenario}/logits"], tensors[f"{scenario}/gt"], from_logits=True, convention="tcpt")
    names = {"accuracy": "accuracy", "macro_f1": "macro_f1", "ece": "ece", "mce": "weighted_mce", "adaptive_ece": "ace"}
    for theirs, ours in names.items():
        assert 100 * values[ours] == pytest.approx(tensors[f"{scenario}/evaluator_percent/{theirs}"].item(), abs=1e-4)
