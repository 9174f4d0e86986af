"""Calibrators that map a probability to the frequency seen at it: histogram binning and isotonic regression.

Histogram binning (Zadrozny and Elkan, ICML 2001) of the top class's confidence: a bin's confidence is its accuracy.

    p = max_c softmax(z)_c falls into one of ten bins of equal width (lo, hi];  q = share of right predictions in it

The predicted class gets q; the other classes share 1 - q in the proportions they had. In a bin without validation
images confidences do not change. Where q is below what another class then gets, the prediction changes.

Isotonic regression (Zadrozny and Elkan, KDD 2002), one map for all classes: from probability to frequency, monotone.

    g = argmin Σ_{i,c} ( g(p_ic) - [y_i = c] )²  over non-decreasing g          q_ic ∝ g(p_ic) + 1e-9 p_ic

p = softmax(z). g is found by pooling adjacent violators, is linear between the scores it was fitted on and constant
beyond them. The last summand keeps the order of classes where g is flat; where g is 0 for all, p does not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators, refuse_one_outcome
from calprompt.metrics.binning import EqualWidth, check_n_bins, equal_width_table, width_index
from calprompt.metrics.inputs import Floats

TINY = torch.finfo(torch.float64).tiny  # a probability of 0 is written as the logarithm of this
TIE_BREAK = 1e-9


@calibrators.register("histogram")
@dataclass
class Histogram(Calibrator):
    """Confidence of the predicted class replaced by the accuracy of its bin. Returns log-probabilities.

    Attributes:
        n_bins: How many bins.
        accuracy: Accuracy of each bin, after the fit; None for a bin without images.

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
        confidence, predicted = top_confidence(record.logits.double())
        table = equal_width_table(
            confidence, predicted == record.given("labels").to(predicted.device), n_bins=self.n_bins
        )
        self.accuracy = [
            float(share) if count else None for share, count in zip(table.accuracy, table.count, strict=True)
        ]

    def apply(self, record: StoredLogits) -> Tensor:
        assert self.accuracy is not None
        logits = record.logits.double()
        confidence, predicted = top_confidence(logits)
        top = predicted[:, None]
        bins = torch.from_numpy(width_index(confidence.cpu().numpy(), self.n_bins, EqualWidth())).to(logits.device)
        accuracy = logits.new_tensor([float("nan") if share is None else share for share in self.accuracy])
        q = accuracy[bins][:, None]
        others = logits.scatter(1, top, float("-inf")).log_softmax(dim=1)  # proportions among the rest
        binned = ((1 - q).clamp(min=TINY).log() + others).scatter(1, top, q.clamp(min=TINY).log())
        return torch.where(q.isnan(), logits.log_softmax(dim=1), binned)

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "bins", "accuracy": self.accuracy}


def top_confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence and class of the predictions, both [n]; fit and application share it, so that bins are the same."""
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    return confidence, predicted


@calibrators.register("isotonic")
@dataclass
class Isotonic(Calibrator):
    """All class probabilities through one monotone map, then normalised. Returns log-probabilities.

    Attributes:
        scores: Corners of the map after the fit: probabilities.
        frequencies: Corners of the map after the fit: how often such a class is right.

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
        p = record.logits.double().softmax(dim=1).cpu()
        hit = torch.nn.functional.one_hot(record.given("labels").long().cpu(), p.shape[1])
        x, y = isotonic_regression(p.flatten().numpy(), hit.double().flatten().numpy())
        self.scores, self.frequencies = x.tolist(), y.tolist()

    def apply(self, record: StoredLogits) -> Tensor:
        p = record.logits.double().softmax(dim=1)
        q = torch.from_numpy(self.frequency(p.cpu().numpy())).to(p) + TIE_BREAK * p
        return (q / q.sum(dim=1, keepdim=True)).clamp(min=TINY).log()

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {
            "step": "monotone",
            "scores": self.scores,
            "frequencies": self.frequencies,
            "tie_break": TIE_BREAK,
        }

    def frequency(self, p: Floats) -> Floats:
        """The map g."""
        assert self.scores is not None
        assert self.frequencies is not None
        return np.asarray(np.interp(p, self.scores, self.frequencies))


def isotonic_regression(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Corners of the non-decreasing function of x that is nearest to y in least squares.

    Every pass pools each run of values that do not rise into its mean, until all rise. Falling values end up in one
    pool in any case, so many runs can be pooled at once.

    >>> isotonic_regression(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 3.0, 1.0, 5.0]))
    (array([1., 2., 3., 4.]), array([0., 2., 2., 5.]))
    """
    unique, which, weight = np.unique(x, return_inverse=True, return_counts=True)
    total = np.bincount(which, y)
    first = np.arange(len(unique))  # where each pool starts
    while (falls := np.diff(total / weight) <= 0).any():
        pool = np.concatenate([[0], np.cumsum(~falls)])
        total, weight = np.bincount(pool, total), np.bincount(pool, weight)
        first = first[np.concatenate([[True], ~falls])]
    last = np.append(first[1:], len(unique)) - 1
    corners = np.unique(np.concatenate([first, last]))
    values = np.repeat(total / weight, last - first + 1)
    return unique[corners], values[corners]
