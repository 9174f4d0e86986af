"""Margin-based label smoothing (Liu et al., The Devil is in the Margin, CVPR 2022): no logit far below the largest.

    L = mean_{i,c} ReLU( max_j z_ij - z_ic - m )

on scaled logits, added to cross-entropy with a weight of 0.1. Within the margin m the loss is 0; with m = 0 it pulls
all logits together, as label smoothing does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calprompt.losses.inputs import precise_logits
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def margin_label_smoothing(logits: Tensor, margin: float = 10.0) -> Tensor:
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
    """Logits further than a margin below the largest, `margin_label_smoothing`; added to cross-entropy."""

    margin: float = 10.0

    def __call__(self, outputs: Outputs) -> Tensor:
        return margin_label_smoothing(outputs.logits, self.margin)
