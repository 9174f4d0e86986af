"""Tiny CLIP models with random weights, for tests."""

from __future__ import annotations

import torch
from open_clip.model import CLIP

from calprompt.clip import Backbone, Preprocessing

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def tiny_clip(
    *, vit: bool = True, seed: int = 0, width: int = 64, layers: int = 3, image_width: int = 48, embed: int = 32
) -> CLIP:
    """32 pixels; every weight and bias is random, so that a forgotten one shows."""
    vision = {"image_size": 32, "width": image_width, "head_width": 16, "patch_size": 8, "layers": layers}
    if not vit:
        vision = {"image_size": 32, "width": 8, "head_width": 16, "layers": (1, 1, 1, 1)}
    text = {"width": width, "heads": 4, "layers": layers}
    model = CLIP(embed, vision, text, quick_gelu=True, init_logit_scale=3.0)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name == "logit_scale":
            continue
        noise = torch.empty_like(parameter).normal_(0, 0.5 * parameter.shape[-1] ** -0.5, generator=generator)
        around_one = parameter.ndim == 1 and name.endswith("weight")
        parameter.data.copy_(noise + 1 if around_one else noise)
    return model.eval()


def tiny_backbone(*, dtype: torch.dtype = torch.float32, **shape: object) -> Backbone:
    model = tiny_clip(**shape).to(dtype)  # type: ignore[arg-type]
    return Backbone(model, preprocessing=Preprocessing(32, MEAN, STD), name="tiny", fingerprint="tiny")
