"""The image tower, with or without visual prompts.

Visual prompts are tokens of a vision transformer after the patches,

    [class] patch 1 … patch K | v1 … vn

added before its first normalisation; deep prompts replace them before the next blocks. The class token is read out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calprompt.clip.prompts import VisualPrompts
from calprompt.clip.transformer import layer_norm, run_block
from calprompt.errors import SettingError

if TYPE_CHECKING:
    from open_clip.modified_resnet import ModifiedResNet
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer


def encode_image(
    visual: VisionTransformer | ModifiedResNet | TimmModel, images: Tensor, prompts: VisualPrompts | None = None
) -> Tensor:
    """Image features of a tower."""
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer

    if isinstance(visual, VisionTransformer):
        features = _encode_vit(visual, images, prompts)
    elif prompts is None and isinstance(visual, TimmModel):  # on a CPU, convolutions are faster in this order
        features = visual(images.to(next(visual.parameters()).dtype, memory_format=torch.channels_last))
    elif prompts is None:
        features = visual(images.to(visual.conv1.weight.dtype))
    else:
        raise SettingError(
            "visual prompts need CLIP's vision transformer, and this backbone has another image tower; "
            "use a ViT backbone or a tuner that learns text prompts only"
        )
    return features.to(torch.promote_types(features.dtype, torch.float32))


def _encode_vit(visual: VisionTransformer, images: Tensor, prompts: VisualPrompts | None) -> Tensor:
    dtype = visual.conv1.weight.dtype
    patches = visual.conv1(images.to(dtype)).flatten(2).transpose(1, 2)  # [B, K, W]
    B, _, W = patches.shape
    x = torch.cat([visual.class_embedding.to(dtype).expand(B, 1, W), patches], dim=1)
    x = x + visual.positional_embedding.to(dtype)
    deep = prompts.deep if prompts is not None else ()
    if prompts is not None:
        x = torch.cat([x, prompts.shallow.to(dtype).expand(B, -1, -1)], dim=1)
    x = layer_norm(visual.ln_pre, x)
    class_token = torch.zeros(B, 1, dtype=torch.long, device=x.device)
    blocks = visual.transformer.resblocks
    for number, block in enumerate(blocks):
        if 0 < number <= len(deep):
            vectors = deep[number - 1].to(dtype)
            x = torch.cat([x[:, : -len(vectors)], vectors.expand(B, -1, -1)], dim=1)
        x = run_block(block, x, read=class_token if number + 1 == len(blocks) else None)
    return layer_norm(visual.ln_post, x[:, 0]) @ visual.proj
