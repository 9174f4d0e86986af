"""Penalty (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024).

    L = mean_{i,c} ReLU( z_ic - max_j z⁰_ij ) + mean_{i,c} ReLU( min_j z⁰_ij - z_ic )

z⁰ are the zero-shot logits of the same images. Logits within their range cost nothing. Added to cross-entropy with a
weight of 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calprompt.losses.inputs import with_zero_shot
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def range_penalty(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """How far logits [B, C] lie outside the range of the zero-shot ones, averaged over all entries.

    Args:
        logits: Scaled logits [B, C].
        zero_shot: Logits of the untuned model, [B, C].

    >>> range_penalty(torch.tensor([[-1.0, 2.0, 7.0]]), torch.tensor([[0.0, 5.0, 1.0]]))  # (1 + 2) / 3
    tensor(1.)
    """
    logits, zero_shot = with_zero_shot(logits, zero_shot, "penalty")
    above = torch.relu(logits - zero_shot.max(dim=1, keepdim=True).values)
    below = torch.relu(zero_shot.min(dim=1, keepdim=True).values - logits)
    return above.mean() + below.mean()


@losses.register("penalty")
@dataclass(frozen=True)
class Penalty:
    """Logits outside the zero-shot range, `range_penalty`; added to cross-entropy."""

    uses_zero_shot: ClassVar[bool] = True

    def __call__(self, outputs: Outputs) -> Tensor:
        return range_penalty(outputs.logits, outputs.zero_shot_logits)
