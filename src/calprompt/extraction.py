"""Features of whole datasets under several backbones, computed ahead of the runs that use them, by many workers.

A plan cuts the images into portions, which are the tasks of an executor; planning opens no image, loads no weights and
needs no torch. A worker computes the features that the store lacks, exactly as a run would, and keeps its backbone and
dataset for the portions that follow. A worker that does not see the store uses the one of its own machine, and sends
all features of the portion back with their keys.

The store is the truth: whatever ends this process, the next one finds what is stored and computes the rest.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.data.dataset import SPLITS, Dataset
from calprompt.data.images import Images
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError, DataError, SettingError
from calprompt.executors.local import LocalExecutor
from calprompt.executors.protocol import FAILED, FINISHED, Executor, Outcome, is_shared, shared_marker
from calprompt.files import cache_folder
from calprompt.progress import FeatureProgress, Progress, silent
from calprompt.registry import check_types, unknown
from calprompt.runs.config import check_values
from calprompt.runs.resources import Resources, group_resources
from calprompt.text import os_problem
from calprompt.training_config import AUTOCAST

if TYPE_CHECKING:
    import torch

    from calprompt.clip.backbone import Backbone


@dataclass(frozen=True)
class ExtractionSettings:
    """What features are wanted; names and defaults are those of `RunConfig` and `TrainingConfig`.

    Attributes:
        data: Folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'.
        backbones: Each as `RunConfig.backbone`.
        splits: Which images: train, val, test.
        views: Random crops of every training image; the evaluation view is added.
        crop: Smallest share of an image's area in a crop.
        device: Device to compute on: cpu, cuda, cuda:1, …
        dtype: Precision of the backbone's weights: float32, float16, bfloat16 or float64.
        autocast: What the towers run in: bfloat16 or float16; their own dtype if None.
        backbone_config: Open_clip model name or JSON config, for a weights file that has none.
        root: Folder that has the datasets, or the images of a table.
        classes: File with the order and names of the classes, and their template.
        exif: Turn images as their EXIF data say.
    """

    data: str
    backbones: tuple[str, ...]
    splits: tuple[str, ...] = SPLITS
    views: int = 8
    crop: float = 0.08
    device: str = "cpu"
    dtype: str = "float32"
    autocast: str | None = None
    backbone_config: str | None = None
    root: str | None = None
    classes: str | None = None
    exif: bool = False

    def __post_init__(self) -> None:
        check_types("", type(self).__init__, vars(self))
        check_values(vars(self))
        if not self.backbones or not self.splits:
            raise SettingError("at least one backbone and one split are needed")
        if self.autocast not in (None, *AUTOCAST):
            raise SettingError(f"must be {', '.join(AUTOCAST)} or nothing, got {self.autocast!r}", parameter="autocast")
        for name in self.splits:
            if name not in SPLITS:
                raise unknown("split", name, SPLITS)
        for name, values in (("backbones", self.backbones), ("splits", self.splits)):
            if len(set(values)) < len(values):
                raise SettingError(f"{name} has something twice: {', '.join(values)}")


@dataclass(frozen=True)
class Portion:
    """Some images whose features are wanted, as plain data."""

    settings: ExtractionSettings  # settings of the whole extraction
    backbone: str  # one of its backbones
    split: str  # one of its splits
    start: int  # the number of the first image
    stop: int  # the number after the last one
    names: str  # digest of the names of all images in the split, which must be the same where the work is done
    store: str  # folder of the feature store
    marker: str = ""  # a file in that folder by which a worker elsewhere tells whether it sees it
    send_back: bool = False  # send features back, whether a worker sees the folder or not

    @property
    def key(self) -> str:
        """Backbone, split and first image."""
        return f"{self.backbone} {self.split} {self.start}"

    @property
    def title(self) -> str:
        """A description in a line."""
        return f"{self.backbone}, {self.split}, images {self.start + 1} to {self.stop}"

    @property
    def views(self) -> int:
        """Random views of every image, besides the one for evaluation."""
        return self.settings.views if self.split == "train" else 0

    @property
    def features(self) -> int:
        """How many features it has."""
        return (self.stop - self.start) * (self.views + 1)


FEATURES_PER_PORTION = 512  # of a portion, at most, unless one image has more: what a lost worker loses


@dataclass(frozen=True)
class ExtractionPlan:
    """The plan of an extraction."""

    settings: ExtractionSettings  # what is wanted
    groups: tuple[tuple[Portion, ...], ...]  # the portions of each backbone
    images: dict[str, int]  # how many images each split has

    @property
    def features(self) -> int:
        """How many features there are, stored ones included."""
        return sum(portion.features for group in self.groups for portion in group)


def plan_extraction(settings: ExtractionSettings, *, store: str | Path | None = None) -> ExtractionPlan:
    """Cut an extraction into portions.

    Args:
        settings: What is wanted.
        store: Folder of the feature store; the usual one, unless given.

    Returns:
        All portions; what the store has of them is found when they are worked on.

    Raises:
        DataError: if there is no data, or it holds features instead of images.
    """
    dataset = load_dataset(settings.data, root=settings.root, classes=settings.classes, upright=settings.exif)
    folder = cache_folder("features") if store is None else Path(store).expanduser()
    groups = tuple(tuple(_portions(settings, name, dataset, str(folder.resolve()))) for name in settings.backbones)
    return ExtractionPlan(settings, groups, {name: len(dataset.splits[name]) for name in settings.splits})


def _portions(settings: ExtractionSettings, backbone: str, dataset: Dataset, store: str) -> Iterator[Portion]:
    for name in settings.splits:
        images = dataset.splits[name].images
        if not images.has_pixels:
            raise DataError(f"{dataset.name} holds image features, not images; runs take them as they are")
        digest = names_digest(images)
        views = settings.views if name == "train" else 0
        length = max(1, FEATURES_PER_PORTION // (views + 1))
        for start in range(0, len(images), length):
            yield Portion(settings, backbone, name, start, min(start + length, len(images)), digest, store)


def names_digest(images: Images) -> str:
    """sha256 of the names of all images, in their order."""
    digest = hashlib.sha256()
    for index in range(len(images)):
        digest.update(images.name(index).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


_checked: list[Images] = []  # of the split that this process is at


@dataclass(frozen=True)
class ExtractionState:
    """The result of an extraction, or of one portion of it."""

    found: int = 0  # features that were in the store
    computed: int = 0  # features that were computed
    unreadable: dict[str, str] = field(default_factory=dict)  # names of images that cannot be read, and why
    seconds: float = 0.0  # that it took
    # features of a portion for a store that the worker does not see: what they depend on besides the image and its
    # view, the name of the backbone, and their type and the bytes of each by key
    sent: tuple[dict[str, Any], str, torch.dtype, dict[bytes, bytes]] | None = None


def work(portion: Portion) -> Outcome[Portion]:
    """Do a portion; what goes wrong is its outcome."""
    start = time.perf_counter()
    try:
        report = _extract(portion)
    except CalpromptError as error:
        return Outcome(portion, FAILED, reason=str(error))
    except OSError as error:
        return Outcome(portion, FAILED, reason=os_problem(error))
    seconds = round(time.perf_counter() - start, 3)
    return Outcome(portion, FINISHED, seconds=seconds, reused=not report.computed, result=report)


def _extract(portion: Portion) -> ExtractionState:
    from calprompt.data.checks import UnreadableImages
    from calprompt.features.frozen import Extraction, description
    from calprompt.features.store import FeatureStore

    sends = portion.send_back or bool(portion.marker and not is_shared(portion.marker))
    place = None if sends else portion.store
    key = repr((portion.settings, portion.backbone, place))
    resources = group_resources(key, lambda: FeatureStore(place))
    backbone, images = _backbone(portion, resources), _images(portion, resources)
    assert resources.store is not None
    space = resources.store.space(description(backbone, images), backbone.name)
    space.record = {} if sends else None
    unreadable = UnreadableImages()
    meter = FeatureProgress("features", portion.features, silent, stored=True)
    passes = [range(1)] + ([range(1, portion.views + 1)] if portion.views and images.augmented else [])
    for views in passes:
        Extraction(backbone, images, views, space, unreadable).run(meter)
    if not sends and not resources.store.writable:
        raise CalpromptError(f"cannot store features in {resources.store.folder}; is it full, or only to be read?")
    sent = (dict(space.about), space.name, space.dtype, space.record) if space.record and space.dtype else None
    return ExtractionState(meter.found, meter.computed, dict(unreadable.reasons), sent=sent)


def _backbone(portion: Portion, resources: Resources) -> Backbone:
    settings = portion.settings
    backbone = resources.backbone(
        portion.backbone, config=settings.backbone_config, device=settings.device, dtype=settings.dtype
    )
    return backbone.view(autocast=settings.autocast, crop=settings.crop)


def _images(portion: Portion, resources: Resources) -> Images:
    settings = portion.settings
    dataset = resources.dataset(settings.data, root=settings.root, classes=settings.classes, upright=settings.exif)
    images = dataset.splits[portion.split].images
    if not any(images is each for each in _checked) and names_digest(images) != portion.names:
        raise DataError(f"{settings.data} has other images here than where the work was planned")
    _checked[:] = [images]  # they stay loaded
    images.check(_backbone(portion, resources))
    return images.take(range(portion.start, portion.stop))


def extract(
    plan: ExtractionPlan,
    *,
    workers: int = 1,
    executor: Executor | None = None,
    send_back: bool = False,
    progress: Progress = silent,
) -> ExtractionState:
    """Fill the feature store.

    Args:
        plan: What `plan_extraction` returned.
        workers: Processes of this machine, unless an executor is given.
        executor: What does the portions.
        send_back: Have features sent back by an executor whose workers do not write to the store; those that do not
            see it send them anyway.
        progress: Callback for progress.

    Returns:
        How much was there and how much was computed.

    Raises:
        CalpromptError: if a portion cannot be done, or the store cannot be written to; what is stored stays there.
    """
    from calprompt.features.store import FeatureStore

    meter = FeatureProgress("features", plan.features, progress, stored=True)
    unreadable: dict[str, str] = {}
    portions = [portion for group in plan.groups for portion in group]
    if not portions:
        return ExtractionState()
    store = FeatureStore(portions[0].store)
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        marked = nullcontext("") if executor is None else shared_marker(Path(store.folder))
        with marked as marker:
            groups = [[replace(each, marker=marker, send_back=send_back) for each in group] for group in plan.groups]
            outcomes = (executor or LocalExecutor(workers)).map(groups, work)
            try:
                for outcome in outcomes:
                    if outcome.status == FAILED:
                        raise CalpromptError(f"{outcome.task.title}: {outcome.reason}")
                    done = outcome.result
                    if done.sent is not None:
                        about, name, dtype, rows = done.sent
                        store.space(about, name).insert(rows, dtype)
                    unreadable |= done.unreadable
                    failed = outcome.task.features - done.found - done.computed
                    meter.add(found=done.found, computed=done.computed, failed=failed)
            finally:
                getattr(outcomes, "close", lambda: None)()  # ends what a generator has begun, now and not later
    except (OSError, sqlite3.Error) as error:
        reason = os_problem(error) if isinstance(error, OSError) else error
        raise CalpromptError(f"cannot write to the feature store {store.folder}: {reason}") from error
    return ExtractionState(meter.found, meter.computed, unreadable, meter.seconds)
