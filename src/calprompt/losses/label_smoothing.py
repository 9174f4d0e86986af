"""Label smoothing (Szegedy et al., Rethinking the Inception Architecture, CVPR 2016): softer targets.

    L = -mean_i Σ_c q_ic log softmax(z_i)_c          q_ic = (1 - ε) [c = y_i] + ε / C

It is cross-entropy with softer targets, so it replaces `ce`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.inputs import precise
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float = 0.1) -> Tensor:
    """Cross-entropy of logits [B, C] to labels [B] of which a share ε is spread over all classes.

    Args:
        logits: Scaled logits [B, C].
        labels: True classes [B].
        epsilon: Share of the label that is spread over all classes.

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
