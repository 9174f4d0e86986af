"""Losses on logits: cross-entropy, what changes its targets or weights, and what keeps logits near the zero-shot ones.

Label smoothing (Szegedy et al., Rethinking the Inception Architecture, CVPR 2016): softer targets.

    L = -mean_i Σ_c q_ic log softmax(z_i)_c          q_ic = (1 - ε) [c = y_i] + ε / C

It is cross-entropy with softer targets, so it replaces `ce`.

Focal loss (Lin et al., ICCV 2017; for calibration: Mukhoti et al., NeurIPS 2020): hard images count more.

    L = -mean_i (1 - p_i)^γ log p_i          p_i = softmax(z_i)[y_i]

Images that are classified correctly with confidence count little. It replaces cross-entropy, which is γ = 0. With
d = z_y - log Σ_c≠y e^z_c, p is the sigmoid of d and 1 - p that of -d, so neither value nor gradient loses digits when
p is near 0 or 1.

Margin-based label smoothing (Liu et al., The Devil is in the Margin, CVPR 2022): no logit far below the largest.

    L = mean_{i,c} ReLU( max_j z_ij - z_ic - m )

on scaled logits, added to cross-entropy with a weight of 0.1. Within the margin m the loss is 0; with m = 0 it pulls
all logits together, as label smoothing does.

The published m = 10 is for logits that are 100 times a cosine. `mbls(cosine_margin=0.1)` is the same margin as a
difference of cosines, which acts alike in a CLIP with another logit scale.

Penalty (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024): within the zero-shot range.

    L = mean_{i,c} ReLU( z_ic - max_j z⁰_ij ) + mean_{i,c} ReLU( min_j z⁰_ij - z_ic )

z⁰ are the zero-shot logits of the same images. Logits within their range cost nothing. Added to cross-entropy with a
weight of 10.

ZS-Norm (the same paper): cross-entropy of logits with the zero-shot range, instead of `ce`.

    R(z) = (z - min z) / (max z - min z) * (max z⁰ - min z⁰) + min z⁰          L = CE(R(z), y)

Minima and maxima are over the classes of an image. Gradients flow through those of z; nothing reaches z⁰. At test time
nothing is rescaled: that is the calibrator `sals`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import logsigmoid

from calprompt.errors import SettingError
from calprompt.losses.base import losses, precise, precise_logits, with_zero_shot
from calprompt.outputs import Outputs


@losses.register("ce")
@dataclass(frozen=True)
class CrossEntropy:
    """-mean_i log softmax(z_i)[y_i], in float32 or better."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return F.cross_entropy(precise(outputs.logits), outputs.labels)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float = 0.1) -> Tensor:
    """Cross-entropy of logits [B, C] to labels [B] of which a share ε is spread over all classes.

    >>> smoothed_cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), epsilon=0.5)  # 0.1269 + 0.25 * 2
    tensor(0.6269)
    """
    return F.cross_entropy(precise(logits), labels, label_smoothing=epsilon)


@losses.register("label_smoothing")
@dataclass(frozen=True)
class LabelSmoothing:
    """Cross-entropy to smoothed labels, `smoothed_cross_entropy`; instead of `ce`."""

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise SettingError(f"epsilon of label smoothing must lie in [0, 1], got {self.epsilon}")

    def __call__(self, outputs: Outputs) -> Tensor:
        return smoothed_cross_entropy(outputs.logits, outputs.labels, self.epsilon)


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy of logits [B, C] and labels [B], each image weighted by (1 - p)^γ.

    >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # 0.5² * 0.6931
    tensor(0.1733)
    """
    logits, labels = precise_logits(logits, "focal loss"), labels[:, None]
    d = logits.gather(1, labels)[:, 0] - logits.scatter(1, labels, float("-inf")).logsumexp(dim=1)
    return -((gamma * logsigmoid(-d)).exp() * logsigmoid(d)).mean()


@losses.register("focal")
@dataclass(frozen=True)
class Focal:
    """Cross-entropy that gives confident, correct images less weight, `focal_loss`; instead of `ce`."""

    gamma: float = 2.0

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise SettingError(f"gamma of the focal loss must be at least 0, got {self.gamma}")

    def __call__(self, outputs: Outputs) -> Tensor:
        return focal_loss(outputs.logits, outputs.labels, self.gamma)


def margin_label_smoothing(logits: Tensor, margin: float | Tensor = 10.0) -> Tensor:
    """How far logits [B, C] lie more than the margin below the maximum of their row, averaged over all entries.

    Among equal maxima the gradient goes to one.

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
