"""What a tuner hands to the losses: one record per training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outputs:
    """Logits and features of a batch of B images over C classes, embedding dimension D.

    Features are unit vectors, but for the text of ProDA, which is a mean of such.

    text         [C, D] tuned, or [B, C, D] if it depends on the image
    frozen_text  [C, D] of the untuned model
    terms        what the tuner adds to the objective by itself, already weighted
    frozen_image gives [B, D] of the untuned model: called only if a loss asks for zero-shot logits
    predicted    [B, C] logits of the prediction, where those of training are others
    """

    logits: Tensor  # [B, C], scaled
    labels: Tensor  # [B]
    image: Tensor  # [B, D]
    text: Tensor
    frozen_text: Tensor
    logit_scale: Tensor
    frozen_image: Callable[[], Tensor]
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    predicted: Tensor | None = None
    seed: int = 0  # of this step, for losses that draw

    @property
    def generator(self) -> torch.Generator:
        """A fresh one of this step: a loss that is computed again draws the same."""
        return torch.Generator().manual_seed(self.seed)

    @property
    def correct(self) -> Tensor:
        """[B] whether the predicted class is the label."""
        return (self.logits if self.predicted is None else self.predicted).detach().argmax(dim=1) == self.labels

    @property
    def zero_shot_logits(self) -> Tensor:
        """[B, C] logits of the untuned model."""
        return self.logit_scale * self.frozen_image() @ self.frozen_text.T
