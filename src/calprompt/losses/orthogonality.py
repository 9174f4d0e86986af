"""Orthogonality alignment (TCPT, ablations): tuned classes are as far from orthogonal as the frozen ones.

    L = | mean_{c ≠ c'} t_c · t_c' - mean_{c ≠ c'} u_c · u_c' |

t are tuned and u frozen text features. The sum over pairs is ||Σ_c t_c||² - Σ_c ||t_c||², so no [C, C] matrix is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.inputs import tuned_and_frozen
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


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
