"""How an image becomes a backbone's input: resize, crop, scale to [0, 1], normalise.

evaluation   RGB -> short side to `size` (bicubic, antialiased as PIL does) -> centre crop -> normalise
training     RGB -> random area (at least `crop`) and ratio (3/4-4/3) resized to `size` -> mirrored or not -> normalise
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from calprompt.errors import BackboneError, SettingError
from calprompt.kernel import resize_and_crop
from calprompt.records import Record
from calprompt.registry import unknown

if TYPE_CHECKING:
    import torch
    from PIL import Image

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
_INTERPOLATIONS = ("bicubic", "bilinear")
_RESIZE_MODES = ("shortest", "squash")
_RGB = ("first", "last")
_RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Preprocessing(Record):
    """The image preprocessing of a backbone; two backbones with equal preprocessing can share decoded images.

    Attributes:
        size: Pixels along a side of the input.
        mean: What is subtracted from red, green and blue.
        std: What red, green and blue are divided by.
        interpolation: bicubic or bilinear.
        resize_mode: "shortest" resizes the short side and crops the centre; "squash" resizes both sides and crops
            nothing.
        crop: Smallest share of an image's area in a training view: 8 % in public prompt-tuning code.

    >>> Preprocessing.from_dict(Preprocessing(32).to_dict()) == Preprocessing(32)
    True
    """

    size: int
    mean: tuple[float, float, float] = OPENAI_MEAN
    std: tuple[float, float, float] = OPENAI_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    crop: float = 0.08

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise BackboneError(f"preprocessing size must be a positive whole number of pixels, got {self.size!r}")
        for field in ("mean", "std"):
            object.__setattr__(self, field, _three_numbers(field, getattr(self, field)))
        if min(self.std) <= 0:
            raise BackboneError(f"preprocessing std must be positive, got {self.std}")
        if self.interpolation not in _INTERPOLATIONS:
            raise unknown("interpolation", str(self.interpolation), _INTERPOLATIONS)
        if self.resize_mode not in _RESIZE_MODES:
            raise unknown("resize mode", str(self.resize_mode), _RESIZE_MODES)
        if not 0 < self.crop <= 1:
            raise SettingError(
                f"must be a share of the image's area, above 0 and at most 1, got {self.crop}", parameter="crop"
            )

    def evaluation(self, rgb: str = "first") -> View:
        """PIL image -> [3, size, size], always the same.

        `rgb="first"` converts to RGB before resizing, as prompt-tuning code does; "last" after it, as OpenAI's
        transform does. They differ for palette images and images with transparency, and for nothing else.
        """
        return View(self, rgb=rgb)

    def training(self, generator: torch.Generator) -> View:
        """PIL image -> [3, size, size], a random view drawn from `generator` and from nothing else."""
        return View(self, generator)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown("preprocessing field", str(name), known)
        if "size" not in values:
            raise BackboneError(f"preprocessing needs 'size', got only {sorted(values)}")
        return cls(**values)

    @classmethod
    def from_open_clip(cls, config: Mapping[str, Any], size: int) -> Preprocessing:
        """From open_clip's `preprocess_cfg`, or a row of its table of pretrained files."""
        wanted = {name: config[name] for name in ("mean", "std", "interpolation", "resize_mode") if config.get(name)}
        if wanted.get("interpolation") == "random":  # random in training, bicubic otherwise
            wanted["interpolation"] = "bicubic"
        found = _square("preprocess_cfg.size", config.get("size") or size)
        if found != size:
            raise BackboneError(f"preprocess_cfg.size is {found}, but the image tower takes {size} pixels")
        return cls(size=size, **wanted)

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any], size: int) -> Preprocessing:
        """From a `preprocessor_config.json` beside Hugging Face weights."""
        for step in ("do_resize", "do_rescale", "do_normalize"):
            if config.get(step, True) is not True:
                raise BackboneError(f"preprocessor_config.json: {step} = {config[step]!r} is not supported, only true")
        if not math.isclose(config.get("rescale_factor", 1 / 255), 1 / 255, rel_tol=1e-6):
            raise BackboneError(f"preprocessor_config.json: rescale_factor = {config['rescale_factor']!r}, not 1/255")
        resample = config.get("resample", 3)
        if resample not in (2, 3):
            raise BackboneError(
                f"preprocessor_config.json: resample = {resample!r}, expected 3 (bicubic) or 2 (bilinear)"
            )
        crops = config.get("do_center_crop", True)
        sizes = {"size": config.get("size", size)} | ({"crop_size": config.get("crop_size", size)} if crops else {})
        for name, value in sizes.items():
            if _square(f"preprocessor_config.json: {name}", value) != size:
                raise BackboneError(
                    f"preprocessor_config.json: {name} = {value!r}, but the image tower takes {size} pixels"
                )
        return cls(
            size=size,
            mean=config.get("image_mean") or OPENAI_MEAN,
            std=config.get("image_std") or OPENAI_STD,
            interpolation="bicubic" if resample == 3 else "bilinear",
            resize_mode="shortest" if crops else "squash",
        )

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """8-bit pixels [n, size, size, 3] as input of the tower, [n, 3, size, size]; others are returned as they are.

        The operations are those of torchvision's `to_tensor` and `normalize` in the same order, with the same bits.
        """
        import torch

        if images.dtype != torch.uint8:
            return images
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        pixels = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return pixels.div_(255).sub_(mean).div_(std)


