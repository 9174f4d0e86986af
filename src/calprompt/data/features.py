"""What a tuner trains on and is tested on: frozen features, made once, or pixels, loaded when asked for.

A training image has V views, random crops drawn from its content and the number of the view (see
`calprompt.data.tower`), so neither seeds nor order nor batches matter, and all methods see the same. Epoch e trains on
view (e - 1) mod V; a text-only tuner never runs the image tower while training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calprompt.clip import Backbone, Preprocessing
from calprompt.data.dataset import Split
from calprompt.data.extraction import Extraction, Unreadable
from calprompt.data.images import FeatureRows, Images, UnreadableImageError
from calprompt.data.store import FeatureStore
from calprompt.data.tower import Levels, description, load_views, normalised
from calprompt.data.work import Meter, Progress, batched, in_order, silent

__all__ = [
    "BATCH",
    "FeatureBank",
    "PixelBank",
    "Progress",
    "Unreadable",
    "batched",
    "content",
    "evaluation_batches",
    "frozen_features",
    "in_order",
    "silent",
]

BATCH = 64  # images that a tuner is tested on together


@dataclass(eq=False)
class FeatureBank:
    """Frozen features to train on, in V views."""

    features: Tensor  # [V, n, D]
    labels: Tensor  # [n]

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        return self.features[(epoch - 1) % len(self.features), indices]

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        return None  # they are the images themselves


@dataclass(eq=False)
class PixelBank:
    """Pixels to train on, loaded when asked for, and the frozen features of the same views, if they were computed."""

    source: Images
    labels: Tensor  # [n]
    preprocessing: Preprocessing
    views: int
    features: Tensor | None = None  # [V, n, D]

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        view = 1 + (epoch - 1) % self.views if self.source.augmented else 0
        levels = Levels.from_dict(self.preprocessing.to_dict())
        loaded = in_order(lambda index: load_views(self.source.read(index), levels, [view])[0], indices.tolist())
        return normalised(torch.stack(list(loaded)), self.preprocessing)

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        return None if self.features is None else self.features[(epoch - 1) % len(self.features), indices]


def frozen_features(
    backbone: Backbone,
    images: Images,
    views: int = 0,
    *,
    unreadable: Unreadable,
    store: FeatureStore | None = None,
    progress: Progress = silent,
    what: str = "features",
) -> Tensor:
    """Image features of the frozen tower, [V, n, D], not normalised: of so many views, or of the evaluation view alone.

    store  what it has is read, and what it has not is kept there; the bits are the same without it

    Unreadable images leave rows of zeros and their names in `unreadable`: call its `report` before using any row.
    """
    if isinstance(images, FeatureRows):
        return images.rows.to(backbone.prompt_dtype)[None]
    numbers = range(1, views + 1) if views and images.augmented else range(1)
    space = store.space(description(backbone, images), backbone.name) if store is not None else None
    meter = Meter(what, len(images) * len(numbers), progress, stored=space is not None)
    return Extraction(backbone, images, numbers, space, unreadable).run(meter)


def evaluation_batches(images: Images, preprocessing: Preprocessing) -> Iterator[Tensor]:
    """Pixels of the evaluation view, in batches, for tuners with visual prompts."""
    for loaded in batched(in_order(lambda i: images.pixels(i, preprocessing), range(len(images))), BATCH):
        yield torch.stack(loaded)


def content(splits: Mapping[str, Split], progress: Progress = silent) -> dict[str, list[list[str | int]]]:
    """Name, label and digest of every image of some splits: what a fingerprint is taken of."""
    unreadable = Unreadable()

    def digest(where: tuple[Split, int]) -> str:
        split, index = where
        try:
            return split.images.digest(index)
        except UnreadableImageError as error:
            unreadable.found.add(str(error))
            return ""

    places = [(name, split, index) for name, split in splits.items() for index in range(len(split))]
    rows: dict[str, list[list[str | int]]] = {name: [] for name in splits}
    digests = in_order(digest, ((split, index) for _, split, index in places))
    for done, ((name, split, index), found) in enumerate(zip(places, digests, strict=True), start=1):
        rows[name].append([split.images.name(index), split.labels[index], found])
        progress("reading images", done, len(places), "")
    unreadable.report()
    return rows
