"""From images to features: stored ones are read, the others are computed and stored.

    for a few images at a time     read -> digests -> store -> found: copied
                                                            -> missing: a batch of views -> decoded, encoded -> store

The key of a feature is the digest of the bytes it was decoded from. Small files are read once; the bytes of large files
are not kept in memory while they wait, but read and digested again.

Each process takes the images in a random order and looks into the store right before it begins with some of them, so
that several processes share the work on the same images, and none computes what another has finished.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calprompt.clip.backbone import Backbone
from calprompt.data.images import FeatureRows, Images, Picture
from calprompt.data.unreadable import UnreadableImages
from calprompt.errors import ImageError
from calprompt.features.encoding import (
    batch_size,
    description,
    encode,
    load_views,
)
from calprompt.features.store import FeatureStore, Space, key
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import FeatureProgress, Progress, silent

VIEWS_PER_LOOKUP = 64  # views that are looked up together
WORKERS = 16  # at most
FILES_PER_READ = 8  # images that are read before the first is decoded: system calls in a row are faster
SMALL_FILE = 1 << 16  # bytes of a file that stays in memory until it is decoded

Row = tuple[int, int]  # the index of an image and the number of a view
Job = tuple[int, int, Picture | None]  # the same, and the image if it was read already


def frozen_features(
    backbone: Backbone,
    images: Images,
    views: int = 0,
    *,
    unreadable: UnreadableImages,
    store: FeatureStore | None = None,
    progress: Progress = silent,
    what: str = "features",
) -> Tensor:
    """Features [V, n, D] of the frozen tower, not normalised, of V random views; of the evaluation view with 0 views.

    The rows of images that cannot be read are zeros: call `unreadable.report` before using any.
    """
    if isinstance(images, FeatureRows):
        return images.rows.to(backbone.prompt_dtype)[None]
    numbers = range(1, views + 1) if views and images.augmented else range(1)
    space = store.space(description(backbone, images), backbone.name) if store is not None else None
    meter = FeatureProgress(what, len(images) * len(numbers), progress, stored=space is not None)
    return Extraction(backbone, images, numbers, space, unreadable).run(meter)


@dataclass(eq=False)
class Batch:
    """Views for one call of the tower."""

    rows: list[Row]  # the views that could be read
    keys: list[bytes]  # their keys in the store; empty without a store
    values: Tensor  # their pixels, and later their features
    failed: int  # how many views could not be read


class Extraction:
    """Computes the features [V, n, D] of some views of all images."""

    def __init__(
        self, backbone: Backbone, images: Images, views: range, space: Space | None, unreadable: UnreadableImages
    ) -> None:
        self.backbone, self.images, self.views, self.space, self.unreadable = backbone, images, views, space, unreadable
        self.features = torch.zeros(len(views), len(images), backbone.embed_dim, dtype=backbone.prompt_dtype)
        self.on_cpu = backbone.device.type == "cpu"

    def run(self, meter: FeatureProgress) -> Tensor:
        """All features; on a CPU as many threads as torch has decode and encode one batch each."""
        threads = torch.get_num_threads()
        batches = batched(self._missing(meter), batch_size(self.backbone))
        torch.set_num_threads(1)  # copying a few rows takes longer in several threads
        try:
            for batch in self._loaded(batches, threads):
                if not self.on_cpu and batch.rows:
                    batch.values = encode(self.backbone, batch.values)
                self._put(batch.rows, batch.values)
                if self.space is not None:
                    self.space.add(batch.keys, batch.values)
                meter.add(computed=len(batch.rows), failed=batch.failed)
        finally:
            torch.set_num_threads(threads)
            if self.space is not None:
                self.space.flush()
                self.space.note_use(meter.found, meter.computed, meter.seconds if meter.computed else 0.0)
        return self.features

    def _loaded(self, batches: Iterator[list[Job]], threads: int) -> Iterator[Batch]:
        if not self.on_cpu:
            return map_in_threads(self._load, batches, ahead=1)
        if threads == 1:  # a second thread would only get in its way
            return map(self._load, batches)
        return map_in_threads(self._load, batches, threads=min(threads, WORKERS), ahead=2, initializer=_one_thread)

    def _missing(self, meter: FeatureProgress) -> Iterator[Job]:
        """Views to compute; the features of stored views are copied."""
        everything = range(len(self.images))
        if self.space is None:
            yield from ((index, view, None) for index in everything for view in self.views)
            return
        groups = list(batched(everything, max(1, VIEWS_PER_LOOKUP // len(self.views))))
        random.Random().shuffle(groups)
        for group in groups:
            jobs, keys = self._jobs(group)
            found, values = self.space.find(keys)
            self._put([jobs[place][:2] for place in found], values)
            meter.add(found=len(found), failed=len(group) * len(self.views) - len(jobs))
            stored = set(found)
            yield from (job for place, job in enumerate(jobs) if place not in stored)

    def _jobs(self, group: list[int]) -> tuple[list[Job], list[bytes]]:
        """All views of some images and their keys, without images that cannot be read."""
        jobs: list[Job] = []
        keys: list[bytes] = []
        for index in group:
            if (picture := self._read(index)) is not None:
                keys += [key(picture.digest, view) for view in self.views]
                jobs += [(index, view, picture if picture.nbytes <= SMALL_FILE else None) for view in self.views]
        return jobs, keys

    def _load(self, jobs: list[Job]) -> Batch:
        """Pixels of a batch; on a CPU its features."""
        read: list[Row] = []
        keys: list[bytes] = []
        pixels: list[Tensor] = []
        for index, picture, views in self._pictures(jobs):
            try:
                pixels += load_views(picture, self.backbone.preprocessing, views)
            except ImageError as error:
                self.unreadable.add(error)
                continue
            read += [(index, view) for view in views]
            if self.space is not None:
                keys += [key(picture.digest, view) for view in views]
        values = self.backbone.preprocessing.normalise(torch.stack(pixels)) if pixels else torch.empty(0)
        if pixels and self.on_cpu:
            values = encode(self.backbone, values)
        return Batch(read, keys, values, len(jobs) - len(read))

    def _pictures(self, jobs: list[Job]) -> Iterator[tuple[int, Picture, list[int]]]:
        """Images and the views to compute, without images that cannot be read."""
        groups = (list(group) for _, group in itertools.groupby(jobs, key=lambda job: job[0]))
        for some in batched(groups, FILES_PER_READ):
            pictures = [group[0][2] or self._read(group[0][0]) for group in some]
            for group, picture in zip(some, pictures, strict=True):
                if picture is not None:
                    yield group[0][0], picture, [view for _, view, _ in group]

    def _read(self, index: int) -> Picture | None:
        """An image; None if it cannot be read, which is noted."""
        try:
            return self.images.read(index)
        except ImageError as error:
            self.unreadable.add(error)
            return None

    def _put(self, rows: list[Row], values: Tensor) -> None:
        if rows:
            indices, views = torch.tensor(rows).T
            self.features[views - self.views[0], indices] = values


def _one_thread() -> None:
    torch.set_num_threads(1)
