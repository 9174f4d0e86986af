"""What a tuner trains on and is tested on: frozen features, made once, or pixels, loaded when asked for.

A view is a random crop of its own for every image, drawn from the image's number and nothing else, so neither order nor
batches matter. Epoch e trains on view (e - 1) mod V; a text-only tuner never runs the image tower while training.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from calprompt.clip import Backbone, Preprocessing
from calprompt.data.dataset import Split
from calprompt.data.images import FeatureRows, Images, UnreadableImageError, View
from calprompt.errors import CalpromptError

BATCH = 64  # images that go through the frozen tower together

Progress = Callable[[str, int, int, str], None]  # what is done, how much of it, of how much, and a word on how it goes

T = TypeVar("T")
R = TypeVar("R")


def silent(what: str, done: int, total: int, note: str = "") -> None:
    """Progress that nobody is told of."""


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
    """Pixels to train on, loaded when asked for, and the frozen features of the same views."""

    source: Images
    labels: Tensor  # [n]
    preprocessing: Preprocessing
    views: Sequence[View]
    features: Tensor  # [V, n, D]

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        view = [self.views[(epoch - 1) % len(self.views)]]
        return torch.cat(list(in_order(lambda i: self.source.pixels(i, self.preprocessing, view), indices.tolist())))

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        return self.features[(epoch - 1) % len(self.features), indices]


@dataclass
class Unreadable:
    """Images that could not be read, collected so that all are reported together."""

    found: set[str] = field(default_factory=set)

    def report(self) -> None:
        """Raise if there were any."""
        if self.found:
            names = sorted(self.found)
            more = f"\n  … and {len(names) - 20} more" if len(names) > 20 else ""
            count = "one image" if len(names) == 1 else f"{len(names)} images"
            raise CalpromptError(f"{count} cannot be read; replace or remove:\n  " + "\n  ".join(names[:20]) + more)


def frozen_features(
    backbone: Backbone,
    images: Images,
    views: Sequence[View] = (),
    *,
    unreadable: Unreadable,
    progress: Progress = silent,
    what: str = "features",
) -> Tensor:
    """Image features of the frozen tower, [V, n, D], not normalised: of these views, or of the evaluation view alone.

    Unreadable images leave rows of zeros and their names in `unreadable`: call its `report` before using any row.
    """
    if isinstance(images, FeatureRows):
        return images.rows.to(backbone.prompt_dtype)[None]
    V, n, size = len(views) if views and images.augmented else 1, len(images), backbone.preprocessing.size

    def load(index: int) -> Tensor:
        try:
            return images.pixels(index, backbone.preprocessing, views)
        except UnreadableImageError as error:
            unreadable.found.add(str(error))
            return torch.zeros(V, 3, size, size)

    features = torch.zeros(V, n, backbone.embed_dim, dtype=backbone.prompt_dtype)
    done = 0
    for loaded in batched(in_order(load, range(n)), max(1, BATCH // V)):
        with torch.no_grad():
            encoded = backbone.encode_image(torch.cat(loaded)).cpu()
        features[:, done : done + len(loaded)] = encoded.unflatten(0, (len(loaded), V)).transpose(0, 1)
        done += len(loaded)
        progress(what, done * V, n * V, "")
    return features


def evaluation_batches(images: Images, preprocessing: Preprocessing) -> Iterator[Tensor]:
    """Pixels of the evaluation view, in batches, for tuners with visual prompts."""
    for loaded in batched(in_order(lambda i: images.pixels(i, preprocessing), range(len(images))), BATCH):
        yield torch.cat(loaded)


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


def in_order(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`map` in a few threads (decoding and resizing leave Python free), a few items ahead, results in order."""
    threads = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[R]] = deque()
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) > 4 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
