"""CLIP's two transformers: modules that hold the weights, and functions that run a block and the image tower.

The modules have the names of open_clip's tensors. open_clip's classes hold the same weights but take seconds to import,
so they are used only for the other image towers: residual networks and those of timm. The functions run both, with two
things that open_clip's forward cannot do: a separate attention mask for each row of the batch, and, for the last block,
only the positions that are read out.

Visual prompts are tokens of a vision transformer after the patches,

    [class] patch 1 … patch K | v1 … vn

added before its first normalisation; deep prompts replace them before the next blocks. The class token is read out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calprompt.clip.prompts import VisualPrompts
from calprompt.errors import SettingError

if TYPE_CHECKING:
    from open_clip.modified_resnet import ModifiedResNet
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import ResidualAttentionBlock
    from open_clip.transformer import VisionTransformer as OpenClipTransformer

    from calprompt.clip.architecture import Architecture


class QuickGELU(nn.Module):
    """x σ(1.702 x), the activation of OpenAI's models."""

    def forward(self, x: Tensor) -> Tensor:
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


def layer_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """LayerNorm in at least float32, returned in the dtype of `x`."""
    if not isinstance(norm, nn.LayerNorm):
        return norm(x)
    precise = torch.promote_types(x.dtype, torch.float32)
    weight, bias = norm.weight.to(precise), norm.bias.to(precise)
    return F.layer_norm(x.to(precise), norm.normalized_shape, weight, bias, norm.eps).to(x.dtype)


def run_block(
    block: ResidualAttentionBlock, x: Tensor, mask: Tensor | None = None, read: Tensor | None = None
) -> Tensor:
    """A transformer block: x + attention, then x + mlp."""
    h = layer_norm(block.ln_1, x)
    weight, bias, width = block.attn.in_proj_weight, block.attn.in_proj_bias, x.shape[-1]
    if read is None:
        q, k, v = F.linear(h, weight, bias).chunk(3, dim=-1)
    else:
        x, h_read = take(x, read), take(h, read)
        q = F.linear(h_read, weight[:width], bias[:width])
        k, v = F.linear(h, weight[width:], bias[width:]).chunk(2, dim=-1)
    heads = block.attn.num_heads
    attended = F.scaled_dot_product_attention(split(q, heads), split(k, heads), split(v, heads), attn_mask=mask)
    x = x + block.ls_1(block.attn.out_proj(attended.transpose(1, 2).flatten(2)))
    return x + block.ls_2(run_mlp(block.mlp, layer_norm(block.ln_2, x)))


def run_mlp(mlp: Any, x: Tensor) -> Tensor:
    """The MLP of a block; QuickGELU x σ(1.702 x) is computed as SiLU(1.702 x) / 1.702, one kernel with less memory."""
    if isinstance(mlp.gelu, nn.GELU):
        return mlp(x)
    hidden = F.silu(mlp.c_fc(x).mul_(1.702))
    return F.linear(hidden, mlp.c_proj.weight) / 1.702 + mlp.c_proj.bias


def split(x: Tensor, heads: int) -> Tensor:
    """[R, L, W] -> [R, heads, L, W / heads]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def take(x: Tensor, positions: Tensor) -> Tensor:
    """x[r, positions[r]]: [R, L, W], [R, Q] -> [R, Q, W]"""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))


def is_vision_transformer(visual: nn.Module) -> bool:
    return hasattr(visual, "class_embedding")


def is_timm_tower(visual: nn.Module) -> bool:
    """Whether an image tower is open_clip's wrapper of one of timm's."""
    return hasattr(visual, "trunk")


def encode_image(
    visual: OpenClipTransformer | ModifiedResNet | TimmModel, images: Tensor, prompts: VisualPrompts | None = None
) -> Tensor:
    """Image features of a tower."""
    if is_vision_transformer(visual):
        features = _encode_vit(visual, images, prompts)
    elif prompts is None and is_timm_tower(visual):  # on a CPU, convolutions are faster in this order
        features = visual(images.to(next(visual.parameters()).dtype, memory_format=torch.channels_last))
    elif prompts is None:
        features = visual(images.to(visual.conv1.weight.dtype))
    else:
        raise SettingError(
            "visual prompts need CLIP's vision transformer, and this backbone has another image tower; "
            "use a ViT backbone or a tuner that learns text prompts only"
        )
    return features.to(torch.promote_types(features.dtype, torch.float32))


def _encode_vit(visual: OpenClipTransformer, images: Tensor, prompts: VisualPrompts | None) -> Tensor:
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
