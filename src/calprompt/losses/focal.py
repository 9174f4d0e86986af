"""Focal loss (Lin et al., ICCV 2017; for calibration: Mukhoti et al., NeurIPS 2020): hard images count more.

    L = -mean_i (1 - p_i)^γ log p_i          p_i = softmax(z_i)[y_i]

Images that are classified correctly with confidence count little. It replaces cross-entropy, which is γ = 0. With
d = z_y - log Σ_c≠y e^z_c, p is the sigmoid of d and 1 - p that of -d, so neither value nor gradient loses digits when
p is near 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from calprompt.errors import SettingError
from calprompt.losses.inputs import precise_logits
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy of logits [B, C] and labels [B], each image weighted by (1 - p)^γ.

    Args:
        logits: Scaled logits [B, C].
        labels: True classes [B].
        gamma: How much less sure predictions of the true class count; 0 is cross-entropy.

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
