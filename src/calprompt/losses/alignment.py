"""Losses that align tuned text features t with the frozen ones u (TCPT, ablations).

    l1               mean_{c,d} | t_cd - u_cd |
    l2               mean_{c,d} ( t_cd - u_cd )²
    orthogonality    | mean_{c ≠ c'} t_c · t_c' - mean_{c ≠ c'} u_c · u_c' |

Unlike `moments`, which lets classes move as long as their mean and covariance stay, the first two keep each class in
its place. The sum over pairs of the third is ||Σ_c t_c||² - Σ_c ||t_c||², so no [C, C] matrix is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.errors import SettingError
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


def mean_similarity(features: Tensor) -> Tensor:
    """Mean inner product of two different rows, [..., C, D] -> [...].

    >>> import torch
    >>> mean_similarity(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.6000)
    """
    classes = features.shape[-2]
    if classes < 2:
        raise SettingError(f"orthogonality compares classes and needs at least two of them, got {classes}")
    pairs = features.sum(dim=-2).square().sum(dim=-1) - features.square().sum(dim=(-2, -1))
    return pairs / (classes * (classes - 1))


def orthogonality_gap(tuned: Tensor, frozen: Tensor) -> Tensor:
    """Difference of the mean similarities of features [..., C, D] and [C, D], averaged over leading dimensions.

    Args:
        tuned: Tuned text features [..., C, D].
        frozen: Untuned text features [C, D].

    >>> import torch
    >>> orthogonality_gap(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.6000)
    """
    tuned, frozen = tuned_and_frozen(tuned, frozen)
    return (mean_similarity(tuned) - mean_similarity(frozen)).abs().mean()


@losses.register("orthogonality")
@dataclass(frozen=True)
class Orthogonality:
    """Difference of the mean similarity between classes, tuned and frozen, `orthogonality_gap`."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return orthogonality_gap(outputs.text, outputs.frozen_text)
