"""Losses on the text features of classes: how near tuned ones t are to the frozen ones u, and to each other.

    l1            mean_{c,d} | t_cd - u_cd |                                   TCPT, ablations
    l2            mean_{c,d} ( t_cd - u_cd )²
    similarity    | mean_{c ≠ c'} t_c · t_c' - mean_{c ≠ c'} u_c · u_c' |      as near as the frozen ones (TCPT's code)
    otpt          mean_{c ≠ c'} (t_c · t_c')²                                  orthogonal (O-TPT, arXiv 2503.12096)

Unlike `moments`, which lets classes move as long as their mean and covariance stay, the first two keep each class in
its place. The others, on features of length 1, are both called orthogonality. `similarity` is what a former version of
TCPT's code trains in the place of the moments; it does not push classes apart. `otpt` is the class-wise dispersion that
TCPT's supplement cites: O-TPT's ||T Tᵀ - I||², divided by the number of pairs, so that its weight means the same for 10
classes and 100.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.base import losses, tuned_and_frozen
from calprompt.outputs import Outputs


def text_l1(tuned: Tensor, frozen: Tensor) -> Tensor:
    """Mean absolute difference between features [..., C, D] and [C, D]; no gradient reaches `frozen`.

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

    The sum over pairs is ||Σ_c t_c||² - Σ_c ||t_c||², so no [C, C] matrix is made.

    >>> import torch
    >>> mean_similarity(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.6000)
    """
    pairs = features.sum(dim=-2).square().sum(dim=-1) - features.square().sum(dim=(-2, -1))
    return pairs / _pairs(features)


def similarity_gap(tuned: Tensor, frozen: Tensor) -> Tensor:
    """Difference of the mean similarities of features [..., C, D] and [C, D], averaged over leading dimensions.

    >>> import torch
    >>> similarity_gap(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.6000)
    """
    tuned, frozen = tuned_and_frozen(tuned, frozen)
    return (mean_similarity(tuned) - mean_similarity(frozen)).abs().mean()


def orthogonality_penalty(tuned: Tensor) -> Tensor:
    """Mean squared cosine between features [..., C, D] of different classes, averaged over leading dimensions.

    >>> import torch
    >>> orthogonality_penalty(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    tensor(0.3600)
    """
    cosines = tuned @ tuned.transpose(-2, -1)
    squares = cosines.square().sum(dim=(-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).square().sum(dim=-1)
    return (squares / _pairs(tuned)).mean()


def _pairs(features: Tensor) -> int:
    classes = features.shape[-2]
    if classes < 2:
        raise SettingError(f"a loss between classes needs at least two of them, got {classes}")
    return classes * (classes - 1)


@losses.register("similarity")
@dataclass(frozen=True)
class Similarity:
    """Difference of the mean similarity between classes, tuned and frozen, `similarity_gap`."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return similarity_gap(outputs.text, outputs.frozen_text)


@losses.register("otpt")
@dataclass(frozen=True)
class ClassOrthogonality:
    """Mean squared cosine between classes, `orthogonality_penalty`."""

    def __call__(self, outputs: Outputs) -> Tensor:
        return orthogonality_penalty(outputs.text)
