"""A planned run with its backbone and its tuner in memory, ready to train or to predict."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

import calprompt
from calprompt import tuners
from calprompt.clip.backbone import Backbone
from calprompt.errors import CalpromptError
from calprompt.hardware import processor_name
from calprompt.losses import Objective
from calprompt.progress import Progress, silent
from calprompt.runs.config import RunConfig
from calprompt.runs.planning import RESULTS, RunPlan, import_digests, plan
from calprompt.runs.resources import Resources
from calprompt.tuners import Tuner


@dataclass(frozen=True)
class Prepared:
    """A run before it starts.

    Attributes:
        plan: What it is.
        backbone: As this run uses it: a view of what `Resources` holds.
        tuner: On the classes that are trained on.
        novel_reason: Why the prompts cannot be used on novel classes, if so.
    """

    plan: RunPlan
    backbone: Backbone
    tuner: Tuner
    novel_reason: str | None

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self.plan.config

    @property
    def fingerprint(self) -> str:
        """See `RunPlan.fingerprint`."""
        return self.plan.fingerprint


def prepare(
    config: RunConfig | RunPlan, *, resources: Resources | None = None, progress: Progress = silent
) -> Prepared:
    """Load the backbone and make the tuner of a run.

    Args:
        config: Its settings, or its plan.
        resources: What is loaded already.
        progress: Shows how far it is.

    Raises:
        CalpromptError: for whatever does not fit together.
    """
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
    """What run.json says of a run before it starts."""
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
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "open_clip": version("open_clip_torch"),
            "python": platform.python_version(),
        },
        "hardware": {"processor": processor_name(), "threads": torch.get_num_threads()},
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
