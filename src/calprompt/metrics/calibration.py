"""Calibration errors: how far confidence and accuracy are apart, bin by bin.

With n_b samples in bin b, acc_b the fraction correct and conf_b the mean confidence:

    ECE            Σ_b n_b/N · |acc_b − conf_b|      equal-width bins
    ACE            Σ_b n_b/N · |acc_b − conf_b|      equal-mass bins
    MCE            max_b       |acc_b − conf_b|      the textbook definition
    weighted MCE   max_b n_b/N · |acc_b − conf_b|    called MCE in the tables of the TCPT and DAC papers

so that weighted MCE ≤ ECE ≤ MCE. All are fractions; published tables show them × 100.
"""

from __future__ import annotations

import numpy as np

from calprompt.metrics import binning
from calprompt.metrics.binning import DEFAULT, BinTable, Convention, check_n_bins, find_convention
from calprompt.metrics.evaluation import metrics
from calprompt.metrics.inputs import (
    ArrayLike,
    Floats,
    Predictions,
    checked_outcomes,
    checked_vector,
    predictions,
)

Scores = ArrayLike | Predictions
Labels = ArrayLike | None
Rule = Convention | str


@metrics.register(
    "ece",
    label="ECE",
    about="expected calibration error: mean gap between confidence and accuracy over bins of equal width, percent",
)
def expected_calibration_error(sample: Predictions, n_bins: int, rule: Convention) -> float:
    """Expected calibration error over equal-width bins: Σ_b n_b/N · |acc_b − conf_b|.

    >>> round(expected_calibration_error([[0.8, 0.2], [0.75, 0.25], [0.4, 0.6]], [0, 1, 1]), 6)
    0.316667
    """
    return binning.width_table(*_vectors(sample), n_bins, rule.ece).expected_gap


@metrics.register(
    "ace", label="ACE", about="adaptive calibration error: the same over bins with equally many images, percent"
)
def adaptive_calibration_error(sample: Predictions, n_bins: int, rule: Convention) -> float:
    """Adaptive calibration error, ECE over bins of equal mass: Σ_b n_b/N · |acc_b − conf_b|.

    Samples of equal confidence share a bin, see `equal_mass_table`.

    >>> round(adaptive_calibration_error([[0.8, 0.2], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1], n_bins=1), 6)
    0.033333
    """
    return binning.mass_table(*_vectors(sample), n_bins, rule.ace).expected_gap


@metrics.register("mce", label="MCE (textbook)", shown=())
def maximum_calibration_error(sample: Predictions, n_bins: int, rule: Convention) -> float:
    """Maximum calibration error of the textbooks: max_b |acc_b − conf_b| over bins that have samples, however few.

    >>> round(maximum_calibration_error([[0.8, 0.2], [0.75, 0.25], [0.4, 0.6]], [0, 1, 1]), 6)
    0.4
    """
    return binning.width_table(*_vectors(sample), n_bins, rule.mce).maximum_gap


@metrics.register(
    "weighted_mce",
    label="MCE (weighted)",
    about="largest gap of a bin, weighted with its share of the images, as published tables have it, percent",
    shown=("report",),
)
def weighted_maximum_calibration_error(sample: Predictions, n_bins: int, rule: Convention) -> float:
    """The largest term of the ECE: max_b n_b/N · |acc_b − conf_b|. Published as "MCE" by TCPT and DAC; never above ECE.

    >>> round(weighted_maximum_calibration_error([[0.8, 0.2], [0.75, 0.25], [0.4, 0.6]], [0, 1, 1]), 6)
    0.183333
    """
    return binning.width_table(*_vectors(sample), n_bins, rule.mce).weighted_maximum_gap


@metrics.register("classwise_ece", label="class-wise ECE", shown=())
def classwise_calibration_error(sample: Predictions, n_bins: int, rule: Convention) -> float:
    """Class-wise ECE (Kull et al., 2019): every class's probability against how often that class is the label.

    (1/C) Σ_k Σ_b n_bk/N · |freq_bk − conf_bk|, with the samples binned by p_k, for each class k in turn.

    >>> round(classwise_calibration_error([[0.8, 0.2], [0.7, 0.3]], [0, 1], n_bins=2), 6)
    0.25
    """
    tables = (
        binning.width_table(p, (sample.labels == k).astype(np.float64), n_bins, rule.ece)
        for k, p in enumerate(np.ascontiguousarray(sample.probs.T))
    )
    return float(np.mean([table.expected_gap for table in tables]))


