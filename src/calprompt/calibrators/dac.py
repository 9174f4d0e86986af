"""Calibrators in closed form for classes that were never seen: DAC and SaLS.

Distance-aware calibration, DAC (Wang et al., Open-Vocabulary Calibration for Fine-tuned CLIP, ICML 2024).

    d⁰_c = mean distance of u_c to its K nearest frozen base features
    d_c  = mean distance of t_c to its K nearest tuned base features
    γ_c  = exp(d⁰_c - d_c),  or 1 where the nearest tuned base feature is closer than 0.05: c is a base class
    z_i  ← γ_p z_i           with p the predicted class of image i

u and t are frozen and tuned text features, as unit vectors. Where tuning has moved a class away from the base classes,
d_c > d⁰_c, and predictions of it become less confident. γ is not clipped: above 1, they become more confident. Nothing
is fitted, and base classes do not change.

SaLS (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024): zero-shot range at test.

    R(z) = (z - min z) / (max z - min z) * (max z⁰ - min z⁰) + min z⁰

with minima and maxima over the classes of one image, and z⁰ its zero-shot logits. The order of the classes stays; the
range of the logits is that before tuning. Nothing is fitted. The same map in the training loss is `zs_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators
from calprompt.errors import SettingError
from calprompt.registry import unknown

DIVISORS = ("neighbours", "k")


@calibrators.register("dac")
@dataclass
class DistanceAware(Calibrator):
    """Confidence of a class scaled by how far tuning moved it from the base classes (DAC).

    Text features that depend on the image, [n, C, D], give each image the factor of its predicted class from the
    image's features; then `base_text` depends on the image too. Runs do not store that many: of CoCoOp they store those
    under the mean shift of the images of each split (the public code takes those of one image).

    Attributes:
        k: How many nearest base classes are averaged over.
        threshold: A class closer than this to a base class counts as that class.
        divisor: With fewer base classes than k, "neighbours" divides by how many there are, and "k" by k as in the
            public code.

    >>> base, near, far = torch.eye(3)[:1], torch.tensor([[0.6, 0.8, 0.0]]), torch.eye(3)[1:2]
    >>> moved = StoredLogits(torch.ones(1, 1), text=far, frozen_text=near, base_text=base, base_frozen_text=base)
    >>> DistanceAware()(moved)  # from 0.894 to 1.414: exp(0.894 - 1.414)
    tensor([[0.5946]], dtype=torch.float64)
    """

    keeps_argmax = True
    novel = True
    needs = ("text", "frozen_text", "base_text", "base_frozen_text")

    k: int = 5
    threshold: float = 0.05
    divisor: str = "neighbours"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise SettingError(f"k of dac must be at least 1, got {self.k}")
        if self.divisor not in DIVISORS:
            raise unknown("divisor of dac", self.divisor, DIVISORS)

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits.double() * self.factors(record)[:, None]

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        text, frozen, base, base_frozen = (record.given(name) for name in self.needs)
        if text.ndim > 2:
            raise SettingError("dac cannot be exported with text features that depend on the image")
        factors = self.class_factors(text, frozen, base, base_frozen)
        return {"step": "by predicted class", "factors": factors.tolist()}

    def factors(self, record: StoredLogits) -> Tensor:
        """What each image's logits are multiplied by, [n]."""
        text, frozen, base, base_frozen = (record.given(name) for name in self.needs)
        if text.ndim != base.ndim:
            raise SettingError(
                f"dac compares text features with base_text: give both for each image or neither, "
                f"got {list(text.shape)} and {list(base.shape)}"
            )
        predicted = record.logits.argmax(dim=1)
        if text.ndim == 2:
            return self.class_factors(text, frozen, base, base_frozen)[predicted]
        of_predicted = text[torch.arange(len(text), device=text.device), predicted]  # [n, D]
        return self.class_factors(of_predicted[:, None], frozen[predicted][:, None], base, base_frozen)[:, 0]

    def class_factors(self, text: Tensor, frozen: Tensor, base: Tensor, base_frozen: Tensor) -> Tensor:
        """γ of every class: features [..., C, D], base features [..., C', D] -> [..., C]."""
        tuned_distance, nearest = self.distance(text, base)
        frozen_distance, _ = self.distance(frozen, base_frozen)
        return torch.where(nearest < self.threshold, 1.0, torch.exp(frozen_distance - tuned_distance))

    def distance(self, features: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Mean distance to the k nearest base features, and the distance to the nearest, both [..., C]."""
        if features.shape[-1] != base.shape[-1] or base.shape[-2] == 0:
            raise SettingError(
                f"dac needs text features of the same dimension and at least one base class, "
                f"got {list(features.shape)} and base features {list(base.shape)}"
            )
        features, base = F.normalize(features.double(), dim=-1), F.normalize(base.double(), dim=-1)
        apart = torch.cdist(features, base, compute_mode="donot_use_mm_for_euclid_dist")  # [..., C, C']
        closest = apart.topk(min(self.k, base.shape[-2]), largest=False).values
        divisor = self.k if self.divisor == "k" else closest.shape[-1]
        return closest.sum(dim=-1) / divisor, closest[..., 0]


@calibrators.register("sals")
@dataclass
class SampleLogitScaling(Calibrator):
    """Logits of each image rescaled to the range of its zero-shot ones (SaLS).

    An image with equal logits for all classes, tuned or zero-shot, is an error: it has no range, or no prediction.

    >>> import torch
    >>> tuned, zero_shot = torch.tensor([[0.0, 5.0, 10.0]]), torch.tensor([[2.0, 4.0, 3.0]])
    >>> SampleLogitScaling()(StoredLogits(tuned, zero_shot_logits=zero_shot))
    tensor([[2., 3., 4.]], dtype=torch.float64)
    """

    keeps_argmax = True
    novel = True
    needs = ("zero_shot_logits",)

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "zero-shot range"}
