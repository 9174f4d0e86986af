"""What losses share: their registry, and checks of what they are given.

A loss is a frozen dataclass of settings that is called with `Outputs` and returns a scalar. It may have a method
`parts()` that returns parts of it as losses by name, for diagnostics, and a class attribute `uses_zero_shot` if it
needs zero-shot logits. A setting that is added to a loss of an earlier release is a field with the metadata `added`, so
that earlier runs keep their identity. Losses are computed in float32 or better; no gradient reaches the frozen side.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.registry import Registry

Loss = Callable[[Outputs], Tensor]

losses: Registry[Callable[..., Loss]] = Registry("loss")


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own precision if that is higher.

    >>> precise(torch.zeros(1, dtype=torch.float16)).dtype, precise(torch.zeros(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def precise_logits(logits: Tensor, loss: str) -> Tensor:
    """Logits [B, C] of two or more classes, in float32 or better; the name of the loss is for the error."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise SettingError(
            f"{loss}: logits must have the shape [batch, classes] with two or more classes, got {tuple(logits.shape)}"
        )
    return precise(logits)


def with_zero_shot(logits: Tensor, zero_shot: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Logits and, detached, the zero-shot logits of the same images, both [B, C]."""
    if logits.shape != zero_shot.shape:
        raise SettingError(
            f"{loss}: tuned and zero-shot logits must be of the same images and classes, "
            f"got {tuple(logits.shape)} and {tuple(zero_shot.shape)}"
        )
    logits = precise_logits(logits, loss)
    dtype = torch.promote_types(logits.dtype, zero_shot.dtype)
    return logits.to(dtype), zero_shot.detach().to(dtype)


def tuned_and_frozen(tuned: Tensor, frozen: Tensor) -> tuple[Tensor, Tensor]:
    """Text features [..., C, D] and, detached, the frozen ones [C, D] of the same classes, in one dtype."""
    if tuned.ndim < 2 or tuned.shape[-2:] != frozen.shape[-2:]:
        raise SettingError(
            f"tuned and frozen features must have the shape [..., classes, dimensions] for the same classes, "
            f"got {tuple(tuned.shape)} and {tuple(frozen.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(tuned.dtype, frozen.dtype), torch.float32)
    return tuned.to(dtype), frozen.detach().to(dtype)
