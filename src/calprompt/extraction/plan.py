"""An extraction before it works: what is wanted, and the images cut into portions, which are the tasks of an executor.

Opens no image, loads no weights and needs no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calprompt.cache import cache_folder
from calprompt.data.dataset import Dataset
from calprompt.data.images import Images
from calprompt.data.listing import SPLITS
from calprompt.data.load import load_dataset
from calprompt.errors import DataError, SettingError
from calprompt.options import check_types
from calprompt.registry import unknown
from calprompt.runs.config import check_values
from calprompt.training_config import AUTOCAST


@dataclass(frozen=True)
class ExtractionSettings:
    """What features are wanted; names and defaults are those of `RunConfig` and `TrainingConfig`.

    Attributes:
        data: Folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'.
        backbones: Each as `RunConfig.backbone`.
        splits: Which images: train, val, test.
        views: Random crops of every training image; the view for evaluation comes besides.
        crop: Smallest share of an image's area in a crop.
        device: Where to compute: cpu, cuda, cuda:1, …
        dtype: Of the backbone's weights: float32, float16, bfloat16 or float64.
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
    """Some images whose features are wanted, as plain data.

    Attributes:
        settings: Of the whole extraction.
        backbone: One of its backbones.
        split: One of its splits.
        start: The number of the first image.
        stop: The number after the last one.
        names: Digest of the names of all images in the split, which must be the same where the work is done.
        store: Folder of the feature store.
        marker: A file in that folder by which a worker elsewhere tells whether it sees it.
        send_back: Send features back, whether a worker sees the folder or not.
    """

    settings: ExtractionSettings
    backbone: str
    split: str
    start: int
    stop: int
    names: str
    store: str
    marker: str = ""
    send_back: bool = False

    @property
    def key(self) -> str:
        """Backbone, split and first image."""
        return f"{self.backbone} {self.split} {self.start}"

    @property
    def title(self) -> str:
        """What it is, in a line."""
        return f"{self.backbone}, {self.split}, images {self.start + 1} to {self.stop}"

    @property
    def views(self) -> int:
        """Random views of every image, besides the one for evaluation."""
        return self.settings.views if self.split == "train" else 0

    @property
    def features(self) -> int:
        """How many features it has."""
        return (self.stop - self.start) * (self.views + 1)


FEATURES = 512  # of a portion, at most, unless one image has more: what a lost worker loses


@dataclass(frozen=True)
class ExtractionPlan:
    """What an extraction will look at.

    Attributes:
        settings: What is wanted.
        groups: The portions of each backbone.
        images: How many images each split has.
    """

    settings: ExtractionSettings
    groups: tuple[tuple[Portion, ...], ...]
    images: dict[str, int]

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
        length = max(1, FEATURES // (views + 1))
        for start in range(0, len(images), length):
            yield Portion(settings, backbone, name, start, min(start + length, len(images)), digest, store)


def names_digest(images: Images) -> str:
    """sha256 of the names of all images, in their order."""
    digest = hashlib.sha256()
    for index in range(len(images)):
        digest.update(images.name(index).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()
