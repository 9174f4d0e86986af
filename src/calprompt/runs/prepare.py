"""A run before it starts: its data and backbone looked at for whatever is wrong with them, and its fingerprint.

The fingerprint covers all that the result depends on: the settings, the weights, the images, the version; not where
files lie.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch

import calprompt
from calprompt import tuners
from calprompt.clip import Backbone, load_backbone
from calprompt.data import (
    Dataset,
    Part,
    Split,
    all_classes,
    bad_images_error,
    base_novel,
    few_shot,
    find_bad,
    load_dataset,
    without,
)
from calprompt.data.features import Progress, content, silent
from calprompt.data.load import locate
from calprompt.data.overview import warn_left_out
from calprompt.data.tower import EXTRACTION
from calprompt.errors import CalpromptError
from calprompt.extensions import load_extension
from calprompt.files import canonical_json
from calprompt.losses import Objective
from calprompt.runs.config import RunConfig
from calprompt.tuners import Tuner

TEMPLATE = "a photo of a {}."  # where neither the run nor the dataset has one
SMALL = 10_000_000  # weights of two towers that one thread is enough for
PLACES = ("backbone", "backbone_config", "data", "root", "classes", "base")


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
    skipped: Mapping[str, str] = field(default_factory=dict)  # images left out, and why

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of all that the result depends on; where files lie does not matter, what is in them does."""
        settings = self.config.record()
        for place in (*PLACES, "exif", "skip_bad"):  # of the last two, the images tell
            del settings[place]
        settings["imports"] = import_digests(self.config)
        settings["loss"] = Objective.parse(self.config.loss).record()
        settings["template"] = self.template
        everything = {
            "config": settings,
            "backbone": self.backbone.fingerprint,
            "preprocessing": self.backbone.preprocessing.to_dict(),
            "data": self.data_digest,
            "extraction": EXTRACTION,
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
    def views(self) -> int:
        """Random views of every training image; no more than epochs use."""
        epochs = self.config.training.epochs
        return epochs if self.config.views is None else min(self.config.views, epochs)


def prepare(config: RunConfig, *, progress: Progress = silent) -> Prepared:
    """Read the data and load the backbone, and raise for whatever does not fit together."""
    dataset = load_dataset(config.data, root=config.root, classes=config.classes, base=config.base, upright=config.exif)
    warn_left_out(dataset, locate(config.data, config.root))
    base, novel, skipped = _parts(config, dataset, progress)
    check_pixels(config, dataset)
    template = config.template or dataset.template_of(tuners.get(config.tuner).template_table) or TEMPLATE
    backbone = run_backbone(config)
    splits = _used(base, novel)
    for split in splits.values():
        split.images.check(backbone)
    with autocasting(backbone, config), few_threads(backbone):
        tuner, reason = _create(config, backbone, base, novel, template)
    if not len(base.train) and any(True for _ in tuner.parameters()):
        raise CalpromptError(
            f"{dataset.name} is there to test on, and has no images to train tuner {config.tuner!r} on"
        )
    names = [part.class_names for part in (base, novel) if part is not None]
    told = {"class_names": names, "splits": content(splits, progress)}
    if skipped:
        told["skipped"] = sorted(skipped)
    digest = hashlib.sha256(canonical_json(told)).hexdigest()
    return Prepared(config, backbone, tuner, base, novel, reason, template, dataset.name, digest, skipped)


def _parts(config: RunConfig, dataset: Dataset, progress: Progress) -> tuple[Part, Part | None, dict[str, str]]:
    """Base, novel and the images left out; an image that cannot be read is replaced by drawing without it."""
    skipped: dict[str, str] = {}
    fine: set[str] = set()
    while True:
        drawn = few_shot(dataset, config.shots, config.seed)
        base, novel = (all_classes(drawn), None) if config.protocol == "few-shot" else base_novel(drawn)
        bad = find_bad(_used(base, novel).values(), thorough=config.skip_bad, fine=fine, progress=progress)
        if not bad:
            return base, novel, skipped
        if not config.skip_bad:
            raise bad_images_error(bad)
        skipped |= bad
        dataset = without(dataset, skipped)


def _used(base: Part, novel: Part | None) -> dict[str, Split]:
    """The splits a run reads."""
    splits = {"train": base.train, "val": base.val, "base": base.test}
    return splits if novel is None else {**splits, "novel": novel.test}


def describe(prepared: Prepared) -> dict[str, Any]:
    """What run.json says of a run before it starts."""
    splits = {"train": prepared.base.train} | {name: split for name, (_, split) in prepared.evaluated.items()}
    return {
        "id": prepared.id,
        "fingerprint": prepared.fingerprint,
        "config": prepared.config.record(),
        "imports": import_digests(prepared.config),
        "objective": str(Objective.parse(prepared.config.loss)),
        "template": prepared.template,
        "backbone": {
            "name": prepared.backbone.name,
            "fingerprint": prepared.backbone.fingerprint,
            "preprocessing": prepared.backbone.preprocessing.to_dict(),
        },
        "data": {
            "name": prepared.dataset,
            "digest": prepared.data_digest,
            "images": {name: len(split) for name, split in splits.items()},
            "class_names": {name: list(part.class_names) for name, part in prepared.parts.items()},
            "skipped": dict(prepared.skipped),
        },
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "open_clip": version("open_clip_torch"),
            "python": platform.python_version(),
        },
    }


