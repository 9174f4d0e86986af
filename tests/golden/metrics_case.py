"""Golden metrics: every number that the public TCPT and DAC evaluators gave must come out of `calprompt.metrics`.

Tensors are named `<scenario>/conf|pred|gt|knndist|logits`, `<scenario>/bins<n>/<value>` and
`<scenario>/evaluator_percent/<value>`. A name that is not known here is a failure, not a skip.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from calprompt.metrics import DAC, TCPT, Convention, calibration_errors_from_confidence, evaluate, predictions
from calprompt.metrics.binning import mass_index, quantile_edges

TOLERANCE = 1e-12
SOFTMAX_TOLERANCE = 5e-6  # float32 softmax of another library build or processor

INPUTS = {"conf", "pred", "gt", "knndist", "logits"}
CONVENTIONS = {"tcpt": TCPT, "dac": DAC}
QUANTILES = {"": "linear", "_newer_default": "averaged_inverted_cdf"}
OURS = {"ece": "ece", "mce": "weighted_mce", "ace": "ace", "piece": "piece"}  # their name -> ours
EVALUATOR = {"accuracy": "accuracy", "macro_f1": "macro_f1", "ece": "ece", "mce": "weighted_mce", "adaptive_ece": "ace"}
VALUE = re.compile(r"(tcpt|dac)_(ece|mce|ace|piece)(_newer_default)?")
BINNING = re.compile(r"ace_bin_(edges|of_sample)(_newer_default)?")


def check(tensors: dict[str, Any], entry: dict[str, Any]) -> None:
    """Compare all that is in a golden metrics file; `entry` is its part of the manifest."""
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    missing = set(entry.get("tensors", {})) - set(arrays)
    assert not missing, f"named in the manifest but not in the file: {sorted(missing)}"
    scenarios: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, array in arrays.items():
        scenario, _, rest = name.partition("/")
        scenarios[scenario][rest] = array
    for scenario, given in scenarios.items():
        for name, expected in given.items():
            if name not in INPUTS:
                _check_value(f"{scenario}/{name}", name, given, expected)
        if "logits" in given:
            _check_logits(scenario, given)


def _check_value(full_name: str, name: str, given: dict[str, np.ndarray], expected: np.ndarray) -> None:
    group, _, leaf = name.partition("/")
    bins = re.fullmatch(r"bins(\d+)", group)
    value, binning = VALUE.fullmatch(leaf), BINNING.fullmatch(leaf)
    tolerance = TOLERANCE
    if bins and value:
        theirs, metric, newer = value.groups()
        rule = replace(CONVENTIONS[theirs], ace=QUANTILES[newer or ""])
        got: Any = _errors(given, int(bins[1]), rule)[OURS[metric]]
    elif bins and binning:
        what, newer = binning.groups()
        bin_with = quantile_edges if what == "edges" else mass_index
        got = bin_with(given["conf"].astype(np.float64), int(bins[1]), QUANTILES[newer or ""])
    elif group == "evaluator_percent" and (leaf in EVALUATOR or leaf == "error_rate"):
        got, tolerance = _percent(leaf, given), 100 * TOLERANCE
    else:
        raise AssertionError(f"no check is written for the golden tensor {full_name!r}")
    assert np.shape(got) == expected.shape, f"{full_name}: shape {np.shape(got)}, expected {expected.shape}"
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance, err_msg=full_name)


def _errors(given: dict[str, np.ndarray], n_bins: int, rule: Convention) -> dict[str, float]:
    correct = given["pred"] == given["gt"]
    return calibration_errors_from_confidence(
        given["conf"], correct, distances=given.get("knndist"), n_bins=n_bins, convention=rule
    )


def _percent(leaf: str, given: dict[str, np.ndarray]) -> float:
    if leaf in ("ece", "mce", "adaptive_ece"):
        return 100 * _errors(given, 10, TCPT)[EVALUATOR[leaf]]
    values = evaluate(given["logits"], given["gt"], from_logits=True, names=["accuracy", "macro_f1"])
    return 100 * (1 - values["accuracy"] if leaf == "error_rate" else values[leaf])


def _check_logits(scenario: str, given: dict[str, np.ndarray]) -> None:
    """From the logits on: predictions exactly, confidences to the rounding of a float32 softmax."""
    ours = predictions(given["logits"], given["gt"], from_logits=True, softmax=TCPT.softmax)
    np.testing.assert_array_equal(ours.predicted, given["pred"], err_msg=f"{scenario}/pred")
    np.testing.assert_allclose(
        ours.confidence, given["conf"], rtol=0, atol=SOFTMAX_TOLERANCE, err_msg=f"{scenario}/conf"
    )
