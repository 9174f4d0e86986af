"""MaPLe: prompts in both towers, the visual ones made from the text ones (Khattak et al., Multi-modal Prompt Learning,
CVPR 2023).

    text    [start] v1 v2 of a name . [end]     positions of v1, v2 overwritten by P_k before block k = 1 … depth-1
    image   [class] patches … F(v1) F(v2)       the last two tokens overwritten by F_k(P_k) before block k

F and the F_k are affine maps from the text tower's width to the image tower's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.prompts import VisualPrompts
from calprompt.errors import SettingError
from calprompt.tuners.base import Tuner, at_least_one, tuners


@tuners.register("maple")
class MaPLe(Tuner):
    """Learns coupled prompts in the first blocks of both towers.

    Args:
        context: How many vectors each block gets.
        words: The vectors at the input start from the first of these words, the others stay frozen; at random if None.
        depth: How many blocks get prompts, the first one at the input; 9, or all of a shallower tower, unless given.
        **base: Options of `Tuner`.
    """

    needs_pixels = True

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        context: int = 2,
        words: str | None = "a photo of a",
        depth: int | None = None,
        **base: Any,
    ) -> None:
        at_least_one(context=context)
        self.n, self.phrase = context, words if words else context
        super().__init__(backbone, class_names, **base)
        depth = prompt_depth(depth, "both towers", min(backbone.text_depth, backbone.image_depth))
        W, W_image = backbone.text_width, backbone.image_width
        self.context = self.initial_context(words, context, context)
        self.to_image = self.linear(W, W_image)
        self.deep = nn.ParameterList([self.random(context, W) for _ in range(depth - 1)])
        first = self.linear(W, W_image)
        self.deep_to_image = nn.ModuleList([deepcopy(first) for _ in range(depth - 1)])

    def bind(self) -> None:
        super().bind()
        self.layout = self.backbone.layout(self.class_names, self.phrase, context=self.n)

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return unit(self.backbone.encode_text(self.layout.fill(self.context, list(self.deep)))[0])

    def image_features(self, images: Tensor) -> Tensor:
        deep = [make(vectors) for make, vectors in zip(self.deep_to_image, self.deep, strict=True)]
        return unit(self.backbone.encode_image(images, VisualPrompts(self.to_image(self.context), deep)))


def prompt_depth(depth: int | None, where: str, blocks: int, option: str = "depth") -> int:
    """How many blocks get prompts: `depth` of them, or the published 9, but no more than the tower has."""
    if depth is None:
        return min(9, blocks)
    if depth < 1:
        raise SettingError(
            f"prompts of depth {depth} do not fit {where}: choose 1 to {blocks}, such as {option}={blocks}"
        )
    if depth > blocks:
        warnings.warn(
            f"prompts of depth {depth} do not fit {where}; they go into the first {blocks} blocks, as the option "
            f"{option} of {blocks} says",
            stacklevel=2,
        )
    return min(depth, blocks)
