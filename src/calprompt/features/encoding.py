"""Features of the frozen image tower, bit for bit the same in any batch, and the banks that tuners train on.

Matrix products of other shapes, or divided among other numbers of threads, round differently. So every call of the
tower gets exactly `batch_size` images, the last batch filled up with zeros, and on a CPU it runs in one thread: several
threads decode and encode one batch each. That is as fast, and a feature does not depend on the rest of its batch.

View 0 of an image is the one for evaluation. View v from 1 on is a random crop drawn from the image's content and v and
nothing else, neither the seed of a run nor the path of the file, so all runs share one bank of views.

A training image has V views, random crops drawn from its content and the number of the view (see
`calprompt.features.encoding`), so neither seeds nor order nor batches matter, and all methods see the same. Epoch e
trains on view (e - 1) mod V; a text-only tuner never runs the image tower while training.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.images import Images, Picture
from calprompt.features import EXTRACTION
from calprompt.features.store import key
from calprompt.parallel import map_in_threads

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
