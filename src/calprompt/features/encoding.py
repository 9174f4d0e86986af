"""Features of the frozen image tower, the same bits whatever else is asked for, and all that they depend on.

Matrix products of other shapes, or cut among other numbers of threads, round differently. So a call of the tower takes
`batch_size` images exactly, the last one filled up with zeros, and on a CPU it runs in one thread: several threads run
a batch each, and decode it themselves. That is as fast, and a feature no longer depends on its neighbours.

View 0 of an image is the one for evaluation. View v from 1 on is a random crop drawn from the image's content and v,
nothing else: not from the seed of a run, nor from where the file lies, so all runs share one bank of views.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from calprompt.clip import Backbone, Preprocessing
from calprompt.clip.preprocessing import Evaluation
from calprompt.data.images import Images, Picture
from calprompt.features import EXTRACTION
from calprompt.features.store.shards import key

LARGE = 10_000_000  # weights of a tower that takes longer than the rest


class Uint8Preprocessing(Preprocessing):
    """The same views as 8-bit levels, [size, size, 3]: `normalise` makes numbers of a whole batch at once."""

    def evaluation(self, rgb: str = "first") -> Evaluation:
        return Uint8Evaluation(self, rgb)

    def _tensor(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(image))


class Uint8Evaluation(Evaluation):
    """The evaluation view without copies on the way, which of small images take longer than the rest."""

    def __call__(self, image: Image.Image) -> Tensor:
        wanted, short = self.preprocessing, min(image.size)
        if image.mode != "RGB" or wanted.resize_mode != "shortest":
            return super().__call__(image)
        width, height = (int(wanted.size * side / short) for side in image.size)
        resized = image.resize((width, height), Image.Resampling[wanted.interpolation.upper()])
        if width != height:
            from torchvision.transforms import functional

            resized = functional.center_crop(resized, [wanted.size, wanted.size])
        return wanted._tensor(resized)


def description(backbone: Backbone, images: Images) -> dict[str, Any]:
    """All that a feature depends on besides the image's content and the view, as plain data."""
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
    """Images in every call of the tower: few for a large one on a CPU, where more are no faster and sets are small."""
    weights = sum(tensor.numel() for tensor in backbone.model.visual.parameters())
    return 16 if backbone.device.type == "cpu" and weights > LARGE else 64


def view_generator(digest: str, view: int) -> torch.Generator:
    """What a random crop is drawn from: the image's content and the number of the view."""
    seed = hashlib.sha256(key(digest, view)).digest()[:8]
    return torch.Generator().manual_seed(int.from_bytes(seed, "big"))


def load_views(picture: Picture, preprocessing: Preprocessing, views: Sequence[int]) -> list[Tensor]:
    """These views of an image, as its kind and `preprocessing` make them."""
    return picture.views(preprocessing, [view_generator(picture.digest, view) for view in views if view])


def normalise(levels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Levels [n, size, size, 3] as the tower takes them, [n, 3, size, size]; pixels that are numbers stay as they are.

    One operation after the other as torchvision's `to_tensor` and `normalize`, so with the same bits.
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