def proximity_calibration_error(
    probs: Scores,
    labels: Labels = None,
    *,
    distances: ArrayLike,
    n_bins: int = 10,
    n_distance_bins: int | None = None,
    from_logits: bool = False,
    convention: Rule = DEFAULT,
) -> float:
    """Proximity-informed ECE (PIECE; Xiong et al., 2023): ECE over cells of confidence × distance to the neighbours.

    Σ_{d,b} n_db/N · |acc_db − conf_db|, with equal-width bins of confidence (those of the convention's MCE) and
    equal-mass bins of distance. `evaluate` does not compute it, because it needs the distances.

    Args:
        probs: Probabilities or logits [N, C], or checked `Predictions`.
        labels: Class indices [N].
        distances: Distance of each sample to its neighbours [N].
        n_bins: Bins of confidence.
        n_distance_bins: Bins of distance; as many as of confidence, unless given.
        from_logits: Whether `probs` are logits.
        convention: Binning convention.

    >>> round(proximity_calibration_error([[0.8, 0.2], [0.75, 0.25]], [0, 1], distances=[0.1, 0.9]), 6)
    0.475
    """
    rule = find_convention(convention)
    sample = predictions(probs, labels, from_logits=from_logits, softmax=rule.softmax)
    return _proximity(*_vectors(sample), distances, n_bins, n_distance_bins, rule)


def calibration_errors_from_confidence(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    distances: ArrayLike | None = None,
    n_bins: int = 10,
    convention: Rule = DEFAULT,
) -> dict[str, float]:
    """The errors that need only each sample's confidence and whether it was correct.

    Args:
        confidence: Confidence of each sample, in [0, 1].
        correct: Whether each prediction is correct.
        distances: Distance of each sample to its neighbours; with them, PIECE is computed as well.
        n_bins: Number of bins.
        convention: Binning convention.

    Returns:
        ece, ace, mce, weighted_mce, confidence_gap, and piece if there are distances.

    >>> errors = calibration_errors_from_confidence([0.8, 0.75, 0.6], [True, False, True])
    >>> {name: round(value, 3) for name, value in errors.items()}
    {'ece': 0.317, 'ace': 0.45, 'mce': 0.4, 'weighted_mce': 0.183, 'confidence_gap': 0.05}
    """
    rule, n_bins = find_convention(convention), check_n_bins(n_bins)
    confidence, correct = checked_outcomes(confidence, correct)
    mce_table = binning.width_table(confidence, correct, n_bins, rule.mce)
    errors = {
        "ece": binning.width_table(confidence, correct, n_bins, rule.ece).expected_gap,
        "ace": binning.mass_table(confidence, correct, n_bins, rule.ace).expected_gap,
        "mce": mce_table.maximum_gap,
        "weighted_mce": mce_table.weighted_maximum_gap,
        "confidence_gap": float(confidence.mean() - correct.mean()),
    }
    if distances is not None:
        errors["piece"] = _proximity(confidence, correct, distances, n_bins, None, rule)
    return errors


def reliability_table(
    probs: Scores,
    labels: Labels = None,
    *,
    n_bins: int = 10,
    equal_mass: bool = False,
    from_logits: bool = False,
    convention: Rule = DEFAULT,
) -> BinTable:
    """The reliability diagram as data.

    Args:
        probs: Probabilities or logits [N, C], or checked `Predictions`.
        labels: Class indices [N].
        n_bins: Number of bins.
        equal_mass: Use the bins of the ACE instead of those of the ECE.
        from_logits: Whether `probs` are logits.
        convention: Binning convention.

    >>> reliability_table([[0.8, 0.2], [0.75, 0.25]], [0, 1], n_bins=2).rows()[1]
    {'lower': 0.5, 'upper': 1.0, 'count': 2, 'confidence': 0.775, 'accuracy': 0.5, 'gap': 0.275}
    """
    rule, n_bins = find_convention(convention), check_n_bins(n_bins)
    confidence, correct = _vectors(predictions(probs, labels, from_logits=from_logits, softmax=rule.softmax))
    if equal_mass:
        return binning.mass_table(confidence, correct, n_bins, rule.ace)
    return binning.width_table(confidence, correct, n_bins, rule.ece)


def _vectors(sample: Predictions) -> tuple[Floats, Floats]:
    return sample.confidence, sample.correct.astype(np.float64)


def _proximity(
    confidence: Floats,
    correct: Floats,
    distances: ArrayLike,
    n_bins: int,
    n_distance_bins: int | None,
    rule: Convention,
) -> float:
    n_bins = check_n_bins(n_bins)
    n_rows = n_bins if n_distance_bins is None else check_n_bins(n_distance_bins)
    row = binning.mass_index(checked_vector(distances, "distances", len(confidence)), n_rows, rule.ace)
    column = binning.width_index(confidence, n_bins, rule.mce)
    return binning.cell_table(row * n_bins + column, n_rows * n_bins, confidence, correct).expected_gap
