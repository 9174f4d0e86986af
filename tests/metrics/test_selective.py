"""Selective prediction: the curve and its area against plain loops, the guarantee by simulation, and its limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom

from calprompt.errors import CalpromptError
from calprompt.metrics import (
    area_under_risk_coverage,
    aurc,
    excess_area_under_risk_coverage,
    guaranteed_threshold,
    predictions,
    risk_coverage,
)
from calprompt.metrics.binomial import log_binomial_tail
from calprompt.metrics.selective import STARTS, THRESHOLDS, choose_start, guarantee_chance

confidences = st.one_of(st.floats(0, 1, allow_subnormal=False), st.integers(0, 6).map(lambda k: k / 6))
samples = st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40)


def vectors(sample: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    confidence, correct = zip(*sample, strict=True)
    return np.array(confidence), np.array(correct)


@given(samples)
def test_risk_coverage_curve_by_hand(sample: list[tuple[float, bool]]) -> None:
    confidence, correct = vectors(sample)
    curve = risk_coverage(confidence, correct)
    assert curve.threshold.tolist() == sorted(set(confidence.tolist()), reverse=True)
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
        accepted = confidence >= threshold
        assert coverage == accepted.mean()
        assert risk == pytest.approx(1 - correct[accepted].mean(), abs=1e-12)


@given(samples, st.randoms(use_true_random=False))
def test_aurc_is_the_mean_risk_in_any_order(sample: list[tuple[float, bool]], random) -> None:
    confidence, correct = vectors(sample)
    plain = np.mean([1 - correct[confidence >= own].mean() for own in confidence])
    area = area_under_risk_coverage(confidence, correct)
    assert area == pytest.approx(plain, abs=1e-12)
    random.shuffle(sample)
    assert area_under_risk_coverage(*vectors(sample)) == area
    assert area_under_risk_coverage(*vectors(sample * 2)) == pytest.approx(area, abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_aurc_without_ties_is_the_usual_one(correct: list[bool]) -> None:
    right, n = np.array(correct), len(correct)
    usual = np.mean([(~right[: k + 1]).mean() for k in range(n)])  # most confident first
    confidence = np.linspace(0.9, 0.1, n)
    assert area_under_risk_coverage(confidence, right) == pytest.approx(usual, abs=1e-12)
    best = area_under_risk_coverage(confidence, np.sort(right)[::-1].copy())
    assert excess_area_under_risk_coverage(confidence, right) == pytest.approx(usual - best, abs=1e-12)


def test_ranking_errors_last_is_best_and_first_is_worst() -> None:
    confidence, right = np.linspace(0.9, 0.1, 10), np.arange(10) < 7
    assert excess_area_under_risk_coverage(confidence, right) == pytest.approx(0, abs=1e-15)
    areas = [area_under_risk_coverage(confidence, each) for each in (right, right[::-1].copy())]
    assert areas[0] < 0.1 < 0.5 < areas[1]
    assert area_under_risk_coverage(np.full(10, 0.5), right) == pytest.approx(0.3)


def test_aurc_metric_uses_the_largest_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4))
    found = predictions(logits, np.arange(50) % 4, from_logits=True)
    assert aurc(found) == area_under_risk_coverage(found.confidence, found.correct)


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (20, 0.05), (500, 0.01), (5000, 0.2), (20000, 0.05)])
def test_against_scipy_binomial_tail(n: int, p: float) -> None:
    for k in sorted({0, 1, int(n * p / 2), int(n * p), n // 2, n - 1, n, n + 3}):
        theirs = logsumexp(binom.logpmf(np.arange(min(k, n) + 1), n, p))  # its logcdf underflows
        assert log_binomial_tail(k, n, p) == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert log_binomial_tail(-1, n, p) == -math.inf
    assert log_binomial_tail(0, 0, p) == 0.0


def test_the_thresholds_are_fixed_and_fall() -> None:
    assert all(high > low for high, low in pairwise(THRESHOLDS))
    assert (THRESHOLDS[0], THRESHOLDS[-1]) == (0.999999, 0.0)
    assert set(STARTS) < set(THRESHOLDS)


def plain_threshold(confidence: np.ndarray, correct: np.ndarray, target: float, level: float) -> float | None:
    """Learn then Test, as a plain reading of its description."""
    rejected = []
    for start in STARTS:
        for threshold in [t for t in THRESHOLDS if t <= start]:
            accepted = confidence >= threshold
            p = binom.cdf((accepted & ~correct).sum(), accepted.sum(), target) if accepted.any() else 1.0
            if p > (1 - level) / len(STARTS):
                break
            rejected.append(threshold)
    return min(rejected, default=None)


@pytest.mark.parametrize("seed", range(12))
def test_guaranteed_threshold_against_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1, size=int(rng.integers(50, 800)))
    correct = rng.random(len(confidence)) < confidence ** rng.uniform(0.2, 1.5)
    target, level = rng.uniform(0.02, 0.4), rng.uniform(0.5, 0.99)
    chosen = guaranteed_threshold(confidence, correct, target, level)
    assert chosen.threshold == plain_threshold(confidence, correct, target, level)
    if chosen.threshold is not None:
        accepted = confidence >= chosen.threshold
        assert (chosen.accepted, chosen.images) == (accepted.sum(), len(confidence))
        assert chosen.coverage == accepted.mean()
        assert chosen.error == pytest.approx((~correct)[accepted].mean())


def true_error(threshold: float, risk: np.ndarray, grid: np.ndarray) -> float:
    """Error of what is accepted when confidence is uniform on the grid and wrong with probability `risk`."""
    return float(risk[grid >= threshold].mean())


GRID = (np.arange(100_000) + 0.5) / 100_000
WORLDS = {  # how often a prediction of some confidence is wrong
    "just above the target everywhere": np.full_like(GRID, 0.1001),
    "calibrated": 1 - GRID,
    "over-confident": np.minimum(1, 2.5 * (1 - GRID)),
    "worst at the top": 0.05 + 0.2 * GRID,
    "a step": np.where(GRID > 0.7, 0.05, 0.3),
}


@pytest.mark.parametrize("n", [150, 2000])
@pytest.mark.parametrize("world", WORLDS)
def test_the_guarantee_holds(world: str, n: int) -> None:
    """Over many validation sets, the true error exceeds the target no more often than promised."""
    target, level, trials = 0.1, 0.9, 500
    risk, rng = WORLDS[world], np.random.default_rng(n)
    broken = found = 0
    for _ in range(trials):
        drawn = rng.integers(len(GRID), size=n)
        correct = rng.random(n) >= risk[drawn]
        chosen = guaranteed_threshold(GRID[drawn], correct, target, level)
        if chosen.threshold is not None:
            found += 1
            broken += true_error(chosen.threshold, risk, GRID) > target
    allowed = 1 - level
    assert broken / trials <= allowed + 3 * math.sqrt(allowed * level / trials)
    if world == "a step" and n == 2000:
        assert found > 0.8 * trials, "a guarantee that is never given is no use"


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_stricter_targets_never_lower_the_threshold(seed: int, a: float, b: float, c: float, d: float) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1, size=300)
    correct = rng.random(300) < confidence**0.5
    easy = guaranteed_threshold(confidence, correct, max(a, b), min(c, d)).threshold
    hard = guaranteed_threshold(confidence, correct, min(a, b), max(c, d)).threshold
    assert hard is None or (easy is not None and easy <= hard)


def test_order_does_not_matter() -> None:
    confidence, correct = np.repeat([0.9, 0.7, 0.4], 200), np.arange(600) % 23 > 0
    order = np.random.default_rng(0).permutation(600)
    first, second = (guaranteed_threshold(c, r, 0.1) for c, r in ((confidence, correct), (confidence[order], correct)))
    assert first == guaranteed_threshold(confidence[order], correct[order], 0.1)
    assert second.images == 600


def test_enough_right_images_accept_everything() -> None:
    chosen = guaranteed_threshold([0.7] * 94, [True] * 94, 0.05)
    assert (chosen.threshold, chosen.coverage, chosen.error, chosen.reason) == (0.0, 1.0, 0.0, None)
    few = guaranteed_threshold([0.7] * 93, [True] * 93, 0.05)  # 0.95^93 > 0.05 / 6
    assert (few.threshold, few.needed, few.coverage, few.error) == (None, 94, 0.0, None)
    assert few.reason == (
        "0 of the 93 validation images with a confidence of 0.3 or more are wrong; at this error rate it would take "
        "about 94 such images"
    )


def test_chosen_start_needs_fewer_images() -> None:
    rng = np.random.default_rng(4)
    pilot, held_out = rng.uniform(0.5, 1, 200), rng.uniform(0.5, 1, 70)
    start = choose_start(pilot, np.ones(200), 0.05, images=70)
    assert start in THRESHOLDS
    assert guaranteed_threshold(held_out, np.ones(70), 0.05).threshold is None
    chosen = guaranteed_threshold(held_out, np.ones(70), 0.05, starts=[start])
    assert chosen.threshold == 0.0


def test_chosen_start_keeps_the_guarantee() -> None:
    """Also if the other images mislead: theirs are all right."""
    rng = np.random.default_rng(5)
    broken = 0
    for _ in range(2000):
        confidence = rng.uniform(0.5, 1, 100)
        correct = rng.random(100) < 0.9
        start = choose_start(rng.uniform(0.5, 1, 50), np.ones(50), 0.1, images=100)
        broken += guaranteed_threshold(confidence, correct, 0.0999, 0.9, starts=[start]).threshold is not None
    assert broken / 2000 <= 0.1 + 3 * math.sqrt(0.09 / 2000)


def test_missing_threshold_has_a_reason() -> None:
    wrong = guaranteed_threshold([0.97] * 500, [False] * 500, 0.05)
    assert (wrong.threshold, wrong.needed) == (None, None)
    assert "500 of the 500 validation images with a confidence of 0.3 or more are wrong" in str(wrong.reason)
    assert "more images alone would not help" in str(wrong.reason)
    timid = guaranteed_threshold([0.2] * 500, [True] * 500, 0.05)
    assert timid.reason == "no validation image has a confidence of 0.3 or more; it would take 94, all of them right"
    near = guaranteed_threshold([0.9] * 1000, [True] * 951 + [False] * 49, 0.0491)
    assert "too near the target" in str(near.reason)
    some = guaranteed_threshold([0.9] * 100, [True] * 97 + [False] * 3, 0.05)
    assert some.needed is not None
    assert guaranteed_threshold([0.9] * 2 * some.needed, np.arange(2 * some.needed) % 100 > 2, 0.05).threshold == 0.0


@pytest.mark.parametrize(
    ("confidence", "correct", "says"),
    [
        ([], [], "confidence must be a vector with at least one sample"),
        ([0.5, float("nan")], [1, 0], "confidence must be finite, got nan at sample 1"),
        ([0.5, 1.2], [1, 0], r"confidence must lie in \[0, 1\], got 1.2"),
        ([0.5, 0.6], [1], "correct must have one entry per sample, got 1 for 2"),
        ([0.5, 0.6], [1, float("nan")], "correct must be finite, got nan"),
        ([0.5, 0.6], [1, 2], "correct must contain only true/false or 0/1, got 2"),
        ([[0.5], [0.6]], [1, 0], "confidence must be a vector"),
    ],
)
def test_wrong_input_is_refused(confidence: list, correct: list, says: str) -> None:
    for function in (risk_coverage, area_under_risk_coverage, excess_area_under_risk_coverage):
        with pytest.raises(CalpromptError, match=says):
            function(confidence, correct)
    with pytest.raises(CalpromptError, match=says):
        guaranteed_threshold(confidence, correct, 0.05)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 5, float("nan")])
def test_targets_are_fractions(value: float) -> None:
    with pytest.raises(CalpromptError, match="target_error must be a fraction above 0 and below 1"):
        guaranteed_threshold([0.5], [1], value)
    with pytest.raises(CalpromptError, match="confidence_level must be a fraction above 0 and below 1"):
        guaranteed_threshold([0.5], [1], 0.05, value)


@pytest.mark.parametrize(("rate", "images"), [(0.0, 40), (0.03, 80), (0.06, 150), (0.2, 100)])
def test_chance_of_a_guarantee_equals_its_frequency(rate: float, images: int) -> None:
    """Half of the images are sure, and wrong at the rate; the others are unsure and often wrong."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        confidence = np.repeat([0.95, 0.4], n // 2)
        return confidence, rng.random(len(confidence)) >= np.where(confidence > 0.5, rate, 0.5)

    chance, _ = guarantee_chance(*draw(100_000), target_error=0.1, images=images)
    made = [
        guaranteed_threshold(*draw(images), target_error=0.1, starts=[0.95]).threshold is not None for _ in range(500)
    ]
    assert np.mean(made) == pytest.approx(chance, abs=0.07)
