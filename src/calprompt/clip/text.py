"""The text tower under prompts: the shared prefix once, every class's rest attending to it, no padding.

Prefix and classes are laid one after another in a single sequence,

    prefix | rest of class 1 | rest of class 2 | … | rest of class C

and the attention mask makes a tree of it: a token sees the prefix and what comes before it in its own class. Each token
has the position it would have in its own prompt, so the result is that of C separate prompts, without the 77 - length
tokens of padding and with the prefix computed once. Long class lists are folded into several such rows, because the
attention within a row grows with the square of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from calprompt.clip.prompts import TextPrompts
from calprompt.clip.transformer import layer_norm, run_block

if TYPE_CHECKING:
    from open_clip.model import CLIP


@dataclass(frozen=True)
class Rows:
    """C prompts folded into R rows of L tokens; `tokens` are rows of the table [prefix; rest; one padding token]."""

    tokens: Tensor  # [R, L]
    positions: Tensor  # [R, L]
    mask: Tensor  # [R, 1, L, L]
    ends: Tensor  # [R, Q] where each class's end-of-text is, padded
    end_mask: Tensor  # [R, 1, Q, L] the mask's rows of these
    classes: Tensor  # [C] the place of each class in the flattened `ends`


@lru_cache(maxsize=64)
def fold(prefix: int, lengths: tuple[int, ...], device: torch.device, row_tokens: int) -> Rows:
    """Classes into rows of about equal length, near `row_tokens` with the prefix where a class fits at all."""
    total = sum(lengths)
    target = total / max(1, round(total / max(1, row_tokens - prefix)))
    rows: list[list[int]] = [[]]  # class numbers
    filled = 0.0
    for number, length in enumerate(lengths):
        if rows[-1] and filled + length / 2 > target * len(rows):
            rows.append([])
        rows[-1].append(number)
        filled += length
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)

    L = prefix + max(sum(lengths[c] for c in row) for row in rows)
    Q = max(len(row) for row in rows)
    tokens = torch.full((len(rows), L), prefix + total)
    positions = torch.zeros(len(rows), L, dtype=torch.long)
    owner = torch.full((len(rows), L), -2)  # -1 the prefix, -2 padding, else the class
    ends = torch.zeros(len(rows), Q, dtype=torch.long)
    classes = torch.empty(len(lengths), dtype=torch.long)
    for r, row in enumerate(rows):
        tokens[r, :prefix] = positions[r, :prefix] = torch.arange(prefix)
        owner[r, :prefix] = -1
        at = prefix
        for q, c in enumerate(row):
            here = slice(at, at + lengths[c])
            tokens[r, here] = prefix + torch.arange(starts[c], starts[c + 1])
            positions[r, here] = prefix + torch.arange(lengths[c])
            owner[r, here] = c
            at += lengths[c]
            ends[r, q] = at - 1
            classes[c] = r * Q + q
    causal = torch.ones(L, L, dtype=torch.bool).tril()
    related = (owner[:, :, None] == owner[:, None, :]) | (owner[:, None, :] == -1)
    mask = (causal & related)[:, None]  # a padding token sees other padding and the prefix: never an empty row
    end_mask = mask[torch.arange(len(rows))[:, None], :, ends].transpose(1, 2)
    return Rows(*(each.to(device) for each in (tokens, positions, mask, ends, end_mask, classes)))


def encode_text(model: CLIP, prompts: TextPrompts, *, chunk: int | None = None, checkpointing: bool = False) -> Tensor:
    """Features at end-of-text of every class under every prefix, [N, C, D], not normalised.

    chunk          classes at a time; `None`: all
    checkpointing  keep no activations of a chunk, compute them again for its gradient
    """
    lengths = prompts.lengths
    chunk = len(lengths) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk is a number of classes, at least 1; got {chunk}")
    parts, start = [], 0
    for first in range(0, len(lengths), chunk):
        here = lengths[first : first + chunk]
        rest = prompts.rest[:, start : start + sum(here)]
        start += sum(here)
        if checkpointing:
            part = checkpoint(_encode, model, prompts.prefix, rest, here, prompts.deep, use_reentrant=False)
        else:
            part = _encode(model, prompts.prefix, rest, here, prompts.deep)
        parts.append(part)
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _encode(model: CLIP, prefix: Tensor, rest: Tensor, lengths: tuple[int, ...], deep: Sequence[Tensor]) -> Tensor:
    blocks = model.transformer.resblocks
    dtype = blocks[0].mlp.c_fc.weight.dtype
    N, P, W = prefix.shape
    rows = fold(P, lengths, prefix.device, best_row(P, W))
    R, L = rows.tokens.shape

    padding = prefix.new_zeros(N, 1, W)
    table = torch.cat([prefix, rest.expand(N, -1, -1), padding], dim=1)
    x = table.index_select(1, rows.tokens.flatten()).unflatten(1, (R, L))  # [N, R, L, W]
    x = x + model.positional_embedding[rows.positions].to(x.dtype)
    x = x.to(dtype).flatten(0, 1)  # [N R, L, W]
    mask, end_mask = (m.repeat(N, 1, 1, 1) if R > 1 else m for m in (rows.mask, rows.end_mask))
    ends = rows.ends.repeat(N, 1)
    for number, block in enumerate(blocks):
        if 0 < number <= len(deep):
            x = overwrite(x, deep[number - 1].to(dtype), R)
        last = number + 1 == len(blocks)
        x = run_block(block, x, end_mask, ends) if last else run_block(block, x, mask)
    x = layer_norm(model.ln_final, x) @ model.text_projection  # [N R, Q, D]
    x = x.unflatten(0, (N, R)).flatten(1, 2)  # [N, R Q, D]
    return x.index_select(1, rows.classes).to(torch.promote_types(x.dtype, torch.float32))


def best_row(prefix: int, width: int) -> int:
    """Tokens in a row, where what grows with it and what shrinks balance.

    Relative to a token's matrices, its attention costs about row / (3 width), as measured, and its share of a repeated
    prefix prefix / row.
    """
    return max(32, round((3 * width * prefix) ** 0.5))


def overwrite(x: Tensor, vectors: Tensor, rows: int) -> Tensor:
    """Deep prompts in place of positions 1 … n of every row: x [N R, L, W], vectors [N or 1, n, W]."""
    n = vectors.shape[1]
    vectors = vectors.expand(x.shape[0] // rows, -1, -1).repeat_interleave(rows, dim=0)
    return torch.cat([x[:, :1], vectors, x[:, 1 + n :]], dim=1)
