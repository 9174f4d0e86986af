"""L1 alignment (TCPT, ablations): every tuned class feature stays near its frozen one.

    L = mean_{c,d} | t_cd - u_cd |

t are tuned and u frozen text features. Unlike `moments`, which lets classes move as long as their mean and covariance
stay, this keeps each class in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.losses.inputs import tuned_and_frozen
from calprompt.losses.registry import losses
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
