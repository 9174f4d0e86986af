"""Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017): logits divided by T.

    T = argmin  NLL(s) = -mean_i log softmax(s z_i)[y_i],        s = 1 / T

The NLL is convex in s, with a derivative that is the mean of E_p[z] - z_y. So T is found to the last digit by bisection
on the sign of that derivative, without a learning rate. The published fit by SGD is `temperature_sgd`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from calprompt.calibrators.base import Calibrator, calibrators
from calprompt.calibrators.stored_logits import StoredLogits
from calprompt.errors import SettingError

SMALLEST, LARGEST = 1e-6, 1e12  # of s, for logits that differ by 1 at most


@calibrators.register("temperature")
@dataclass
class Temperature(Calibrator):
    """All logits divided by one number, that of the best likelihood.

    Attributes:
        temperature: That number, after the fit.

    >>> import torch
    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> scaled = Temperature().fit(logits, torch.tensor([0, 0, 0, 1]))  # 98 % sure, 75 % right
    >>> round(scaled.temperature, 4), scaled(logits).softmax(dim=1)[0, 0].round(decimals=6).item()
    (3.641, 0.75)
    """

    keeps_argmax = True
    novel = True
    learns = ("temperature",)

    temperature: float | None = field(default=None, init=False)

    def learn(self, record: StoredLogits) -> None:
        logits = record.logits.double()
        spread = float((logits.amax(dim=1) - logits.amin(dim=1)).max())
        logits = (logits - logits.amax(dim=1, keepdim=True)) / spread  # so that the scale of logits does not matter
        at_label = logits.gather(1, record.given("labels")[:, None].to(logits.device))[:, 0]
        if slope(SMALLEST, logits, at_label) >= 0:
            raise SettingError(
                "no temperature fits: on the validation data the true class does not even have an above-average logit, "
                "so the likelihood is best when every class is equally probable. Check the labels."
            )
        if bool((at_label >= logits.max(dim=1).values).all()):
            raise SettingError(
                f"no temperature fits: all {len(logits)} validation images are classified right, "
                "so the likelihood grows without limit as confidence goes to 1. Use more validation images."
            )
        if slope(LARGEST, logits, at_label) < 0:
            raise SettingError(
                f"no temperature fits: of the {len(logits)} validation images all are classified right, or wrong by "
                "almost nothing, so the likelihood grows as confidence goes to 1. Use more validation images."
            )
        low, high = SMALLEST, LARGEST
        while high / low > 1 + 1e-15 and (middle := (low * high) ** 0.5) not in (low, high):
            low, high = (middle, high) if slope(middle, logits, at_label) < 0 else (low, middle)
        self.temperature = spread / high

    def apply(self, record: StoredLogits) -> Tensor:
        assert self.temperature is not None
        return record.logits.double() / self.temperature

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "divide", "by": self.temperature}


@calibrators.register("temperature_fixed")
@dataclass
class FixedTemperature(Calibrator):
    """All logits divided by a given number; 1.16 is that of the released TCPT code for ViT.

    Attributes:
        temperature: The number.

    >>> import torch
    >>> FixedTemperature(2.0)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]], dtype=torch.float64)
    """

    keeps_argmax = True
    novel = True

    temperature: float = 1.16

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise SettingError(f"must be a finite number above 0, got {self.temperature}", parameter="temperature")

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits.double() / self.temperature

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "divide", "by": self.temperature}


def slope(s: float, logits: Tensor, at_label: Tensor) -> float:
    """Derivative of the NLL at s: mean of the expected logit minus that of the label."""
    probabilities = (s * logits).softmax(dim=1)
    return float(((probabilities * logits).sum(dim=1) - at_label).mean())
