"""Metrics without bins: accuracy, macro F1, Brier score, negative log-likelihood, mean confidence and its gap."""

from __future__ import annotations

import numpy as np

from calprompt.metrics.binning import DEFAULT, Convention
from calprompt.metrics.evaluation import checked, metrics
from calprompt.metrics.inputs import ArrayLike, Floats, Predictions

Scores = ArrayLike | Predictions
Labels = ArrayLike | None
Rule = Convention | str


@metrics.register("accuracy", label="accuracy", better="higher", about="share of right predictions, percent")
def accuracy(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Fraction of samples whose largest score is at the label: (1/N) Σ_i 1[ŷ_i = y_i]. Of equal scores the first wins.

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> accuracy([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1, 0])
    0.75
    """
    return float(checked(probs, labels, from_logits, convention).correct.mean())


@metrics.register("macro_f1", label="macro F1", better="higher", shown=())
def macro_f1(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Mean over the classes that occur among the labels of F1_k = 2·TP_k / (labelled k + predicted k).

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> macro_f1([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    0.6666666666666666
    """
    sample = checked(probs, labels, from_logits, convention)
    n_classes = sample.probs.shape[1]
    labelled = np.bincount(sample.labels, minlength=n_classes)
    predicted = np.bincount(sample.predicted, minlength=n_classes)
    hit = np.bincount(sample.labels[sample.correct], minlength=n_classes)
    seen = labelled > 0
    return float((2 * hit[seen] / (labelled[seen] + predicted[seen])).mean())


@metrics.register("brier", label="Brier", unit="0 to 2", shown=())
def brier_score(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Multi-class Brier score, summed over classes: (1/N) Σ_i Σ_k (p_ik − 1[y_i = k])², between 0 and 2.

    For two classes it is twice the binary Brier score.

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> round(brier_score([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 6)
    0.26
    """
    return float(squared_errors(checked(probs, labels, from_logits, convention)).mean())


def squared_errors(sample: Predictions) -> Floats:
    """The terms of the Brier score: Σ_k (p_k − 1[y=k])² = Σ_{k≠y} p_k² + (1 − p_y)² of each image."""
    at_label = sample.probs[np.arange(len(sample.labels)), sample.labels]
    others = np.einsum("nk,nk->n", sample.probs, sample.probs) - at_label**2
    return np.asarray(np.maximum(others, 0) + (1 - at_label) ** 2)


@metrics.register("nll", label="NLL", unit="nats", about="negative log likelihood")
def negative_log_likelihood(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Mean negative log-likelihood in nats, −(1/N) Σ_i log p_i(y_i): the cross-entropy.

    From logits it is the float64 log-softmax, whatever the convention. A probability of exactly 0 counts as the
    smallest positive number of its dtype (1e-45 for float32), so that the mean stays finite; it is then too small.

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    1.0397207708399179
    """
    return float(-checked(probs, labels, from_logits, convention).log_likelihood.mean()) + 0.0


@metrics.register("mean_confidence", label="mean confidence", better="higher", shown=())
def mean_confidence(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Mean of the largest probability: (1/N) Σ_i max_k p_ik.

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> mean_confidence([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    0.625
    """
    return float(checked(probs, labels, from_logits, convention).confidence.mean())


@metrics.register(
    "confidence_gap",
    label="confidence gap",
    better="zero",
    about="mean confidence minus accuracy, percentage points; above 0 is over-confident",
    shown=("report",),
)
def confidence_gap(
    probs: Scores, labels: Labels = None, *, n_bins: int = 10, from_logits: bool = False, convention: Rule = DEFAULT
) -> float:
    """Mean confidence − accuracy, signed: positive is over-confident, negative under-confident. |gap| ≤ ECE.

    Args:
        probs: Probabilities [N, C], or logits, or checked `Predictions`.
        labels: True classes [N]; not given with `Predictions`.
        n_bins: Number of bins, for metrics that have bins.
        from_logits: Whether `probs` are logits.
        convention: How to bin: "default", "tcpt", "dac" or a `Convention`.

    >>> confidence_gap([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    0.125
    """
    sample = checked(probs, labels, from_logits, convention)
    return float(sample.confidence.mean() - sample.correct.mean())