def import_digests(config: RunConfig) -> list[str]:
    """sha256 of every file of one's own that the run imports, sorted."""
    return sorted(load_extension(path) for path in config.imports)


def _create(
    config: RunConfig, backbone: Backbone, base: Part, novel: Part | None, template: str
) -> tuple[Tuner, str | None]:
    """The tuner on the base classes, and why its prompts cannot be used on the novel ones, if so."""
    tuner = create_tuner(config, backbone, base.class_names, template)
    return tuner, None if novel is None else for_classes(config, tuner, novel.class_names, template)[1]


def create_tuner(config: RunConfig, backbone: Backbone, class_names: Sequence[str], template: str) -> Tuner:
    """The run's tuner on some classes, as it starts."""
    return tuners.create(
        config.tuner, backbone, class_names, **config.options, template=template, seed=config.training.seed
    )


def for_classes(
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


def run_backbone(config: RunConfig) -> Backbone:
    """The backbone that a run's settings name."""
    backbone = load_backbone(
        config.backbone, config=config.backbone_config, device=config.device, dtype=getattr(torch, config.dtype)
    )
    backbone.chunk = config.chunk
    backbone.preprocessing = replace(backbone.preprocessing, crop=config.crop)
    return backbone


def check_pixels(config: RunConfig, dataset: Dataset) -> None:
    """Raise if the tuner wants pixels and there are none."""
    if tuners.get(config.tuner).sees_pixels and not dataset.test.images.has_pixels:
        raise CalpromptError(f"tuner {config.tuner!r} learns from pixels, and {dataset.name} holds features only")


@contextmanager
def autocasting(backbone: Backbone, config: RunConfig) -> Iterator[None]:
    """The towers in the dtype the run trains in, for all of it: features, training and evaluation."""
    name = config.training.autocast
    with backbone.autocasting(getattr(torch, name) if name else None):
        yield


@contextmanager
def few_threads(backbone: Backbone) -> Iterator[None]:
    """One thread for a small CLIP on a CPU.

    Its products are so soon done that a second one saves a sixth of the time at best, and on a busy machine, where the
    two wait for each other, takes ten times as long. What it gives is then the same with any number of threads.
    """
    towers = (backbone.model.visual, backbone.model.transformer)
    small = sum(weight.numel() for tower in towers for weight in tower.parameters()) < SMALL
    before = torch.get_num_threads()
    torch.set_num_threads(1 if small and backbone.device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
