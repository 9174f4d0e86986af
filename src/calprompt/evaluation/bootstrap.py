"""Bootstrap intervals of metrics: the images drawn again with replacement, the model and the calibrator as they are.

A resample is a row of counts w [N], how often each image was drawn. A mean over images is then w·x / N, and the sums of
a bin are w·(x in the bin), so that many resamples are one product of matrices: counts [R, N] times columns [N, K].
What depends on the order of the confidences (ACE, AURC) is sorted once and accumulated along the sorted counts.

The interval is the percentile one. Errors of bins (ECE, ACE, MCE) are made of absolute values, which grow with noise,
and a resample is noisier than the sample: for a model that is nearly calibrated, or on few images, the interval lies
too high and may not even hold the value itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calprompt.errors import CalpromptError
from calprompt.metrics import Convention, EqualWidth, Predictions, binning
from calprompt.metrics.conventions import DEFAULT, find_convention
from calprompt.metrics.inputs import Floats, Ints
from calprompt.metrics.scores import squared_errors

AT_ONCE = 2_000_000  # counts held at a time


def bootstrap_intervals(
    given: Predictions,
    *,
    n_bins: int = 10,
    convention: Convention | str = DEFAULT,
    resamples: int = 1000,
    seed: int | Sequence[int] = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of all metrics but class-wise ECE and macro F1; the same seed draws the same images.

    >>> from calprompt.metrics import predictions
    >>> probs, labels = [[0.9, 0.1]] * 80 + [[0.7, 0.3]] * 20, [0] * 90 + [1] * 10
    >>> bootstrap_intervals(predictions(probs, labels))["accuracy"]
    (0.84, 0.96)
    """
    if resamples < 1:
        raise CalpromptError(f"resamples must be at least 1, got {resamples}")
    rng, n = np.random.default_rng(seed), len(given.labels)
    parts: list[dict[str, Floats]] = []
    left = resamples
    while left:
        rows = min(left, max(1, AT_ONCE // n))
        parts.append(resampled_metrics(given, draw_counts(rng, n, rows), n_bins=n_bins, convention=convention))
        left -= rows
    ends = [(1 - level) / 2, (1 + level) / 2]
    drawn = {name: np.quantile(np.concatenate([part[name] for part in parts]), ends) for name in parts[0]}
    return {name: (float(low), float(high)) for name, (low, high) in drawn.items()}


def draw_counts(rng: np.random.Generator, n: int, rows: int) -> Ints:
    """How often each of n images is drawn in n draws with replacement, [rows, n]."""
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def resampled_metrics(
    given: Predictions, counts: Ints, *, n_bins: int = 10, convention: Convention | str = DEFAULT
) -> dict[str, Floats]:
    """Metrics of resamples: of image i taken counts[r, i] times, [R] each. Every row of counts has the same sum."""
    rule, confidence, correct = find_convention(convention), given.confidence, given.correct.astype(np.float64)
    total, weights = int(counts[0].sum()), counts.astype(np.float64)
    columns = np.stack([correct, confidence, -given.log_likelihood, squared_errors(given)], axis=1)
    accuracy, sure, nll, brier = (weights @ columns / total).T
    ece, mce, weighted_mce = _binned(weights, confidence, correct, n_bins, rule.ece)
    if rule.mce != rule.ece:
        _, mce, weighted_mce = _binned(weights, confidence, correct, n_bins, rule.mce)
    ace, aurc = _ranked(counts, confidence, correct, n_bins)
    if rule.ace != "midrank":
        takes = (np.repeat(np.arange(len(confidence)), row) for row in counts)
        tables = (binning.mass_table(confidence[take], correct[take], n_bins, rule.ace) for take in takes)
        ace = np.array([table.expected_gap for table in tables])
    return {
        "accuracy": accuracy,
        "mean_confidence": sure,
        "confidence_gap": sure - accuracy,
        "nll": nll,
        "brier": brier,
        "ece": ece,
        "mce": mce,
        "weighted_mce": weighted_mce,
        "ace": ace,
        "aurc": aurc,
    }


def _binned(
    weights: Floats, confidence: Floats, correct: Floats, n_bins: int, bins: EqualWidth
) -> tuple[Floats, Floats, Floats]:
    """ECE, MCE and weighted MCE over equal-width bins, [R] each."""
    index, counted, averaged = binning.width_members(confidence, n_bins, bins)
    inside = (index[:, None] == np.arange(n_bins)).astype(np.float64)  # [N, bins]
    count, members, difference = (
        weights @ (inside * x[:, None]) for x in (counted, averaged, averaged * (correct - confidence))
    )
    gap = np.abs(np.divide(difference, members, out=np.zeros_like(difference), where=members > 0))
    terms = count * gap / weights[0].sum()
    return terms.sum(axis=1), gap.max(axis=1), terms.max(axis=1)


def _ranked(counts: Ints, confidence: Floats, correct: Floats, n_bins: int) -> tuple[Floats, Floats]:
    """ACE with mid-rank bins and AURC, [R] each: sums over images of equal confidence, then along the confidences."""
    order = np.argsort(confidence, kind="stable")
    values, first = np.unique(confidence[order], return_index=True)
    equal = np.add.reduceat(counts[:, order], first, axis=1)  # [R, values]
    right = np.add.reduceat(counts[:, order] * correct[order].astype(np.int64), first, axis=1)
    rows, total = len(counts), int(counts[0].sum())
    upto = np.cumsum(equal, axis=1)

    bins = np.minimum(n_bins * (2 * upto - equal) // (2 * total), n_bins - 1)  # the last is not drawn if it is beyond
    cell = bins + n_bins * np.arange(rows)[:, None]
    difference = np.bincount(cell.ravel(), (right - equal * values).ravel(), minlength=rows * n_bins)
    ace = np.abs(difference.reshape(rows, n_bins)).sum(axis=1) / total

    wrong = equal - right
    accepted = total - upto + equal  # at least this confident
    wrong_accepted = wrong.sum(axis=1, keepdims=True) - np.cumsum(wrong, axis=1) + wrong
    risk = wrong_accepted / np.maximum(accepted, 1)
    return ace, (equal * risk).sum(axis=1) / total
