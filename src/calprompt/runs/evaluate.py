"""A tuner on labelled images: logits, and the metrics of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from calprompt import metrics
from calprompt.clip import Backbone, unit
from calprompt.data.features import BATCH, evaluation_batches
from calprompt.data.images import Images
from calprompt.tuners import Tuner


def tuned_logits(tuner: Tuner, images: Images, features: Tensor) -> Tensor:
    """Logits [n, C] in float32: of frozen features [n, D], or of the pixels if the tuner wants them."""
    if tuner.sees_pixels:
        return tuner.predict(evaluation_batches(images, tuner.backbone.preprocessing)).float().cpu()
    return tuner.predict(features.split(BATCH)).float().cpu()


@torch.no_grad()
def zero_shot_logits(backbone: Backbone, features: Tensor, frozen_text: Tensor) -> Tensor:
    """Logits [n, C] in float32 of the untuned model."""
    image = unit(features.to(backbone.device, backbone.prompt_dtype))
    return (backbone.logit_scale * image @ frozen_text.T).float().cpu()


def measure(logits: Tensor, labels: Tensor | Sequence[int]) -> dict[str, Any]:
    """All metrics as fractions, after the number of images and of classes."""
    values = metrics.evaluate(logits, labels, from_logits=True)
    return {"images": logits.shape[0], "classes": logits.shape[1], **values}
