"""An extraction before it works: the images, cut into portions. Opens no image and loads no weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calprompt.cache import cache_folder
from calprompt.data.dataset import Dataset
from calprompt.data.images import Images
from calprompt.data.load import load_dataset
from calprompt.errors import DataError
from calprompt.extraction.portion import Portion
from calprompt.extraction.settings import ExtractionSettings

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
