"""The text tower under prompts: the shared prefix is computed once, and there is no padding.

Prefix and classes are concatenated in a single sequence,

    prefix | rest of class 1 | rest of class 2 | … | rest of class C

and the attention mask makes a tree of it: a token sees the prefix and the tokens before it in its class. Each token has
the position that it would have in a separate prompt, so the result is that of C separate prompts, without the
77 - length tokens of padding. Long class lists are folded into several such rows, because the cost of attention within
a row grows with the square of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from calprompt.clip.model import layer_norm, run_block
from calprompt.clip.prompts import TextPrompts

if TYPE_CHECKING:
    from open_clip.model import CLIP


@dataclass(frozen=True)
class Rows:
    """C prompts folded into R rows of L tokens.

    Attributes:
        tokens: Indices [R, L] into the table [prefix; rest; one padding token].
        positions: Positions [R, L] within the separate prompts.
        mask: Attention mask [R, 1, L, L].
        ends: Where each class's end-of-text is, [R, Q], padded.
        end_mask: The rows of the mask at `ends`, [R, 1, Q, L].
        classes: The index of each class in the flattened `ends`, [C].
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    ends: Tensor
    end_mask: Tensor
    classes: Tensor


@lru_cache(maxsize=64)
def fold(prefix: int, lengths: tuple[int, ...], device: torch.device, row_tokens: int) -> Rows:
    """Fold classes into rows of about equal length, near `row_tokens` with the prefix."""
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
            span = slice(at, at + lengths[c])
            tokens[r, span] = prefix + torch.arange(starts[c], starts[c + 1])
            positions[r, span] = prefix + torch.arange(lengths[c])
            owner[r, span] = c
            at += lengths[c]
            ends[r, q] = at - 1
            classes[c] = r * Q + q
    causal = torch.ones(L, L, dtype=torch.bool).tril()
    related = (owner[:, :, None] == owner[:, None, :]) | (owner[:, None, :] == -1)
    mask = (causal & related)[:, None]  # a padding token sees other padding and the prefix: never an empty row
    end_mask = mask[torch.arange(len(rows))[:, None], :, ends].transpose(1, 2)
    return Rows(*(tensor.to(device) for tensor in (tokens, positions, mask, ends, end_mask, classes)))


def encode_text(model: CLIP, prompts: TextPrompts, *, chunk: int | None = None, checkpointing: bool = False) -> Tensor:
    """Text features of every class under every prefix."""
    lengths = prompts.lengths
    chunk = len(lengths) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 class, got {chunk}")
    parts, start = [], 0
    for first in range(0, len(lengths), chunk):
        part_lengths = lengths[first : first + chunk]
        rest = prompts.rest[:, start : start + sum(part_lengths)]
        start += sum(part_lengths)
        if checkpointing:
            part = checkpoint(_encode, model, prompts.prefix, rest, part_lengths, prompts.deep, use_reentrant=False)
        else:
            part = _encode(model, prompts.prefix, rest, part_lengths, prompts.deep)
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
    """The number of tokens per row that costs least.

    Relative to the matrix products of a token, its attention costs about row / (3 width), as measured, and its share of
    the prefix, which every row repeats, prefix / row.
    """
    return max(32, round((3 * width * prefix) ** 0.5))


def overwrite(x: Tensor, vectors: Tensor, rows: int) -> Tensor:
    """Replace positions 1 … n of every row by deep prompts: x [N R, L, W], vectors [N or 1, n, W]."""
    n = vectors.shape[1]
    vectors = vectors.expand(x.shape[0] // rows, -1, -1).repeat_interleave(rows, dim=0)
    return torch.cat([x[:, :1], vectors, x[:, 1 + n :]], dim=1)
