"""Cross-entropy, and what changes its targets, its weights or its logits without looking at the untuned model.

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
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import logsigmoid

from calprompt.errors import SettingError
from calprompt.losses.base import losses, precise, precise_logits
from calprompt.outputs import Outputs


@losses.register("ce")
@dataclass(frozen=True)
class CrossEntropy:
    """-mean_i log softmax(z_i)[y_i], in float32 or better."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return F.cross_entropy(precise(outputs.logits), outputs.labels)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float = 0.1) -> Tensor:
    """Cross-entropy of logits [B, C] to labels [B] of which a share ε is spread over all classes.

    >>> import torch
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

    >>> import torch
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
