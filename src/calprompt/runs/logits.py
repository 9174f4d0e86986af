"""What is stored of evaluated images: logits, text features and the names of the images; and metrics of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from calprompt import metrics
from calprompt.clip.backbone import Backbone
from calprompt.data.dataset import Split
from calprompt.predictor import Predictor, zero_shot_logits
from calprompt.tuners import Tuner

LOGIT_KINDS = ("logits", "zero_shot_logits")
TEXT_KINDS = ("text", "frozen_text")


@torch.no_grad()
def split_tensors(
    backbone: Backbone, tuner: Tuner | None, frozen_text: Tensor, split: Split, features: Tensor
) -> dict[str, Tensor]:
    """What is stored of a split: labels, zero_shot_logits and frozen_text; of prompts that apply, logits and text.

    Zero-shot logits are those of the model as it was loaded, also where a run has fitted another logit scale.
    Where every image has text features of its own, as with CoCoOp, `text` is one set that stands for all of them.
    """
    found = {
        "labels": torch.tensor(split.labels),
        "zero_shot_logits": zero_shot_logits(backbone.view(logit_scale=None), features, frozen_text),
        "frozen_text": frozen_text.float(),
    }
    if tuner is not None:
        found["logits"] = Predictor(tuner).logits(split.images, features)
        found["text"] = tuner.common_text_features(features).float()
    return found


def part_tensors(found: Mapping[str, Tensor], classes: Sequence[int]) -> tuple[dict[str, Tensor], list[int]]:
    """The same of some classes alone: their images, and their columns, labelled from 0; and which images these are."""
    columns = torch.tensor(classes)
    new = torch.full((len(found["frozen_text"]),), -1)
    new[columns] = torch.arange(len(columns))
    labels = new[found["labels"]]
    rows = (labels >= 0).nonzero().flatten()
    cut = {kind: found[kind][rows][:, columns] for kind in LOGIT_KINDS if kind in found}
    text = {kind: found[kind][columns] for kind in TEXT_KINDS if kind in found}
    return {"labels": labels[rows], **cut, **text}, rows.tolist()


def stored_scales(backbone: Backbone) -> dict[str, float]:
    """The logit scale of stored logits, and that of stored zero-shot logits if it is another."""
    scales = {"logit_scale": float(backbone.logit_scale)}
    if backbone.fixed_scale is not None:
        scales["zero_shot_logit_scale"] = float(backbone.view(logit_scale=None).logit_scale)
    return scales


def image_names(split: Split) -> list[str]:
    """Names of the images of a split, in order."""
    return [split.images.name(index) for index in range(len(split))]


def measure(logits: Tensor, labels: Tensor | Sequence[int]) -> dict[str, Any]:
    """All metrics as fractions, after the number of images and of classes."""
    values = metrics.evaluate(logits, labels, from_logits=True)
    return {"images": logits.shape[0], "classes": logits.shape[1], **values}


def measure_parts(parts: Mapping[str, Mapping[str, Tensor]], reason: str | None) -> dict[str, Any]:
    """Metrics of every part, and of the untuned model; `reason` is why parts have no logits of the prompts, if so."""
    values = {
        part: measure(found["logits"], found["labels"]) if "logits" in found else {"not_applicable": reason}
        for part, found in parts.items()
    }
    untuned = {part: measure(found["zero_shot_logits"], found["labels"]) for part, found in parts.items()}
    return {**values, "zero_shot": untuned}


def named_tensors(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """All tensors of all parts, as base/logits and the like: what a file of logits holds."""
    return {f"{part}/{kind}": tensor for part, found in parts.items() for kind, tensor in found.items()}
