"""What losses are computed from: one record per training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outputs:
    """Logits and features of a batch of B images over C classes, embedding dimension D.

    Features are unit vectors, except for the text of ProDA, which is a mean of unit vectors.

    Attributes:
        logits: Scaled cosines [B, C].
        labels: Class indices [B].
        image: Image features [B, D].
        text: Tuned text features [C, D], or [B, C, D] if they depend on the image.
        frozen_text: Text features [C, D] of the untuned model.
        logit_scale: Factor that turns cosines into logits.
        frozen_image: Returns the image features [B, D] of the untuned model; called only if a loss needs them.
        terms: Weighted terms that the tuner adds to the objective, by name.
        predicted: Logits [B, C] of the prediction, where they differ from those of training.
        seed: Seed of this step, for losses that draw at random.
    """

    logits: Tensor
    labels: Tensor
    image: Tensor
    text: Tensor
    frozen_text: Tensor
    logit_scale: Tensor
    frozen_image: Callable[[], Tensor]
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    predicted: Tensor | None = None
    seed: int = 0

    @property
    def generator(self) -> torch.Generator:
        """A new generator with the seed of this step: a loss that is computed again draws the same numbers."""
        return torch.Generator().manual_seed(self.seed)

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is the label, [B]."""
        return (self.logits if self.predicted is None else self.predicted).detach().argmax(dim=1) == self.labels

    @property
    def zero_shot_logits(self) -> Tensor:
        """Logits of the untuned model, [B, C]."""
        return self.logit_scale * self.frozen_image() @ self.frozen_text.T
