"""SmoothECE: the definition, the authors' own package, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
import relplot
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calprompt.errors import SettingError
from calprompt.metrics import predictions, smooth_calibration_error, smooth_ece

UNIT = st.floats(0, 1, allow_nan=False)


def drawn(seed: int, n: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and outcomes that are right as often as a power of them says."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1.5, n)
    return confidence, rng.random(n) < confidence**power


def by_definition(confidence: np.ndarray, correct: np.ndarray, width: float) -> float:
    """The integral of the absolute smoothed residual, with a Gaussian and its reflections at 0 and at 1."""
    t = np.linspace(0, 1, 4001)
    centres = [2 * k + sign * confidence for k in (-1, 0, 1) for sign in (1, -1)]
    kernel = sum(np.exp(-((t[:, None] - centre) ** 2) / (2 * width**2)) for centre in centres)
    smoothed = kernel @ (correct - confidence) / (np.sqrt(2 * np.pi) * width * len(confidence))
    return float(np.trapezoid(np.abs(smoothed), t))


@pytest.mark.parametrize("n", [20, 300, 3000])
@pytest.mark.parametrize("power", [0.7, 1.0, 1.5])
def test_smooth_ece_is_the_error_at_its_own_width(n: int, power: float) -> None:
    sample = drawn(1, n, power)
    found = smooth_calibration_error(*sample)
    assert by_definition(*sample, found) == pytest.approx(found, abs=5e-5)
    assert smooth_calibration_error(*sample, width=found) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [0.6, 1.0, 2.0])
def test_against_relplot(seed: int, power: float) -> None:
    """relplot halves the range of widths ten times, so it is right to about 1/1000."""
    confidence, correct = drawn(seed, 800, power)
    theirs = relplot.smECE(confidence, correct.astype(float))
    assert smooth_calibration_error(confidence, correct) == pytest.approx(theirs, abs=1e-3)
    at_width = relplot.smECE_sigma(confidence, correct.astype(float), 0.05)
    assert smooth_calibration_error(confidence, correct, width=0.05) == pytest.approx(at_width, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(arrays(float, n, elements=UNIT), arrays(bool, n))), st.data())
def test_smooth_ece_bounds_and_order(sample: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    confidence, correct = sample
    found = smooth_calibration_error(confidence, correct)
    assert abs(float(np.mean(correct - confidence))) - 1e-9 <= found <= 1 + 1e-9
    order = np.array(data.draw(st.permutations(range(len(confidence)))))
    assert smooth_calibration_error(confidence[order], correct[order]) == pytest.approx(found, abs=1e-9)
    twice = np.repeat(confidence, 2), np.repeat(correct, 2)
    assert smooth_calibration_error(*twice) == pytest.approx(found, abs=1e-9)


def test_smooth_ece_is_continuous_where_ece_jumps() -> None:
    """Half of the images at 0.5, all right: just below an edge and just above it."""
    right = np.ones(50, dtype=bool)
    below, above = (smooth_calibration_error(np.full(50, 0.5 + shift), right) for shift in (-1e-4, 1e-4))
    assert above == pytest.approx(below, abs=3e-4)


def test_perfect_certain_model_has_smooth_ece_zero() -> None:
    assert smooth_calibration_error([1.0, 1.0], [True, True]) == 0
    assert smooth_calibration_error([1.0, 1.0], [False, False]) == pytest.approx(1)


def test_smooth_ece_metric_has_the_shared_options() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 3)), rng.integers(3, size=50)
    sample = predictions(logits, labels, from_logits=True)
    assert smooth_ece(sample) == smooth_ece(logits, labels, from_logits=True)
    assert smooth_ece(sample) == smooth_calibration_error(sample.confidence, sample.correct)


@pytest.mark.parametrize("width", [0.0, -0.1, float("nan")])
def test_a_width_must_be_above_0(width: float) -> None:
    with pytest.raises(SettingError, match="width must be above 0"):
        smooth_calibration_error([0.5], [True], width=width)
