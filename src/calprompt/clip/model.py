"""CLIP's two transformers as torch modules: weights only, under the names of open_clip's tensors.

`calprompt.clip.text` and `calprompt.clip.image` run them. open_clip's classes hold the same weights but take seconds to
import, so they are used only for the other image towers: residual networks and those of timm.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from calprompt.clip.architecture import Architecture


class QuickGELU(nn.Module):
    """x σ(1.702 x), the activation of OpenAI's models."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Weights of multi-head self-attention; queries, keys and values have one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)


class Block(nn.Module):
    """Weights of a transformer block."""

    def __init__(self, width: int, heads: int, hidden: int, quick_gelu: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ls_1, self.ls_2 = nn.Identity(), nn.Identity()
        parts = (nn.Linear(width, hidden), QuickGELU() if quick_gelu else nn.GELU(), nn.Linear(hidden, width))
        self.mlp = nn.Sequential(OrderedDict(zip(("c_fc", "gelu", "c_proj"), parts, strict=True)))


class Transformer(nn.Module):
    """Weights of the blocks of a tower."""

    def __init__(self, width: int, layers: int, heads: int, hidden: int, quick_gelu: bool) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads, hidden, quick_gelu) for _ in range(layers))


class VisionTransformer(nn.Module):
    """Weights of the image tower."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        width, patch, layers = shape.vision_width, shape.patch_size, shape.vision_layers
        assert patch is not None
        assert isinstance(layers, int)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(shape.grid**2 + 1, width))
        self.proj = nn.Parameter(torch.empty(width, shape.embed_dim))
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, shape.vision_heads, shape.vision_mlp, shape.quick_gelu)


class Clip(nn.Module):
    """Weights of a CLIP with a vision transformer."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        width = shape.text_width
        self.architecture = shape
        self.visual = VisionTransformer(shape)
        self.transformer = Transformer(width, shape.text_layers, shape.text_heads, shape.text_mlp, shape.quick_gelu)
        vectors = torch.empty(shape.vocab_size, width)  # given, since drawing them would import torch's compiler
        self.token_embedding = nn.Embedding(shape.vocab_size, width, _weight=vectors)
        self.positional_embedding = nn.Parameter(torch.empty(shape.context_length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, shape.embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))
