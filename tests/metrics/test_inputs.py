"""What users give: every accepted type, and for each mistake an error that names the value and what was expected."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from calprompt.errors import CalpromptError
from calprompt.metrics import (
    DAC,
    DEFAULT,
    TCPT,
    Convention,
    EqualWidth,
    accuracy,
    calibration_errors_from_confidence,
    conventions,
    equal_mass_table,
    equal_width_table,
    evaluate,
    expected_calibration_error,
    metrics,
    negative_log_likelihood,
    predictions,
    proximity_calibration_error,
    reliability_table,
)

PROBS = [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]
LABELS = [0, 1, 0, 2]
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "probs",
    [
        PROBS,
        np.array(PROBS),
        np.array(PROBS, dtype=np.float16),
        np.asfortranarray(np.array(PROBS, dtype=np.float32)),
        torch.tensor(PROBS),
        torch.tensor(PROBS, dtype=torch.float16),
        torch.tensor(PROBS, dtype=torch.bfloat16),
        torch.tensor(PROBS, dtype=torch.float64, requires_grad=True),
    ],
)
@pytest.mark.parametrize(
    "labels", [LABELS, np.array(LABELS, dtype=np.uint8), torch.tensor(LABELS), torch.tensor(LABELS, dtype=torch.int32)]
)
def test_all_types_give_the_same_floats(probs, labels) -> None:
    values = evaluate(probs, labels)
    assert values == evaluate(PROBS, LABELS)
    assert all(type(value) is float for value in values.values())


def test_inputs_are_not_changed() -> None:
    probs, labels = np.array(PROBS), np.array(LABELS)
    probs.flags.writeable = labels.flags.writeable = False
    evaluate(probs, labels)
    evaluate(probs, labels, from_logits=True, convention="tcpt")
    np.testing.assert_array_equal(probs, PROBS)


def test_half_precision_rows_need_not_sum_exactly() -> None:
    probs = torch.randn(50, 200, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    for dtype in (torch.float16, torch.bfloat16):
        assert expected_calibration_error(probs.to(dtype), [0] * 50) == pytest.approx(
            expected_calibration_error(probs, [0] * 50), abs=1e-3
        )


def test_softmax_precision_is_a_convention() -> None:
    logits = torch.tensor([[100.0, 92.0], [3.0, 1.0]]).half()
    exact = predictions(logits, [0, 0], from_logits=True)
    as_given = predictions(logits, [0, 0], from_logits=True, softmax="input")
    assert exact.confidence[0] < 1
    assert as_given.confidence.tolist() == logits.softmax(dim=1).amax(dim=1).double().tolist()
    np.testing.assert_array_equal(exact.log_likelihood, as_given.log_likelihood)
    assert evaluate(logits, [0, 0], from_logits=True, convention=TCPT) == evaluate(as_given, convention=TCPT)


def test_large_logits_are_exact() -> None:
    assert negative_log_likelihood([[1e4, 0.0]], [1], from_logits=True) == 1e4
    assert negative_log_likelihood([[1.0, 0.0]], [0]) == 0.0


@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [(torch.float64, 2.0**-1074), (torch.float32, 2.0**-149), (torch.float16, 2.0**-24), (torch.bfloat16, 2.0**-133)],
)
def test_zero_probability_of_the_label_stays_finite(dtype: torch.dtype, smallest: float) -> None:
    loss = negative_log_likelihood(torch.tensor([[1.0, 0.0]], dtype=dtype), [1])
    assert loss == pytest.approx(-math.log(smallest))


def test_checked_predictions_can_be_reused() -> None:
    once = predictions(PROBS, LABELS)
    assert {name: metrics.get(name)(once) for name in metrics.available()} == evaluate(PROBS, LABELS)
    assert evaluate(once, names=["ece", "accuracy"]).keys() == {"ece", "accuracy"}


def test_fewer_samples_than_bins() -> None:
    values = evaluate([[0.75, 0.25]], [0], n_bins=50)
    assert values["ece"] == values["ace"] == values["mce"] == values["weighted_mce"] == 0.25


def test_registry_and_conventions() -> None:
    assert {"ece", "ace", "mce", "weighted_mce", "classwise_ece", "brier", "nll", "accuracy", "confidence_gap"} <= set(
        metrics.available()
    )
    assert [conventions.get(name) for name in ("default", "tcpt", "dac")] == [DEFAULT, TCPT, DAC]
    assert Convention() == DEFAULT
    with pytest.raises(CalpromptError, match=r"unknown metric 'wece'.*weighted_mce"):
        evaluate(PROBS, LABELS, names=["wece"])
    with pytest.raises(CalpromptError, match=r"unknown metric convention 'tpct'. Did you mean 'tcpt'"):
        evaluate(PROBS, LABELS, convention="tpct")
    with pytest.raises(CalpromptError, match=r"unknown value of closed 'both'.*left, right"):
        EqualWidth(closed="both")  # type: ignore[arg-type]
    with pytest.raises(CalpromptError, match=r"unknown quantile definition 'cubic'.*midrank"):
        equal_mass_table([0.5], [1], quantile="cubic")  # type: ignore[arg-type]
    with pytest.raises(CalpromptError, match=r"unknown softmax precision 'half'"):
        predictions(PROBS, LABELS, softmax="half")  # type: ignore[arg-type]


def test_reliability_table_is_plain_data() -> None:
    for equal_mass in (False, True):
        table = reliability_table(PROBS, LABELS, n_bins=6, equal_mass=equal_mass)
        rows = json.loads(json.dumps(table.rows(), allow_nan=False))
        assert [row["count"] for row in rows] == table.count.tolist()
        assert sum(row["count"] / 4 * row["gap"] for row in rows if row["count"]) == pytest.approx(table.expected_gap)
        assert all(row["gap"] is row["accuracy"] is row["confidence"] is None for row in rows if not row["count"])


@pytest.mark.parametrize(
    ("probs", "labels", "options", "message"),
    [
        ([], [], {}, r"probabilities must have the shape \[samples, classes\], got \[0\] \(there is nothing"),
        (np.zeros((0, 5)), [], {}, r"got \[0, 5\] \(there is nothing to measure\)"),
        ([0.5, 0.5], [0], {}, r"shape \[samples, classes\], got \[2\]"),
        ([[[0.5, 0.5]]], [0], {"from_logits": True}, r"logits must have the shape .* got \[1, 1, 2\]"),
        ([[0.5, 0.5], [1.0]], [0, 1], {}, r"probabilities must be a tensor, an array or nested lists of numbers"),
        ([["a", "b"]], [0], {}, r"probabilities must be a tensor, an array or nested lists of numbers"),
        ([[NAN, 0.5]], [0], {}, r"probabilities must be finite, got nan at sample 0, class 0 \(1 such"),
        (
            [[1.0, 0.0], [0.0, NAN]],
            [0, 0],
            {"from_logits": True},
            r"logits must be finite, got nan at sample 1, class 1",
        ),
        ([[INF, 0.0]], [0], {"from_logits": True}, r"logits must be finite, got inf"),
        ([[1.25, -0.25]], [0], {}, r"probabilities must lie in \[0, 1\], got -0.25; for logits pass from_logits=True"),
        ([[3.5, 0.0]], [0], {}, r"must lie in \[0, 1\], got 3.5; for logits pass from_logits=True"),
        (
            [[0.5, 0.5], [0.5, 0.3]],
            [0, 1],
            {},
            r"sum to 1 within 0.001, but row 1 sums to 0.8 \(largest deviation 0.2\); for logits pass from_logits=True",
        ),
        (PROBS, [0, 1, 0], {}, r"labels must have one entry per sample, got 3 for 4 samples"),
        (PROBS, None, {}, r"labels are missing"),
        (PROBS, [0, 1, 0, 3], {}, r"labels must lie in 0..2 for 3 classes, got 3"),
        (PROBS, [0, -1, 0, 2], {}, r"labels must lie in 0..2 for 3 classes, got -1"),
        (PROBS, [0.0, 1.0, 0.0, 2.0], {}, r"labels must be integers, got float64"),
        (PROBS, [True, False, True, True], {}, r"labels must be integers, got bool"),
        (PROBS, np.eye(4, 3, dtype=int), {}, r"vector of class indices, got the shape \[4, 3\]; turn one-hot"),
        (PROBS, LABELS, {"n_bins": 0}, r"n_bins must be a whole number of at least 1, got 0"),
        (PROBS, LABELS, {"n_bins": 2.5}, r"n_bins must be a whole number of at least 1, got 2.5"),
    ],
)
def test_invalid_input_is_reported(probs, labels, options, message: str) -> None:
    with pytest.raises(CalpromptError, match=message):
        evaluate(probs, labels, **options)
    with pytest.raises(CalpromptError, match=message):
        expected_calibration_error(probs, labels, **options)


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([], [], r"confidence must be a vector with at least one sample, got the shape \[0\]"),
        ([[0.5]], [1], r"confidence must be a vector .* \[1, 1\]"),
        ([0.5, 1.5], [1, 0], r"confidence must lie in \[0, 1\], got 1.5"),
        ([0.5, NAN], [1, 0], r"confidence must be finite, got nan at sample 1"),
        ([0.5, 0.5], [1], r"correct must have one entry per sample, got 1 for 2 samples"),
        ([0.5, 0.5], [1, 2], r"correct must contain only true/false or 0/1, got 2"),
        ([0.5], [NAN], r"correct must be finite, got nan at sample 0"),
    ],
)
def test_invalid_confidence_vectors_are_reported(confidence, correct, message: str) -> None:
    for function in (calibration_errors_from_confidence, equal_width_table, equal_mass_table):
        with pytest.raises(CalpromptError, match=message):
            function(confidence, correct)


def test_invalid_distances_are_reported() -> None:
    with pytest.raises(CalpromptError, match="distances must have one entry per sample, got 1 for 4 samples"):
        proximity_calibration_error(PROBS, LABELS, distances=[1.0])
    with pytest.raises(CalpromptError, match="distances must be finite, got inf at sample 2"):
        proximity_calibration_error(PROBS, LABELS, distances=[0.0, 1.0, INF, 2.0])


def test_first_of_equal_scores_wins() -> None:
    assert accuracy([[0.5, 0.5]], [0]) == 1.0
    assert accuracy([[0.5, 0.5]], [1]) == 0.0


def test_predictions_have_their_labels() -> None:
    given = predictions([[0.5, 0.5]], [0])
    with pytest.raises(CalpromptError, match="which contain their labels"):
        evaluate(given, [1])
