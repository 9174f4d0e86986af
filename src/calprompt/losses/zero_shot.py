"""Losses that keep logits in the range of the zero-shot ones.

Penalty (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024).

    L = mean_{i,c} ReLU( z_ic - max_j z⁰_ij ) + mean_{i,c} ReLU( min_j z⁰_ij - z_ic )

z⁰ are the zero-shot logits of the same images. Logits within their range cost nothing. Added to cross-entropy with a
weight of 10.

ZS-Norm (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024).

    R(z) = (z - min z) / (max z - min z) * (max z⁰ - min z⁰) + min z⁰          L = CE(R(z), y)

z⁰ are the zero-shot logits of the same image; minima and maxima are over its classes. Cross-entropy sees logits with
the zero-shot range, so it replaces `ce`. Gradients flow through the minimum and the maximum of z; nothing reaches z⁰.
At test time nothing is rescaled: that is the calibrator `sals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.base import losses, with_zero_shot
from calprompt.outputs import Outputs


def range_penalty(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """How far logits [B, C] lie outside the range of the zero-shot ones, averaged over all entries.

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


def rescale_to_range(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """Logits [B, C] mapped row by row, linearly, onto the range of the zero-shot ones.

    >>> rescale_to_range(torch.tensor([[0.0, 5.0, 10.0]]), torch.tensor([[2.0, 4.0, 3.0]]))
    tensor([[2., 3., 4.]])
    """
    logits, zero_shot = with_zero_shot(logits, zero_shot, "rescaling to the zero-shot range")
    flat = (logits.amax(dim=1) == logits.amin(dim=1)).nonzero().flatten().tolist()
    if flat:
        raise SettingError(
            f"image {flat[0]} has the same logit for every class, so there is no range to rescale "
            f"(this is so for {len(flat)} of {len(logits)} images); the text features of all classes may have collapsed"
        )
    return _rescale(logits, zero_shot)


def _rescale(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """The same without waiting for the device to look for rows without a range: these become NaN."""
    low, high = logits.min(dim=1, keepdim=True).values, logits.max(dim=1, keepdim=True).values
    bottom, top = zero_shot.min(dim=1, keepdim=True).values, zero_shot.max(dim=1, keepdim=True).values
    return torch.lerp(bottom, top, (logits - low) / (high - low))  # both ends are met exactly


def zero_shot_normalised_cross_entropy(logits: Tensor, labels: Tensor, zero_shot: Tensor) -> Tensor:
    """Cross-entropy of logits that were rescaled to the zero-shot range.

    >>> z, z0 = torch.tensor([[0.0, 9.0]]), torch.tensor([[1.0, 2.0]])
    >>> zero_shot_normalised_cross_entropy(z, torch.tensor([1]), z0)  # log(1 + 1/e)
    tensor(0.3133)
    """
    return F.cross_entropy(_rescale(*with_zero_shot(logits, zero_shot, "rescaling to the zero-shot range")), labels)


@losses.register("zs_norm")
@dataclass(frozen=True)
class ZeroShotNorm:
    """Cross-entropy of logits rescaled to the zero-shot range (ZS-Norm); instead of `ce`."""

    uses_zero_shot: ClassVar[bool] = True

    def __call__(self, outputs: Outputs) -> Tensor:
        return zero_shot_normalised_cross_entropy(outputs.logits, outputs.labels, outputs.zero_shot_logits)
