"""Zero-shot CLIP: one sentence for every class, nothing learned."""

from __future__ import annotations

from torch import Tensor

from calprompt.tuners.base import Tuner, tuners


@tuners.register("zero-shot")
class ZeroShot(Tuner):
    """The untuned model, as a tuner without parameters."""

    learns = False

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return self.frozen_text
