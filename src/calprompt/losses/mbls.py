"""Margin-based label smoothing (Liu et al., The Devil is in the Margin, CVPR 2022): no logit far below the largest.

    L = mean_{i,c} ReLU( max_j z_ij - z_ic - m )

on scaled logits, added to cross-entropy with a weight of 0.1. Within the margin m the loss is 0; with m = 0 it pulls
all logits together, as label smoothing does.

The published m = 10 is for logits that are 100 times a cosine. `mbls(cosine_margin=0.1)` is the same margin as a
difference of cosines, which acts alike in a CLIP with another logit scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.inputs import precise_logits
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def margin_label_smoothing(logits: Tensor, margin: float | Tensor = 10.0) -> Tensor:
    """How far logits [B, C] lie more than the margin below the maximum of their row, averaged over all entries.

    Among equal maxima the gradient goes to one.

    Args:
        logits: Scaled logits [B, C].
        margin: Distance from the largest logit that is free of penalty.

    >>> margin_label_smoothing(torch.tensor([[15.0, 6.0, 1.0, 15.0]]))  # only the third is further than 10
    tensor(1.)
    """
    logits = precise_logits(logits, "margin-based label smoothing")
    return torch.relu(logits.max(dim=1, keepdim=True).values - logits - margin).mean()


@losses.register("mbls")
@dataclass(frozen=True)
class MarginLabelSmoothing:
    """Logits further than a margin below the largest, `margin_label_smoothing`; added to cross-entropy.

    Attributes:
        margin: Difference of logits.
        cosine_margin: Difference of cosines, times the logit scale, instead of `margin`.
    """

    margin: float = 10.0
    cosine_margin: float | None = field(default=None, metadata={"added": True})

    def __post_init__(self) -> None:
        if self.cosine_margin is None:
            return
        if self.cosine_margin < 0:
            raise SettingError(f"cosine_margin of loss 'mbls' must be 0 or more, got {self.cosine_margin}")
        if self.margin != type(self).margin:
            raise SettingError("loss 'mbls' has margin and cosine_margin; leave one of them out")

    def __call__(self, outputs: Outputs) -> Tensor:
        if self.cosine_margin is None:
            return margin_label_smoothing(outputs.logits, self.margin)
        return margin_label_smoothing(outputs.logits, self.cosine_margin * outputs.logit_scale.detach())
