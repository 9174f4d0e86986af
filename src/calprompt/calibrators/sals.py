"""SaLS (Murugesan et al., Robust Calibration of Large Vision-Language Adapters, ECCV 2024): zero-shot range at test.

    R(z) = (z - min z) / (max z - min z) * (max z⁰ - min z⁰) + min z⁰

with minima and maxima over the classes of one image, and z⁰ its zero-shot logits. The order of the classes stays; the
range of the logits is that before tuning. Nothing is fitted. The same map in the training loss is `zs_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calprompt.calibrators.base import Calibrator, calibrators
from calprompt.calibrators.stored_logits import StoredLogits
from calprompt.errors import SettingError
from calprompt.losses.zero_shot import rescale_to_range


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

    def apply(self, record: StoredLogits) -> Tensor:
        zero_shot = record.given("zero_shot_logits").double()
        flat = (zero_shot.amin(dim=1) == zero_shot.amax(dim=1)).nonzero().flatten().tolist()
        if flat:
            raise SettingError(
                f"sals: the zero-shot logits of image {flat[0]} are the same for every class, so its prediction would "
                f"be lost (this is so for {len(flat)} of {len(zero_shot)} images)"
            )
        return rescale_to_range(record.logits.double(), zero_shot)

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "zero-shot range"}
