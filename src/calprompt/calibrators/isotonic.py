"""Isotonic regression (Zadrozny and Elkan, KDD 2002), one map for all classes: from probability to frequency, monotone.

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

from calprompt.calibrators.base import Calibrator, calibrators, refuse_one_outcome
from calprompt.calibrators.stored_logits import StoredLogits
from calprompt.metrics.inputs import Floats

TIE_BREAK = 1e-9
TINY = torch.finfo(torch.float64).tiny  # a probability of 0 is written as the logarithm of this


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
