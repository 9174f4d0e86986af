"""Against outside implementations: torchmetrics, scikit-learn, and a plain loop over bins and samples."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch
from sklearn.preprocessing import KBinsDiscretizer
from torchmetrics.functional.classification import multiclass_calibration_error

import samples
from calprompt.metrics import (
    accuracy,
    adaptive_calibration_error,
    brier_score,
    classwise_calibration_error,
    equal_width_table,
    expected_calibration_error,
    macro_f1,
    maximum_calibration_error,
    negative_log_likelihood,
    weighted_maximum_calibration_error,
)
from calprompt.metrics.binning import mass_index, quantile_edges


def random_logits(n: int, n_classes: int, seed: int, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(n_classes, (n,), generator=generator)


CASES = [(500, 10, 0, 2.0), (57, 3, 1, 0.3), (3, 4, 2, 1.0), (1000, 100, 3, 4.0)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_against_torchmetrics(case: tuple[int, int, int, float], n_bins: int) -> None:
    """torchmetrics has [lo, hi) and gives confidence exactly 1 a bin of its own; random logits meet neither."""
    logits, labels = random_logits(*case)
    probs = logits.softmax(dim=1)
    for norm, ours in (("l1", expected_calibration_error), ("max", maximum_calibration_error)):
        theirs = multiclass_calibration_error(probs, labels, num_classes=case[1], n_bins=n_bins, norm=norm)
        near = samples.rounding(terms=len(labels))  # torchmetrics adds up in float32
        assert ours(probs, labels, n_bins=n_bins) == pytest.approx(theirs.item(), abs=near)


def test_where_torchmetrics_differs() -> None:
    """Ten bins, right with 0.95 and wrong with 1.0: one bin for us (the gap averages), two for torchmetrics."""
    probs, labels = torch.tensor([[0.95, 0.05], [1.0, 0.0]], dtype=torch.float64), torch.tensor([0, 1])
    theirs = multiclass_calibration_error(probs, labels, num_classes=2, n_bins=10, norm="l1").item()
    assert expected_calibration_error(probs, labels) == pytest.approx(0.475)
    assert theirs == pytest.approx(0.525, abs=samples.rounding(terms=2))


@pytest.mark.parametrize("case", CASES)
def test_against_scikit_learn(case: tuple[int, int, int, float]) -> None:
    logits, labels = random_logits(*case)
    probs, truth = logits.softmax(dim=1).numpy(), labels.numpy()
    classes = np.arange(case[1])
    one_hot = np.eye(case[1])[truth]
    predicted = probs.argmax(axis=1)
    loss = sklearn.metrics.log_loss(truth, probs, labels=classes)
    f1 = sklearn.metrics.f1_score(truth, predicted, average="macro", labels=np.unique(truth))
    assert negative_log_likelihood(probs, truth) == pytest.approx(loss, rel=1e-12)
    assert negative_log_likelihood(logits, labels, from_logits=True) == pytest.approx(loss, rel=1e-12)
    assert accuracy(probs, truth) == sklearn.metrics.accuracy_score(truth, predicted)
    assert macro_f1(probs, truth) == pytest.approx(f1, abs=1e-12)
    summed = sklearn.metrics.mean_squared_error(one_hot, probs) * case[1]
    assert brier_score(probs, truth) == pytest.approx(summed, rel=1e-12)


def test_brier_of_two_classes_is_twice_the_binary_one() -> None:
    logits, labels = random_logits(80, 2, 5)
    probs = logits.softmax(dim=1)
    binary = sklearn.metrics.brier_score_loss(labels.numpy(), probs[:, 1].numpy())
    assert brier_score(probs, labels) == pytest.approx(2 * binary, rel=1e-12)


@pytest.mark.filterwarnings("ignore:Bins whose width")
@pytest.mark.parametrize("quantile", ["linear", "averaged_inverted_cdf"])
@pytest.mark.parametrize("n_bins", [2, 10, 37])
@pytest.mark.parametrize("decimals", [1, 2, 16])
def test_quantile_bins_against_scikit_learn(quantile: str, n_bins: int, decimals: int) -> None:
    values = np.random.default_rng(n_bins).random(213).round(decimals)
    theirs = KBinsDiscretizer(n_bins, encode="ordinal", strategy="quantile", quantile_method=quantile)
    expected = theirs.fit_transform(values[:, None])[:, 0]
    np.testing.assert_array_equal(mass_index(values, n_bins, quantile), expected)
    np.testing.assert_array_equal(quantile_edges(values, n_bins, quantile), theirs.bin_edges_[0])


@pytest.mark.parametrize("n_bins", [1, 7, 10])
def test_against_plain_loops(n_bins: int) -> None:
    """The formulas of the docstrings, written out sample by sample with exact fractions k/n as edges."""
    rng = np.random.default_rng(n_bins)
    probs = rng.integers(1, 11, (60, 3)).astype(float)
    probs /= probs.sum(axis=1, keepdims=True)
    labels = rng.integers(0, 3, 60)

    def terms(confidence: np.ndarray, hit: np.ndarray) -> list[tuple[float, float]]:
        found = []
        for b in range(n_bins):
            inside = [i for i, c in enumerate(confidence) if b / n_bins < c <= (b + 1) / n_bins or (b == 0 and c == 0)]
            if inside:
                gap = abs(sum(hit[inside]) / len(inside) - sum(confidence[inside]) / len(inside))
                found.append((len(inside) / len(confidence), gap))
        return found

    top = terms(probs.max(axis=1), probs.argmax(axis=1) == labels)
    assert expected_calibration_error(probs, labels, n_bins=n_bins) == pytest.approx(sum(w * g for w, g in top))
    assert maximum_calibration_error(probs, labels, n_bins=n_bins) == pytest.approx(max(g for _, g in top))
    weighted = weighted_maximum_calibration_error(probs, labels, n_bins=n_bins)
    assert weighted == pytest.approx(max(w * g for w, g in top))
    per_class = [sum(w * g for w, g in terms(probs[:, k], labels == k)) for k in range(3)]
    assert classwise_calibration_error(probs, labels, n_bins=n_bins) == pytest.approx(np.mean(per_class))


def test_adaptive_bins_by_hand() -> None:
    """Six confidences in three bins: pairs of neighbours; with the middle four tied, these share the middle bin."""
    confidence = np.array([0.55, 0.6, 0.7, 0.8, 0.9, 0.95])
    hit = np.array([0, 1, 1, 0, 1, 1])
    probs, labels = np.stack([confidence, 1 - confidence], axis=1), 1 - hit
    by_pairs = (abs(1 - 1.15) + abs(1 - 1.5) + abs(2 - 1.85)) / 6
    assert adaptive_calibration_error(probs, labels, n_bins=3) == pytest.approx(by_pairs)
    confidence[1:5] = 0.75
    probs = np.stack([confidence, 1 - confidence], axis=1)
    tied = (abs(0 - 0.55) + abs(3 - 3.0) + abs(1 - 0.95)) / 6
    assert adaptive_calibration_error(probs, labels, n_bins=3) == pytest.approx(tied)


def test_decimal_edges_are_bin_edges() -> None:
    """0.3 and 0.7, as typed, close the third and the seventh of ten bins."""
    table = equal_width_table([0.3, 0.7, 0.0, 1.0], [1, 1, 1, 1])
    assert np.flatnonzero(table.count).tolist() == [0, 2, 6, 9]
