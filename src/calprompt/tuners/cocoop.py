"""CoCoOp: a context that each image shifts (Zhou et al., Conditional Prompt Learning for VLMs, CVPR 2022).

    [start] v1 + π … vn + π  name . [end]        π = meta-net(f): Linear(D, D/16) – ReLU – Linear(D/16, W)

f is the image's unit feature, so every image has class features of its own, [B, C, D]. All images of a batch are
encoded in one call, with a prefix per image.

Losses on text features, such as TCPT's moments, are taken over the C classes of each image and averaged over the batch;
the released TCPT code takes the last image of the batch instead (`text_of="last"`), which is the same for batches of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.tuners.base import Tuner, at_least_one, tuners

CPU_AT_ONCE = 2**19  # numbers per batch of a prediction (images x class tokens x width): about a processor's cache
AT_ONCE = 2**25  # the same on other devices, limited by memory only


@tuners.register("cocoop")
class CoCoOp(Tuner):
    """Learns context vectors and a small network that shifts them by the image.

    Args:
        words: The context starts from their embeddings; at random if None.
        context: How many vectors; one per token of the words, or 4, unless given. Further words stay frozen.
        text_of: Which text features the losses see: "all" images of the batch, or the "last".
        **base: Options of `Tuner`.
    """

    text_depends_on_image = True

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        words: str | None = "a photo of a",
        context: int | None = None,
        text_of: str = "all",
        **base: Any,
    ) -> None:
        if text_of not in ("all", "last"):
            raise SettingError(f"must be 'all' or 'last', got {text_of!r}", parameter="text_of")
        at_least_one(context=context)
        self.phrase: str | int = words or context or 4
        self.n, self.text_of = context, text_of
        super().__init__(backbone, class_names, **base)
        hidden = max(1, backbone.embed_dim // 16)
        self.context = self.initial_context(words, context, *self.layout.context_shape)
        self.meta_net = nn.Sequential(
            self.linear(backbone.embed_dim, hidden), nn.ReLU(), self.linear(hidden, backbone.text_width)
        )

    def bind(self) -> None:
        super().bind()
        self.layout = self.backbone.layout(self.class_names, self.phrase, context=self.n)

    def text_features(self, image: Tensor | None = None) -> Tensor:
        if image is None:
            return unit(self.backbone.encode_text(self.layout.fill(self.context))[0])
        context = self.context + self.meta_net(image)[:, None]  # [B, n, W]
        return unit(self.backbone.encode_text(self.layout.fill(context)))

    def common_text_features(self, images: Tensor) -> Tensor:
        """The text features [C, D] under the mean shift of the images."""
        shift = self.meta_net(self.image_features(images)).mean(dim=0)
        return unit(self.backbone.encode_text(self.layout.fill(self.context + shift))[0])

    def outputs(self, *record: Any) -> Outputs:
        outputs = super().outputs(*record)
        return replace(outputs, text=outputs.text[-1]) if self.text_of == "last" else outputs

    @torch.no_grad()
    def predict_features(self, image: Tensor) -> Tensor:
        numbers = (len(self.layout.prefix) + len(self.layout.rest)) * self.backbone.text_width  # per image
        at_once = max(1, (CPU_AT_ONCE if self.context.device.type == "cpu" else AT_ONCE) // numbers)
        return torch.cat([self.logits(part, self.text_features(part)) for part in image.split(at_once)])
