"""Histogram binning (Zadrozny and Elkan, ICML 2001) of the top class's confidence: a bin's confidence is its accuracy.

    p = max_c softmax(z)_c falls into one of ten bins of equal width (lo, hi];  q = share of right predictions in it

The predicted class gets q; the other classes share 1 - q in the proportions they had. In a bin without validation
images confidences do not change. Where q is below what another class then gets, the prediction changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calprompt.calibrators.base import Calibrator, calibrators, refuse_one_outcome
from calprompt.calibrators.stored_logits import StoredLogits
from calprompt.metrics.binning import EqualWidth, check_n_bins, equal_width_table, width_index

TINY = torch.finfo(torch.float64).tiny  # a probability of 0 is written as the logarithm of this


@calibrators.register("histogram")
@dataclass
class Histogram(Calibrator):
    """Confidence of the predicted class replaced by the accuracy of its bin. Returns log-probabilities.

    Attributes:
        n_bins: How many bins.
        accuracy: Of each bin, after the fit; None for a bin without images.

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
