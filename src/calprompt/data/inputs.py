"""Images as users have them: paths, bytes, PIL images or arrays, one or many. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from calprompt.data.decoding import read
from calprompt.data.images import FileContent, Images, Picture, PillowPicture
from calprompt.errors import ImageError, SettingError

if TYPE_CHECKING:
    from calprompt.clip.backbone import Backbone
    from calprompt.clip.identity import BackboneIdentity

CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class GivenImages(Images):
    """Images as users have them: paths, bytes, PIL images or arrays.

    Attributes:
        items: The images.
        names: A path, or "image 3" for the fourth that has none.
        upright: Turn images as their EXIF data say.
    """

    items: tuple[Any, ...]
    names: tuple[str, ...] = ()
    upright: bool = False
    has_pixels: ClassVar[bool] = True
    augmented: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.names:
            names = (str(item) if isinstance(item, str | Path) else f"image {n}" for n, item in enumerate(self.items))
            object.__setattr__(self, "names", tuple(names))

    def __len__(self) -> int:
        return len(self.items)

    def take(self, indices: Sequence[int]) -> GivenImages:
        return GivenImages(tuple(self.items[i] for i in indices), tuple(self.names[i] for i in indices), self.upright)

    def name(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> Picture:
        try:
            return open_image(self.items[index], index, upright=self.upright, name=self.names[index])
        except ImageError as error:
            raise ImageError(error.reason, self.names[index]) from error

    def check(self, backbone: Backbone | BackboneIdentity) -> None:
        """Pictures suit every backbone: its preprocessing sees to that."""


def iterate_images(images: Any) -> tuple[Iterable[Any], int | None]:
    """What to iterate over, one image or many, and how many there are, if that is known."""
    if isinstance(images, str | bytes | bytearray | memoryview | Path) or _is_pillow(images):
        return [images], 1
    if _is_array(images):
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in CHANNELS)
        if not single and images.ndim == 3 and images.shape[0] == 3:
            raise SettingError(
                f"an array of shape {list(images.shape)} may be one image with its channels first or three grey ones; "
                "put the channels last, or give a list of images"
            )
        return ([images], 1) if single else (images, len(images))
    if not isinstance(images, Iterable):
        raise SettingError(
            f"must be paths, bytes, PIL images or arrays, one or many; got {type(images).__name__}", parameter="images"
        )
    return images, len(images) if isinstance(images, Sized) else None


def open_image(image: Any, number: int, *, upright: bool = False, name: str | None = None) -> Picture:
    """One image of whatever kind, read and ready to be decoded."""
    name = name or f"image {number}"
    if isinstance(image, FileContent):
        return FileContent(image.name, image.data, upright)
    if isinstance(image, PillowPicture):
        return image
    if hasattr(image, "reason"):  # of a stream: it is known that it cannot be read
        raise ImageError(image.reason, image.name)
    if isinstance(image, str | Path):
        try:
            return FileContent(str(image), read(os.fspath(Path(image).expanduser())), upright)
        except ImageError as error:
            raise ImageError(error.reason, str(image)) from error
    if isinstance(image, bytes | bytearray | memoryview):
        return FileContent(name, bytes(image), upright)
    if _is_pillow(image):
        from PIL import ImageOps

        return PillowPicture(name, ImageOps.exif_transpose(image) if upright else image)
    if _is_array(image):
        return PillowPicture.from_array(name, np.asarray(image.detach().cpu() if hasattr(image, "detach") else image))
    raise SettingError(f"must be a path, bytes, a PIL image or an array; got {type(image).__name__}", parameter=name)


def _is_pillow(image: Any) -> bool:
    return hasattr(image, "convert") and hasattr(image, "getbands")


def _is_array(image: Any) -> bool:
    return hasattr(image, "ndim") and hasattr(image, "shape") and hasattr(image, "dtype")
