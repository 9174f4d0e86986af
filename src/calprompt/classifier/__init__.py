"""The practitioner's object: fit on a few images, trust, use, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.classifier.checks import Check
    from calprompt.classifier.estimator import Classifier
    from calprompt.classifier.settings import FitSettings

__all__ = ["Check", "Classifier", "FitSettings"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"checks": ("Check",), "estimator": ("Classifier",), "settings": ("FitSettings",)}
)
