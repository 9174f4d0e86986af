"""A CLIP transformer block as a function, for both towers.

The weights stay in open_clip's modules; this runs them with two things that open_clip's forward cannot do: a separate
attention mask for each row of the batch, and, for the last block, only the positions that are read out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from open_clip.transformer import ResidualAttentionBlock


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
    from open_clip.transformer import QuickGELU

    if not isinstance(mlp.gelu, QuickGELU):
        return mlp(x)
    hidden = F.silu(mlp.c_fc(x).mul_(1.702))
    return F.linear(hidden, mlp.c_proj.weight) / 1.702 + mlp.c_proj.bias


def split(x: Tensor, heads: int) -> Tensor:
    """[R, L, W] -> [R, heads, L, W / heads]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def take(x: Tensor, positions: Tensor) -> Tensor:
    """x[r, positions[r]]: [R, L, W], [R, Q] -> [R, Q, W]"""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
