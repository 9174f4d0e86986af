"""Prompts as data: the token vectors for a backbone's two towers, and where they stand.

A class's prompt is a `prefix` that all classes share, then the `rest` of that class. The text mask is causal, so what
the tower computes at the prefix does not depend on the class and is computed once.

    class position   prefix                     rest of a class
    end              [start] v1 v2 v3 v4        name . [end]
    middle           [start] v1 v2              name v3 v4 . [end]
    front            [start]                    name v1 v2 v3 v4 . [end]
    class-specific   [start]                    v1 v2 v3 v4 name . [end]      (v1 … v4 differ between classes)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.registry import unknown

POSITIONS = ("end", "middle", "front")


@dataclass(frozen=True)
class TextPrompts:
    """Token vectors of the prompts of C classes, under N different prefixes (images, prompts or runs).

    Attributes:
        prefix: [N, P, W], the start token first.
        rest: [N or 1, T, W], the classes one after another, without padding; each ends with end-of-text.
        lengths: Tokens of each class in `rest`; they add up to T.
        deep: deep[k], [N or 1, n, W], overwrites positions 1 … n before block k + 1.
    """

    prefix: Tensor
    rest: Tensor
    lengths: tuple[int, ...]
    deep: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        if self.prefix.ndim != 3 or self.rest.ndim != 3 or self.rest.shape[1] != sum(self.lengths):
            raise ValueError(
                f"prefix must be [N, P, W] and rest [N or 1, T, W] with T = {sum(self.lengths)}, "
                f"got {tuple(self.prefix.shape)} and {tuple(self.rest.shape)}"
            )
        if any(vectors.ndim != 3 or vectors.shape[1] + 1 > self.prefix.shape[1] for vectors in self.deep):
            raise ValueError(
                f"deep prompts must be [N or 1, n, W] and fit positions 1 … n of a prefix of {self.prefix.shape[1]}, "
                f"got {[tuple(vectors.shape) for vectors in self.deep]}"
            )


@dataclass(frozen=True)
class VisualPrompts:
    """Token vectors appended after the patch tokens of a vision transformer.

    Attributes:
        shallow: [n, W], appended before the first block, without positional embedding.
        deep: deep[k], [n, W], overwrites them before block k + 1.
    """

    shallow: Tensor
    deep: Sequence[Tensor] = ()


@dataclass(frozen=True)
class PromptLayout:
    """Where every vector of the prompts of a class list comes from: a frozen token or a learned vector.

    Both are rows of one table, [frozen tokens; learned vectors], so filling in a context is one look-up.

    Attributes:
        names: The classes.
        ids: Token ids [C, 77], with placeholders where learned vectors go.
        frozen: Embeddings [F, W] of the frozen tokens.
        prefix: Rows [P] of the table.
        rest: Rows [T] of the table.
        lengths: Tokens of each class in `rest`.
        context_shape: (n,), or (C, n) if every class has its own context.
        learns_rest: Whether a learned vector stands after the prefix.
    """

    names: tuple[str, ...]
    ids: Tensor
    frozen: Tensor = field(repr=False)
    prefix: Tensor = field(repr=False)
    rest: Tensor = field(repr=False)
    lengths: tuple[int, ...] = field(repr=False)
    context_shape: tuple[int, ...] = ()
    learns_rest: bool = False

    def fill(self, context: Tensor, deep: Sequence[Tensor] = ()) -> TextPrompts:
        """The prompts with a context.

        Args:
            context: [*context_shape, W], or [N, *context_shape, W] for N prefixes.
            deep: Vectors [n, W] or [N, n, W] for the blocks after the first.
        """
        shared = len(self.context_shape)
        if context.ndim not in (shared + 1, shared + 2) or context.shape[-shared - 1 : -1] != self.context_shape:
            raise ValueError(
                f"context must be [N, {', '.join(map(str, self.context_shape))}, W], got {tuple(context.shape)}"
            )
        context = context if context.ndim == shared + 2 else context[None]
        context = context.flatten(1, -2)  # [N, learned vectors, W]
        table = torch.cat([self.frozen.to(context.dtype).expand(context.shape[0], -1, -1), context], dim=1)
        return TextPrompts(
            prefix=table.index_select(1, self.prefix),
            rest=(table if self.learns_rest else table[:1]).index_select(1, self.rest),
            lengths=self.lengths,
            deep=tuple(vectors if vectors.ndim == 3 else vectors[None] for vectors in deep),
        )


def lay_out(
    head: int, context: int, name_lengths: Sequence[int], tails: Sequence[int], position: str, class_specific: bool
) -> tuple[list[int], list[list[int]]]:
    """Rows of the prefix and of each class's rest, in the table [head tokens; tails; learned vectors]."""
    if position not in POSITIONS:
        raise unknown("position of the class name", position, POSITIONS)
    kept = list(range(1 + context, head))  # words of the phrase after the context: they stay frozen
    if kept and position != "end":
        raise SettingError(f"a phrase longer than the context needs the position 'end', got {position!r}")
    cut = {"end": context, "middle": context // 2, "front": 0}[position]
    prefix, rests = [0], []
    tail = head
    for number, (name_length, length) in enumerate(zip(name_lengths, tails, strict=True)):
        first = head + sum(tails) + (number * context if class_specific else 0)
        before = [*range(first, first + cut), *kept]
        after = range(first + cut, first + context)
        name, ending = range(tail, tail + name_length), range(tail + name_length, tail + length)
        shared = 0 if class_specific else len(before)
        prefix = [0, *before[:shared]]
        rests.append([*before[shared:], *name, *after, *ending])
        tail += length
    return prefix, rests
