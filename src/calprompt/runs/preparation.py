"""A planned run with its backbone and tuner in memory, its anchor, and what is stored of evaluated images.

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

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

import calprompt
from calprompt import metrics, tuners
from calprompt.calibrators.scaling import slope
from calprompt.clip.backbone import Backbone
from calprompt.data.dataset import Split
from calprompt.errors import CalpromptError, DataError
from calprompt.hardware import processor_name
from calprompt.losses import Objective
from calprompt.predictor import Predictor, zero_shot_logits
from calprompt.progress import Progress, silent
from calprompt.runs.config import RunConfig
from calprompt.runs.planning import RESULTS, RunPlan, import_digests, plan
from calprompt.runs.resources import Resources
from calprompt.sealed_files import tensor_file
from calprompt.tuners import Tuner


@dataclass(frozen=True)
class Prepared:
    """A run before it starts."""

    plan: RunPlan  # what it is
    backbone: Backbone  # as this run uses it: a view of what `Resources` holds
    tuner: Tuner  # on the classes that are trained on
    novel_reason: str | None  # why the prompts cannot be used on novel classes, if so

    @property
    def config(self) -> RunConfig:
        return self.plan.config


def prepare(
    config: RunConfig | RunPlan, *, resources: Resources | None = None, progress: Progress = silent
) -> Prepared:
    """Load the backbone and make the tuner of a run."""
    resources = resources or Resources()
    planned = config if isinstance(config, RunPlan) else plan(config, resources=resources, progress=progress)
    settings = planned.config
    backbone = run_backbone(settings, resources)
    with backbone.limited_threads():
        tuner = create_tuner(settings, backbone, planned.base.class_names, planned.template)
        reason = None
        if planned.novel is not None:
            _, reason = tuner_for_classes(settings, tuner, planned.novel.class_names, planned.template)
    return Prepared(planned, backbone, tuner, reason)


def describe(prepared: Prepared) -> dict[str, Any]:
    """The contents of run.json before the run starts."""
    planned = prepared.plan
    splits = {"train": planned.base.train} | {name: split for name, (_, split) in planned.evaluated.items()}
    return {
        "id": planned.id,
        "fingerprint": planned.fingerprint,
        "results": RESULTS,
        "config": planned.config.record(),
        "imports": import_digests(planned.config),
        "objective": str(Objective.parse(planned.config.loss)),
        "template": planned.template,
        "backbone": {
            "name": prepared.backbone.name,
            "fingerprint": prepared.backbone.fingerprint,
            "preprocessing": prepared.backbone.preprocessing.to_dict(),
            "logit_scale": float(prepared.backbone.logit_scale),
        },
        "data": {
            "name": planned.dataset,
            "digest": planned.data_digest,
            "images": {name: len(split) for name, split in splits.items()},
            "class_names": {name: list(part.class_names) for name, part in planned.parts.items()},
            "skipped": dict(planned.skipped),
        },
        "versions": versions(),
        "hardware": {"processor": processor_name(), "threads": torch.get_num_threads()},
    }


def versions() -> dict[str, str]:
    """What a run or a model was made with."""
    return {
        "calprompt": calprompt.__version__,
        "torch": torch.__version__,
        "open_clip": version("open_clip_torch"),
        "python": platform.python_version(),
    }


def run_backbone(config: RunConfig, resources: Resources) -> Backbone:
    """The backbone that a run's settings name, as the run uses it."""
    backbone = resources.backbone(
        config.backbone, config=config.backbone_config, device=config.device, dtype=config.dtype
    )
    return backbone.view(autocast=config.training.autocast, chunk=config.chunk, crop=config.crop)


def create_tuner(config: RunConfig, backbone: Backbone, class_names: Sequence[str], template: str) -> Tuner:
    """The run's tuner on some classes, as it starts."""
    return tuners.create(
        config.tuner, backbone, class_names, allow_repeated=True, **config.options, template=template, seed=config.seed
    )


def tuner_for_classes(
    config: RunConfig, tuner: Tuner, class_names: Sequence[str], template: str
) -> tuple[Tuner | None, str | None]:
    """The tuner's prompts on other classes, or the reason why they cannot be used on them."""
    if (tuple(class_names), template) == (tuner.class_names, tuner.template):
        return tuner, None
    try:
        return tuner.with_classes(class_names, template), None
    except CalpromptError as error:
        create_tuner(config, tuner.backbone, class_names, template)  # raises if the names are what is wrong
        return None, str(error)


SCALE_RANGE = 4.0  # how many times the model's own scale, or what part of it, the fitted one may be


@dataclass(frozen=True)
class Anchor:
    """A fitted logit scale."""

    logit_scale: float  # the fitted one
    own_scale: float  # the model's own
    images: int  # how many it was fitted on
    nll: float  # mean negative log-likelihood of these images, with the fitted scale
    own_nll: float  # the same with the model's own
    # "lower" or "upper", if the best scale lies beyond that end of the range; None if it lies inside
    end: str | None = None

    @property
    def warning(self) -> str:
        better, where = (
            ("larger", f"{SCALE_RANGE:g} times") if self.end == "upper" else ("smaller", f"1/{SCALE_RANGE:g} of")
        )
        return (
            f"the {self.images} training images do not determine the logit scale: the {better} it is, the more likely "
            f"are their labels. anchor takes {self.logit_scale:g}, which is {where} the model's own; give more images"
        )


def fit_anchor(cosines: Tensor, labels: Sequence[int] | Tensor, own_scale: float) -> Anchor:
    """The logit scale of the best likelihood, within `SCALE_RANGE` times the model's own.

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
    low, high = own_scale / SCALE_RANGE, own_scale * SCALE_RANGE
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


LOGIT_KINDS = ("logits", "zero_shot_logits")
TEXT_KINDS = ("text", "frozen_text")


@torch.no_grad()
def split_tensors(
    backbone: Backbone, tuner: Tuner | None, frozen_text: Tensor, split: Split, features: Tensor
) -> dict[str, Tensor]:
    """The stored tensors of a split: labels, zero_shot_logits and frozen_text; of prompts that apply, logits and text.

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


def image_names(split: Split) -> list[str]:
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


def logits_file(
    parts: Mapping[str, Mapping[str, Tensor]],
    class_names: Mapping[str, Sequence[str]],
    images: Mapping[str, Sequence[str]],
    backbone: Backbone,
) -> bytes:
    """All tensors of all parts, as base/logits and the like, with the names of their classes and images."""
    tensors = {f"{part}/{kind}": tensor for part, found in parts.items() for kind, tensor in found.items()}
    scales = {"logit_scale": float(backbone.logit_scale)}
    if backbone.fixed_scale is not None:  # stored zero-shot logits have another
        scales["zero_shot_logit_scale"] = float(backbone.view(logit_scale=None).logit_scale)
    return tensor_file(tensors, {"class_names": class_names, "image_names": images, **scales})
