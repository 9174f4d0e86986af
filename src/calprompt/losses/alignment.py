"""Losses that align tuned text features t with the frozen ones u (TCPT, ablations).

    l1    mean_{c,d} | t_cd - u_cd |
    l2    mean_{c,d} ( t_cd - u_cd )²

Unlike `moments`, which lets classes move as long as their mean and covariance stay, both keep each class in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.losses.base import losses, tuned_and_frozen
from calprompt.outputs import Outputs


def text_l1(tuned: Tensor, frozen: Tensor) -> Tensor:
    """Mean absolute difference between features [..., C, D] and [C, D]; no gradient reaches `frozen`.

    Args:
        tuned: Tuned text features [..., C, D].
        frozen: Untuned text features [C, D].

    >>> import torch
    >>> text_l1(torch.eye(2), torch.eye(2).flip(0))  # every entry differs by 1
    tensor(1.)
    """
    tuned, frozen = tuned_and_frozen(tuned, frozen)
    return (tuned - frozen).abs().mean()


@losses.register("l1")
@dataclass(frozen=True)
class TextL1:
    """Mean absolute difference between tuned and frozen text features, `text_l1`."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return text_l1(outputs.text, outputs.frozen_text)


def text_l2(tuned: Tensor, frozen: Tensor) -> Tensor:
    """Mean squared difference between features [..., C, D] and [C, D]; no gradient reaches `frozen`.

    Args:
        tuned: Tuned text features [..., C, D].
        frozen: Untuned text features [C, D].

    >>> import torch
    >>> text_l2(torch.eye(2), 3 * torch.eye(2))  # two of four entries differ by 2
    tensor(2.)
    """
    tuned, frozen = tuned_and_frozen(tuned, frozen)
    return (tuned - frozen).square().mean()


@losses.register("l2")
@dataclass(frozen=True)
class TextL2:
    """Mean squared difference between tuned and frozen text features, `text_l2`."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return text_l2(outputs.text, outputs.frozen_text)
