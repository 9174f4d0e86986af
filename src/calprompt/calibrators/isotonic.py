"""Calibrators that map a probability to the frequency seen at it: histogram binning and isotonic regression.

Histogram binning (Zadrozny and Elkan, ICML 2001) of the top class's confidence: a bin's confidence is its accuracy.

    p = max_c softmax(z)_c falls into one of ten bins of equal width (lo, hi];  q = share of right predictions in it

The predicted class gets q; the other classes share 1 - q in the proportions they had. In a bin without validation
images confidences do not change. Where q is below what another class then gets, the prediction changes.

Isotonic regression (Zadrozny and Elkan, KDD 2002), one map for all classes: from probability to frequency, monotone.

    g = argmin Σ_{i,c} ( g(p_ic) - [y_i = c] )²  over non-decreasing g          q_ic ∝ g(p_ic) + 1e-9 p_ic

p = softmax(z). g is linear between the scores it was fitted on and constant
beyond them. The last summand keeps the order of classes where g is flat; where g is 0 for all, p does not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators, refuse_one_outcome
from calprompt.kernel import softmax
from calprompt.metrics.binning import check_n_bins, equal_width_table
from calprompt.metrics.inputs import Floats

TIE_BREAK = 1e-9


@calibrators.register("histogram")
@dataclass
class Histogram(Calibrator):
    """Confidence of the predicted class replaced by the accuracy of its bin. Returns log-probabilities.

    Attributes:
        n_bins: Number of bins.
        accuracy: Accuracy of each bin, after the fit; None for a bin without images.

    >>> import torch
    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> binned = Histogram().fit(logits, torch.tensor([0, 0, 0, 1]))  # 98 % sure, 75 % right
    >>> binned(logits).softmax(dim=1)[0].round(decimals=6).tolist()
    [0.75, 0.25]
    """

    keeps_argmax = False
    novel = True
    learns = ("accuracy",)

    n_bins: int = 10
    accuracy: list[float | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_n_bins(self.n_bins)

    def learn(self, record: StoredLogits) -> None:
        refuse_one_outcome(record, self.name)
        p = softmax(record.logits.double().cpu().numpy())
        correct = p.argmax(axis=1) == record.given("labels").cpu().numpy()
        table = equal_width_table(p.max(axis=1), correct, n_bins=self.n_bins)
        self.accuracy = [
            float(share) if count else None for share, count in zip(table.accuracy, table.count, strict=True)
        ]

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "bins", "accuracy": self.accuracy}


@calibrators.register("isotonic")
@dataclass
class Isotonic(Calibrator):
    """All class probabilities through one monotone map, then normalised. Returns log-probabilities.

    Attributes:
        scores: Corners of the map after the fit: probabilities.
        frequencies: Corners of the map after the fit: how often such a class is right.

    >>> import torch
    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> mapped = Isotonic().fit(logits, torch.tensor([0, 0, 0, 1]))  # 98 % sure, 75 % right
    >>> mapped(logits).softmax(dim=1)[0].round(decimals=6).tolist()
    [0.75, 0.25]
    """

    keeps_argmax = True
    novel = True
    learns = ("scores", "frequencies")

    scores: list[float] | None = field(default=None, init=False)
    frequencies: list[float] | None = field(default=None, init=False)

    def learn(self, record: StoredLogits) -> None:
        refuse_one_outcome(record, self.name)
        p = softmax(record.logits.double().cpu().numpy())
        hit = np.eye(p.shape[1])[record.given("labels").cpu().numpy()]
        x, y = isotonic_regression(p.ravel(), hit.ravel())
        self.scores, self.frequencies = x.tolist(), y.tolist()

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {
            "step": "monotone",
            "scores": self.scores,
            "frequencies": self.frequencies,
            "tie_break": TIE_BREAK,
        }


def isotonic_regression(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Corners of the non-decreasing function of x that is nearest to y in least squares.

    >>> isotonic_regression(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 3.0, 1.0, 5.0]))
    (array([1., 2., 3., 4.]), array([0., 2., 2., 5.]))
    """
    from sklearn.isotonic import isotonic_regression as pooled

    unique, which, weight = np.unique(x, return_inverse=True, return_counts=True)
    values = pooled(np.bincount(which, y) / weight, sample_weight=weight.astype(np.float64))
    rises = np.concatenate([[True], np.diff(values) > 0, [True]])
    corners = rises[:-1] | rises[1:]  # the first and the last of each level
    return unique[corners], values[corners]
