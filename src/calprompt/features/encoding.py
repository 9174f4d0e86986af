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
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Evaluation, Preprocessing
from calprompt.data.images import Images, Picture
from calprompt.features import EXTRACTION
from calprompt.features.store import key
from calprompt.kernel import resize_and_crop
from calprompt.parallel import map_in_threads

LARGE = 10_000_000  # weights of a tower that takes longer than decoding


class Uint8Preprocessing(Preprocessing):
    """The same views as 8-bit levels, [size, size, 3]; `normalise` converts a whole batch at once."""

    def evaluation(self, rgb: str = "first") -> Evaluation:
        return Uint8Evaluation(self, rgb)

    def _tensor(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image))


class Uint8Evaluation(Evaluation):
    """The evaluation view without intermediate copies, which for small images take longer than everything else."""

    def __call__(self, image: Image.Image) -> Tensor:
        preprocessing = self.preprocessing
        if image.mode != "RGB":
            return super().__call__(image)
        size, interpolation, mode = preprocessing.size, preprocessing.interpolation, preprocessing.resize_mode
        return preprocessing._tensor(resize_and_crop(image, size, interpolation, mode))


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
        "libraries": {name: version(name) for name in ("torch", "torchvision", "pillow", "open_clip_torch")},
    }


def batch_size(backbone: Backbone) -> int:
    """Images per call of the tower; few on a CPU for a large tower or one of timm's, where more are no faster."""
    if backbone.device.type == "cpu" and backbone.is_timm:
        return 4  # EfficientNet-Lite0 at 160 pixels: 110 images a second in a thread, 42 in batches of 32
    weights = sum(tensor.numel() for tensor in backbone.model.visual.parameters())
    return 16 if backbone.device.type == "cpu" and weights > LARGE else 64


def view_generator(digest: str, view: int) -> torch.Generator:
    """The generator of a random crop, seeded with the image's content and the number of the view."""
    seed = hashlib.sha256(key(digest, view)).digest()[:8]
    return torch.Generator().manual_seed(int.from_bytes(seed, "big"))


def load_views(picture: Picture, preprocessing: Preprocessing, views: Sequence[int]) -> list[Tensor]:
    """Some views of an image, made by its kind of picture and `preprocessing`."""
    return picture.views(preprocessing, [view_generator(picture.digest, view) for view in views if view])


def normalise(levels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """8-bit levels [n, size, size, 3] as input of the tower, [n, 3, size, size]; other pixels are returned unchanged.

    The operations are those of torchvision's `to_tensor` and `normalize` in the same order, so the bits are the same.
    """
    if levels.dtype != torch.uint8:
        return levels
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (preprocessing.mean, preprocessing.std))
    pixels = levels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.div_(255).sub_(mean).div_(std)


@torch.no_grad()
def encode(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Features [n, D] of at most `batch_size` images, not normalised."""
    n, size = len(pixels), batch_size(backbone)
    if n < size:
        pixels = torch.cat([pixels, pixels.new_zeros(size - n, *pixels.shape[1:])])
    return backbone.encode_image(pixels)[:n].cpu()


@dataclass(eq=False)
class FeatureBank:
    """Frozen features to train on, in V views.

    Attributes:
        features: [V, n, D].
        labels: Class indices [n].
    """

    features: Tensor
    labels: Tensor

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
    """Pixels to train on, loaded when needed, and the frozen features of the same views, if they were computed.

    Attributes:
        source: The images.
        labels: Class indices [n].
        preprocessing: From an image to pixels.
        views: How many views each image has; 0: only the one for evaluation.
        features: Frozen features [V, n, D].
    """

    source: Images
    labels: Tensor
    preprocessing: Preprocessing
    views: int
    features: Tensor | None = None

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The pixels of this epoch's view, [len(indices), 3, size, size]."""
        view = 1 + (epoch - 1) % self.views if self.views and self.source.augmented else 0
        as_uint8 = Uint8Preprocessing.from_dict(self.preprocessing.to_dict())
        loaded = map_in_threads(lambda i: load_views(self.source.read(i), as_uint8, [view])[0], indices.tolist())
        return normalise(torch.stack(list(loaded)), self.preprocessing)

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """The frozen features of the same views, if they were computed."""
        return None if self.features is None else self.features[(epoch - 1) % len(self.features), indices]
