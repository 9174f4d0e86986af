"""A run before it starts: its data and backbone looked at for whatever is wrong with them, and its fingerprint.

The fingerprint covers all that the result depends on: the settings, the weights, the images, the version; not where
files lie.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

import calprompt
from calprompt import tuners
from calprompt.clip import Backbone, load_backbone
from calprompt.data import Part, Split, all_classes, base_novel, few_shot, load_dataset
from calprompt.data.features import Progress, content, silent
from calprompt.data.images import View
from calprompt.errors import CalpromptError
from calprompt.extensions import load_extension
from calprompt.files import canonical_json
from calprompt.losses import Objective
from calprompt.runs.config import RunConfig
from calprompt.train import seeded
from calprompt.tuners import Tuner

TEMPLATE = "a photo of a {}."  # where neither the run nor the dataset has one


@dataclass(frozen=True)
class Prepared:
    """A run before it starts: everything looked at that can be wrong about it, nothing computed that takes long."""

    config: RunConfig
    backbone: Backbone
    tuner: Tuner
    base: Part  # what is trained on: all classes, if the protocol is few-shot
    novel: Part | None
    novel_reason: str | None  # why the prompts cannot be used on novel classes, if so
    template: str
    dataset: str  # its name
    data_digest: str

    @property
    def fingerprint(self) -> str:
        """sha256 of all that the result depends on; where files lie does not matter, what is in them does."""
        settings = self.config.record()
        for place in ("backbone", "backbone_config", "data"):
            del settings[place]
        settings["imports"] = sorted(load_extension(path) for path in self.config.imports)
        settings["loss"] = Objective.parse(self.config.loss).record()
        settings["template"] = self.template
        everything = {
            "config": settings,
            "backbone": self.backbone.fingerprint,
            "preprocessing": self.backbone.preprocessing.to_dict(),
            "data": self.data_digest,
            "version": calprompt.__version__,
        }
        return hashlib.sha256(canonical_json(everything)).hexdigest()

    @property
    def id(self) -> str:
        """Readable, and with enough of the fingerprint to be the run's own."""
        name = re.sub(r"[^\w.-]+", "_", self.dataset)
        shots = "all" if self.config.shots is None else f"{self.config.shots}shot"
        return f"{self.config.tuner}-{name}-{shots}-seed{self.config.seed}-{self.fingerprint[:12]}"

    @property
    def evaluated(self) -> dict[str, tuple[Part, Split]]:
        """The splits that metrics are reported of."""
        splits = {name: (part, part.test) for name, part in self.parts.items()}
        return {**splits, "val": (self.base, self.base.val)} if len(self.base.val) else splits

    @property
    def parts(self) -> dict[str, Part]:
        """Base and novel, or all."""
        return {"all": self.base} if self.novel is None else {"base": self.base, "novel": self.novel}

    @property
    def views(self) -> list[View]:
        """What random views are drawn from: the seed, the image's number and the view's; no more than epochs use."""
        seed, count = self.config.seed, min(self.config.views, self.config.training.epochs)
        return [partial(_view, seed, view) for view in range(count)]


def _view(seed: int, view: int, number: int) -> torch.Generator:
    return seeded(seed, number, view)


def prepare(config: RunConfig, *, progress: Progress = silent) -> Prepared:
    """Read the data and load the backbone, and raise for whatever does not fit together."""
    dataset = load_dataset(config.data)
    drawn = few_shot(dataset, config.shots, config.seed)
    base, novel = (all_classes(drawn), None) if config.protocol == "few-shot" else base_novel(drawn)
    if tuners.get(config.tuner).sees_pixels and not base.train.images.has_pixels:
        raise CalpromptError(f"tuner {config.tuner!r} learns from pixels, and {dataset.name} holds features only")
    template = config.template or dataset.template or TEMPLATE
    backbone = load_backbone(
        config.backbone, config=config.backbone_config, device=config.device, dtype=getattr(torch, config.dtype)
    )
    backbone.chunk = config.chunk
    splits = {"train": base.train, "val": base.val, "base": base.test}
    if novel is not None:
        splits["novel"] = novel.test
    for split in splits.values():
        split.images.check(backbone)
    with autocasting(backbone, config):
        tuner, reason = _create(config, backbone, base, novel, template)
    names = [part.class_names for part in (base, novel) if part is not None]
    told = {"class_names": names, "splits": content(splits, progress)}
    digest = hashlib.sha256(canonical_json(told)).hexdigest()
    return Prepared(config, backbone, tuner, base, novel, reason, template, dataset.name, digest)


def describe(prepared: Prepared) -> dict[str, Any]:
    """What run.json says of a run before it starts."""
    splits = {"train": prepared.base.train} | {name: split for name, (_, split) in prepared.evaluated.items()}
    return {
        "id": prepared.id,
        "fingerprint": prepared.fingerprint,
        "config": prepared.config.record(),
        "objective": str(Objective.parse(prepared.config.loss)),
        "template": prepared.template,
        "backbone": {"name": prepared.backbone.name, "fingerprint": prepared.backbone.fingerprint},
        "data": {
            "name": prepared.dataset,
            "digest": prepared.data_digest,
            "images": {name: len(split) for name, split in splits.items()},
            "class_names": {name: list(part.class_names) for name, part in prepared.parts.items()},
        },
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "open_clip": version("open_clip_torch"),
            "python": platform.python_version(),
        },
    }


def _create(
    config: RunConfig, backbone: Backbone, base: Part, novel: Part | None, template: str
) -> tuple[Tuner, str | None]:
    """The tuner on the base classes, and why its prompts cannot be used on the novel ones, if so."""
    options = {**config.options, "template": template, "seed": config.seed}
    tuner = tuners.create(config.tuner, backbone, base.class_names, **options)
    if novel is None:
        return tuner, None
    try:
        tuner.with_classes(novel.class_names)
    except CalpromptError as error:
        tuners.create(config.tuner, backbone, novel.class_names, **options)  # raises if the names are what is wrong
        return tuner, str(error)
    return tuner, None


@contextmanager
def autocasting(backbone: Backbone, config: RunConfig) -> Iterator[None]:
    """The towers in the dtype the run trains in, for all of it: features, training and evaluation."""
    name = config.training.autocast
    with backbone.autocasting(getattr(torch, name) if name else None):
        yield
