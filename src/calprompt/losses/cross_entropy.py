"""Cross-entropy of the scaled logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from calprompt.losses.inputs import precise
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


@losses.register("ce")
@dataclass(frozen=True)
class CrossEntropy:
    """-mean_i log softmax(z_i)[y_i], in float32 or better."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return F.cross_entropy(precise(outputs.logits), outputs.labels)
