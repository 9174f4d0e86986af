"""An anchor: the logit scale that suits the untuned model, fitted on the training images before prompts are tuned.

Losses that keep a tuned model near the untuned one, TCPT's among them, keep its confidence too. That helps where the
untuned model is as sure as it is right, and costs where it is not. With an anchor its confidence is corrected first,
by the one number that all of its logits are multiplied with:

    s = argmin  NLL(s) = -mean_i log softmax(s c_i)[y_i],        s_0 / 4 <= s <= 4 s_0

c_i are the cosines of a training image with the classes' frozen text features, s_0 is the model's own scale. The NLL is
convex in s, so s is found to the last digit by bisection on the sign of its derivative, in float64. Where the training
images are all classified right, a larger scale is always better, and s is the upper end; where they are no better than
guessed, it is the lower end. Where s does not matter, because all classes have the same cosine, it stays s_0.

The method is calprompt's own; no paper describes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calprompt.calibrators.temperature import slope
from calprompt.errors import DataError

RANGE = 4.0  # how many times the model's own scale, or what part of it, the fitted one may be


@dataclass(frozen=True)
class Anchor:
    """A fitted logit scale.

    Attributes:
        logit_scale: The fitted one.
        own_scale: The model's own.
        images: How many it was fitted on.
        nll: Of these images, with the fitted scale.
        own_nll: The same with the model's own.
        end: "lower" or "upper", if the best scale lies beyond that end of the range; None if it lies inside.
    """

    logit_scale: float
    own_scale: float
    images: int
    nll: float
    own_nll: float
    end: str | None = None

    @property
    def warning(self) -> str:
        """What is to be said of a scale at an end of the range."""
        better, where = ("larger", f"{RANGE:g} times") if self.end == "upper" else ("smaller", f"1/{RANGE:g} of")
        return (
            f"the {self.images} training images do not determine the logit scale: the {better} it is, the more likely "
            f"are their labels. anchor takes {self.logit_scale:g}, which is {where} the model's own; give more images"
        )


def fit_anchor(cosines: Tensor, labels: Sequence[int] | Tensor, own_scale: float) -> Anchor:
    """The logit scale of the best likelihood, within `RANGE` times the model's own.

    >>> cosines = torch.tensor([[0.3, 0.1], [0.3, 0.1], [0.3, 0.1], [0.1, 0.3]])  # three of four are right
    >>> anchor = fit_anchor(cosines, [0, 0, 0, 0], own_scale=20.0)
    >>> round(anchor.logit_scale, 3)  # log 3 / 0.2: then it is 75 % sure
    5.493
    """
    cosines = cosines.double()
    if not len(cosines):
        raise DataError("there are no training images to fit a logit scale on")
    if not bool(torch.isfinite(cosines).all()):
        raise DataError("a logit scale cannot be fitted: features of training images are not finite")
    labels = torch.as_tensor(labels, device=cosines.device)
    at_label = cosines.gather(1, labels[:, None])[:, 0]
    low, high = own_scale / RANGE, own_scale * RANGE
    at_low, at_high = slope(low, cosines, at_label), slope(high, cosines, at_label)
    end = None
    if at_low == at_high == 0:
        scale = own_scale
    elif at_low >= 0:
        scale, end = low, "lower"
    elif at_high <= 0:
        scale, end = high, "upper"
    else:
        while (middle := (low * high) ** 0.5) not in (low, high):
            low, high = (middle, high) if slope(middle, cosines, at_label) < 0 else (low, middle)
        scale = high
    nll, own_nll = (float(torch.nn.functional.cross_entropy(each * cosines, labels)) for each in (scale, own_scale))
    return Anchor(scale, own_scale, len(cosines), nll, own_nll, end)
