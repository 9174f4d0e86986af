"""The debiased calibration error: against simulation and exact binomials, and how often its interval covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from calprompt.metrics import (
    debiased_error,
    debiased_errors,
    equal_mass_table,
    equal_width_table,
    evaluate,
    predictions,
)
from calprompt.metrics.inputs import Floats


def drawn(seed: int, n: int = 300, bias: float = 0.05) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    confidence = 0.25 + 0.75 * rng.beta(3, 1.2, n)
    return confidence, (rng.random(n) < confidence - bias).astype(np.float64)


def simulated(confidence: Floats, accuracies: Floats, bins: int, draws: int = 40_000) -> Floats:
    """ECE of samples with these confidences, whose bins are right with these probabilities."""
    rng, which = np.random.default_rng(7), np.ceil(confidence * bins).astype(int) - 1
    count, said = (np.bincount(which, weights, minlength=bins) for weights in (None, confidence))
    right = rng.binomial(count.astype(int), accuracies, size=(draws, bins))
    return np.asarray(np.abs(right - said).sum(axis=1) / len(confidence))


@pytest.mark.parametrize(("seed", "bias", "bins"), [(0, 0.12, 5), (1, 0.15, 10), (2, 0.2, 10)])
def test_against_simulation(seed: int, bias: float, bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each end, and at the estimate, a simulation finds the measured error where the definition puts it."""
    monkeypatch.setattr("calprompt.metrics.debiased.CELLS_PER_ERROR", 300)
    confidence, right = drawn(seed, bias=bias)
    table = equal_width_table(confidence, right, n_bins=bins)
    found, share = debiased_error(table), table.count / table.total
    said = np.nan_to_num(table.confidence, nan=0.5)
    gap = np.nan_to_num(share * (table.accuracy - table.confidence))
    error = np.sqrt(share * said * (1 - said) / table.total)
    assert found.measured == pytest.approx(table.expected_gap)
    assert 0 < found.low < found.value < found.measured < found.high

    for end, tail, within in ((found.low, 0.025, 0.006), (found.value, 0.5, 0.02)):
        kept, rest = np.zeros(bins), end
        for b in sorted(np.flatnonzero(share), key=lambda b: -abs(gap[b]) / error[b]):
            kept[b] = np.sign(gap[b]) * min(rest, abs(gap[b]))
            rest -= abs(kept[b])
        offs = np.divide(kept, share, out=np.zeros(bins), where=share > 0)
        assert (simulated(confidence, said + offs, bins) >= found.measured).mean() == pytest.approx(tail, abs=within)

    grid = np.linspace(0, 20, 20_001)  # standard errors by which all bins are off
    room = share * np.maximum(said, 1 - said)
    level = grid[np.argmax(np.minimum(grid[:, None] * error, room).sum(axis=1) >= found.high)]
    offs = np.divide(np.minimum(level * error, room), share, out=np.zeros(bins), where=share > 0)
    even = simulated(confidence, said + np.where(said < 0.5, 1, -1) * offs, bins)
    assert (even <= found.measured).mean() == pytest.approx(0.025, abs=0.006)

    calibrated = simulated(confidence, said, bins)
    assert (calibrated >= found.measured).mean() == pytest.approx(found.p_value, abs=0.005)


@pytest.mark.parametrize("n", [50, 300, 2000])
def test_the_grid_is_fine_enough(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = equal_width_table(*drawn(4, n, 0.1))
    found = debiased_error(table)
    monkeypatch.setattr("calprompt.metrics.debiased.CELLS_PER_ERROR", 300)
    finer, spread = debiased_error(table), 0.4 / np.sqrt(n)  # about a standard error
    for name in ("value", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(finer, name), abs=0.2 * spread)
    assert found.p_value == pytest.approx(finer.p_value, abs=0.01)


def test_one_bin_gives_the_exact_binomial_test() -> None:
    found = debiased_error(equal_width_table([0.8] * 100, [True] * 65 + [False] * 35))
    assert binom.cdf(65, 100, 0.8 - found.low) == pytest.approx(0.025, abs=0.001)
    assert binom.sf(64, 100, 0.8 - found.high) == pytest.approx(0.025, abs=0.001)
    assert found.p_value == pytest.approx(binom.cdf(65, 100, 0.8) + binom.sf(94, 100, 0.8))


@pytest.mark.parametrize(("n", "bias", "ece"), [(50, 0.0, 0.0), (50, 0.1, 0.1), (200, 0.05, 0.05), (1000, 0.02, 0.02)])
def test_debiased_interval_covers_the_error_of_many_images(n: int, bias: float, ece: float) -> None:
    """The percentile bootstrap covered an ECE of 5 % in 61 % of samples of 200 images."""
    found = [debiased_error(equal_width_table(*drawn(seed, n, bias))) for seed in range(100)]
    covered = np.mean([each.low <= ece <= each.high for each in found])
    assert covered >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 100)
    assert np.mean([each.value for each in found]) < np.mean([each.measured for each in found])


def test_calibration_test_keeps_its_level_and_has_power() -> None:
    refused = [
        np.mean([debiased_error(equal_width_table(*drawn(seed, 200, bias))).p_value <= 0.05 for seed in range(100)])
        for bias in (0.0, 0.2)
    ]
    assert refused[0] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    assert refused[1] > 0.95


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 1000))
def test_interval_ends_are_in_order(n: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.0, 0.2, 0.5, 0.55, 0.9, 1.0], n)
    right = (rng.random(n) < rng.random()).astype(np.float64)
    for table in (equal_width_table(confidence, right, n_bins=bins), equal_mass_table(confidence, right, n_bins=bins)):
        found = debiased_error(table)
        assert 0 <= found.low <= found.value <= found.measured <= found.high <= 1
        assert 0 <= found.p_value <= 1


@pytest.mark.parametrize("convention", ["default", "tcpt", "dac"])
def test_ece_and_ace_follow_the_convention(convention: str) -> None:
    confidence, right = drawn(3)
    kept = confidence >= 0.5
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    sample = predictions(probabilities[kept], 1 - right[kept].astype(int))
    found, values = debiased_errors(sample, convention=convention), evaluate(sample, convention=convention)
    assert found["ece"].measured == pytest.approx(values["ece"])
    assert found["ace"].measured == pytest.approx(values["ace"])
