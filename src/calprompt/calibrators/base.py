"""What a calibrator is: a map of logits, fitted on held-out ones and applied to stored ones, without the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from calprompt.registry import Registry

calibrators: Registry[type[Calibrator]] = Registry("calibrator")


class Calibrator(ABC):
    """Fit on validation logits of the base classes, apply to any logits.

    keeps_argmax  predictions, and so accuracy, stay as they are
    novel         it may be applied to classes it was not fitted on
    """

    keeps_argmax: ClassVar[bool]
    novel: ClassVar[bool]

    @abstractmethod
    def fit(self, logits: Tensor, labels: Tensor) -> Calibrator:
        """Learn from logits [n, C] and labels [n]; returns itself."""

    @abstractmethod
    def __call__(self, logits: Tensor) -> Tensor:
        """Calibrated logits [n, C] in float64."""
