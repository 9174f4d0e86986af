"""From images to features: stored ones are read, others are computed and stored; and the banks that tuners train on.

The key of a feature is the digest of the bytes it was decoded from. Small files are read once; the bytes of large files
are not kept in memory while they wait, but read and digested again. Each process takes the images in a random order and
looks into the store right before it begins with some of them, so that several processes share the work.

Features are bit for bit the same in any batch: matrix products of other shapes, or divided among other numbers of
threads, round differently, so every call of the tower gets exactly `batch_size` images, the last batch filled up with
zeros, and on a CPU it runs in one thread: several threads decode and encode one batch each, which is as fast.

View 0 of an image is the one for evaluation. View v from 1 on is a random crop drawn from the image's content and v and
nothing else, neither the seed of a run nor the path of the file, so all methods share one bank of views. Epoch e trains
on view 1 + (e - 1) mod V; a text-only tuner never runs the image tower while training.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.checks import UnreadableImages
from calprompt.data.images import FeatureRows, Images, Picture
from calprompt.errors import ImageError
from calprompt.features import EXTRACTION
from calprompt.features.store import FeatureStore, Space, key
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import FeatureProgress, Progress, silent

LARGE_TOWER = 10_000_000  # weights of a tower that takes longer than decoding


def description(backbone: Backbone, images: Images) -> dict[str, Any]:
    """Everything that a feature depends on besides the image's content and the view, as plain data."""
    device = backbone.device
    kind = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    if device.type == "cuda":
        kind = f"{torch.cuda.get_device_name(device)}{' tf32' if torch.backends.cudnn.allow_tf32 else ''}"
    return {
        "extraction": EXTRACTION,
        "backbone": backbone.fingerprint,
        "preprocessing": backbone.preprocessing.to_dict(),
        "images": type(images).__name__,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "autocast": str(backbone.autocast).removeprefix("torch.") if backbone.autocast else None,
        "device": f"{device.type} {platform.machine()} {kind}".strip(),
        "matmul": torch.get_float32_matmul_precision(),
        "batch": batch_size(backbone),
        "libraries": _versions("torch", "torchvision", "pillow", "open_clip_torch"),
    }


@cache
def _versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names}


def batch_size(backbone: Backbone) -> int:
    """Images per call of the tower; few on a CPU for a large tower or one of timm's, where more are no faster."""
    if backbone.device.type == "cpu" and backbone.is_timm:
        return 4  # EfficientNet-Lite0 at 160 pixels: 110 images a second in a thread, 42 in batches of 32
    weights = sum(tensor.numel() for tensor in backbone.model.visual.parameters())
    return 16 if backbone.device.type == "cpu" and weights > LARGE_TOWER else 64


def view_generator(digest: str, view: int) -> torch.Generator:
    """The generator of a random crop, seeded with the image's content and the number of the view."""
    seed = hashlib.sha256(key(digest, view)).digest()[:8]
    return torch.Generator().manual_seed(int.from_bytes(seed, "big"))


def load_views(picture: Picture, preprocessing: Preprocessing, views: Sequence[int]) -> list[Tensor]:
    """Some views of an image, made by its kind of picture and `preprocessing`."""
    return picture.views(preprocessing, [view_generator(picture.digest, view) for view in views if view])


@torch.no_grad()
def encode(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Features [n, D] of at most `batch_size` images, not normalised."""
    n, size = len(pixels), batch_size(backbone)
    if n < size:
        pixels = torch.cat([pixels, pixels.new_zeros(size - n, *pixels.shape[1:])])
    return backbone.encode_image(pixels)[:n].cpu()


@dataclass(eq=False)
class FeatureBank:
    """Frozen features to train on, in V views."""

    features: Tensor  # [V, n, D]
    labels: Tensor  # class indices [n]

    @property
    def views(self) -> int:
        """How many views of each image there are."""
        return len(self.features)

    def to(self, device: torch.device) -> FeatureBank:
        """The bank on a device, so that steps copy nothing; unchanged if it needs over half of its free memory."""
        if device.type == "cuda" and 2 * self.features.nbytes > torch.cuda.mem_get_info(device)[0]:
            return self
        return FeatureBank(self.features.to(device), self.labels.to(device))

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The features of this epoch's view, [len(indices), D]."""
        return self.features[(epoch - 1) % len(self.features), indices]

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """Nothing: the images themselves are frozen features."""
        return None


@dataclass(eq=False)
class PixelBank:
    """Pixels to train on, loaded when needed, and the frozen features of the same views, if they were computed."""

    source: Images
    labels: Tensor  # class indices [n]
    preprocessing: Preprocessing  # from an image to pixels
    views: int  # how many views each image has; 0: only the one for evaluation
    features: Tensor | None = None  # frozen features [V, n, D]

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The pixels of this epoch's view, [len(indices), 3, size, size]."""
        view = 1 + (epoch - 1) % self.views if self.views and self.source.augmented else 0
        wanted = self.preprocessing
        loaded = map_in_threads(lambda i: load_views(self.source.read(i), wanted, [view])[0], indices.tolist())
        return wanted.normalise(torch.stack(list(loaded)))

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """The frozen features of the same views, if they were computed."""
        return None if self.features is None else self.features[(epoch - 1) % len(self.features), indices]


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
        return map_in_threads(self._load, batches, threads=min(threads, WORKERS), ahead=2, initializer=one_thread)

    def _missing(self, meter: FeatureProgress) -> Iterator[Job]:
        """Views to compute; the features of stored views are copied."""
        everything = range(len(self.images))
        if self.space is None:
            yield from ((index, view, None) for index in everything for view in self.views)
            return
        groups = list(batched(everything, max(1, VIEWS_PER_LOOKUP // len(self.views))))
        random.Random().shuffle(groups)
        for group in groups:
            jobs: list[Job] = []
            keys: list[bytes] = []
            for index in group:
                if (picture := self._read(index)) is not None:
                    keys += [key(picture.digest, view) for view in self.views]
                    jobs += [(index, view, picture if picture.nbytes <= SMALL_FILE else None) for view in self.views]
            found, values = self.space.find(keys)
            self._put([jobs[place][:2] for place in found], values)
            meter.add(found=len(found), failed=len(group) * len(self.views) - len(jobs))
            stored = set(found)
            yield from (job for place, job in enumerate(jobs) if place not in stored)

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


def one_thread() -> None:
    """Let torch compute in one thread: several threads of this process compute at a time."""
    torch.set_num_threads(1)
