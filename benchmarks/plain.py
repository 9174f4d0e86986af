"""The plain path, as the public code runs it: every class in full, 77 tokens, open_clip's own blocks.

It shares nothing with `calprompt.clip.text` and `calprompt.clip.model` but the weights; tests and benchmarks compare
with it.
"""

from __future__ import annotations

import torch
from open_clip.model import CLIP
from open_clip.transformer import VisionTransformer
from torch import Tensor

from calprompt.clip.model import Clip
from calprompt.clip.prompts import TextPrompts, VisualPrompts


def open_clip_model(model: Clip | CLIP) -> CLIP:
    """open_clip's model with the same weights, which can be run by its own forward."""
    if not isinstance(model, Clip):
        return model
    same = model.architecture.build_open_clip()
    same.load_state_dict(model.state_dict(), assign=True)
    length, weight = model.architecture.context_length, model.positional_embedding
    same.attn_mask = torch.full((length, length), -torch.inf, dtype=weight.dtype, device=weight.device).triu_(1)
    return same.eval().requires_grad_(False)


def encode_text_plain(model: CLIP, prompts: TextPrompts) -> Tensor:
    """Features at end-of-text of every class under every prefix, [N, C, D], not normalised."""
    N, P, W = prompts.prefix.shape
    C, context_length = len(prompts.lengths), model.positional_embedding.shape[0]
    dtype = model.transformer.get_cast_dtype()
    rests = prompts.rest.expand(N, -1, -1).split(prompts.lengths, dim=1)
    full = [
        torch.cat([prompts.prefix, rest, rest.new_zeros(N, context_length - P - rest.shape[1], W)], dim=1)
        for rest in rests
    ]
    x = torch.stack(full, dim=1).flatten(0, 1)  # [N C, 77, W]
    x = (x + model.positional_embedding.to(x.dtype)).to(dtype)
    for number, block in enumerate(model.transformer.resblocks):
        if 0 < number <= len(prompts.deep):
            vectors = prompts.deep[number - 1].to(dtype).expand(N, -1, -1).repeat_interleave(C, dim=0)
            x = torch.cat([x[:, :1], vectors, x[:, 1 + vectors.shape[1] :]], dim=1)
        x = block(x, attn_mask=model.attn_mask.to(dtype))
    x = model.ln_final(x)
    ends = torch.tensor(prompts.lengths, device=x.device) + P - 1
    x = x[torch.arange(N * C, device=x.device), ends.repeat(N)] @ model.text_projection
    return x.unflatten(0, (N, C)).to(torch.promote_types(x.dtype, torch.float32))


def encode_image_plain(visual: VisionTransformer, images: Tensor, prompts: VisualPrompts) -> Tensor:
    """Image features [B, D] under visual prompts, with open_clip's own blocks, every token in every block."""
    x = visual.conv1(images).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], dim=1) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([x, prompts.shallow.expand(len(x), -1, -1)], dim=1))
    kept = x.shape[1] - len(prompts.shallow)
    for number, block in enumerate(visual.transformer.resblocks):
        if 0 < number <= len(prompts.deep):
            x = torch.cat([x[:, :kept], prompts.deep[number - 1].expand(len(x), -1, -1)], dim=1)
        x = block(x)
    return visual.ln_post(x[:, 0]) @ visual.proj