@dataclass(frozen=True)
class View:
    """From a PIL image to a view of it, a random one if there is a generator, whose numbers calls consume in order.

    It is a plain object, so worker processes can receive it.
    """

    preprocessing: Preprocessing
    generator: torch.Generator | None = None
    rgb: str = "first"

    def __post_init__(self) -> None:
        if self.rgb not in _RGB:
            raise unknown("value of rgb", str(self.rgb), _RGB)

    def picture(self, image: Image.Image) -> Image.Image:
        """The view, `size` pixels a side."""
        from PIL.Image import Image as Picture

        wanted = self.preprocessing
        if not isinstance(image, Picture):
            raise SettingError(f"expected a PIL image, got {type(image).__name__}; open a file with PIL.Image.open")
        if image.mode != "RGB" and (self.rgb == "first" or self.generator is not None):
            image = image.convert("RGB")
        if self.generator is not None:
            return self._random(image, self.generator)
        view = resize_and_crop(image, wanted.size, wanted.interpolation, wanted.resize_mode)
        return view if view.mode == "RGB" else view.convert("RGB")

    def _random(self, image: Image.Image, generator: torch.Generator) -> Image.Image:
        import torch
        from PIL.Image import Resampling, Transpose

        wanted = self.preprocessing
        top, left, height, width = random_crop(image.height, image.width, generator, wanted.crop)
        part = image.crop((left, top, left + width, top + height))
        view = part.resize((wanted.size, wanted.size), Resampling[wanted.interpolation.upper()])
        return view.transpose(Transpose.FLIP_LEFT_RIGHT) if torch.rand(1, generator=generator) < 0.5 else view

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """8-bit pixels [size, size, 3], which `Preprocessing.normalise` takes many of at once."""
        import numpy as np
        import torch

        return torch.from_numpy(np.array(self.picture(image)))

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Input of the tower [3, size, size]."""
        return self.preprocessing.normalise(self.pixels(image)[None])[0]


def random_crop(
    height: int, width: int, generator: torch.Generator, smallest: float = 0.08
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part of the image: area uniform, log of the ratio uniform.

    Ten tries to fit inside the image, then the largest centred part whose ratio is allowed: the draws of torchvision's
    `RandomResizedCrop`, one for one, but from `generator`.
    """
    import torch

    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(smallest, 1.0, generator=generator).item()
        low, high = torch.log(torch.tensor(_RATIO)).tolist()
        ratio = torch.exp(torch.empty(1).uniform_(low, high, generator=generator)).item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,), generator=generator))
            left = int(torch.randint(0, width - w + 1, (1,), generator=generator))
            return top, left, h, w
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def _three_numbers(field: str, values: Any) -> tuple[float, ...]:
    numbers = isinstance(values, (list, tuple)) and all(isinstance(value, (int, float)) for value in values)
    if not numbers or len(values) != 3:
        raise BackboneError(f"preprocessing {field} must be three numbers (red, green, blue), got {values!r}")
    return tuple(float(value) for value in values)


def _square(field: str, value: Any) -> int:
    """The side of a square given as 224, [224, 224], {"shortest_edge": 224} or {"height": 224, "width": 224}."""
    listed = list(value.values()) if isinstance(value, Mapping) else value
    sides = set(listed) if isinstance(listed, (list, tuple)) else {listed}
    if len(sides) != 1 or not isinstance(side := sides.pop(), int):
        raise BackboneError(f"{field} = {value!r} is not supported, expected one whole number (square images)")
    return side
