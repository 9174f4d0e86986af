"""L2 alignment (TCPT, ablations): every tuned class feature stays near its frozen one.

    L = mean_{c,d} ( t_cd - u_cd )²

t are tuned and u frozen text features. Unlike `moments`, which lets classes move as long as their mean and covariance
stay, this keeps each class in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.losses.inputs import tuned_and_frozen
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


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
