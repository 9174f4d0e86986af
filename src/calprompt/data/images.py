"""Images by number, of three kinds: files on disk, rows of pixels, rows of features.

Each tells its names and digests, and gives what a tower or a tuner takes; none knows labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from PIL import Image
from torch import Tensor

from calprompt.clip import Backbone, Preprocessing
from calprompt.data.decoding import BadImageError, decode
from calprompt.errors import CalpromptError


class UnreadableImageError(CalpromptError):
    """An image that cannot be read; `calprompt.data.features` collects them and reports all at once."""


class Images(Protocol):
    """What the three kinds have in common."""

    has_pixels: ClassVar[bool]  # False: only features are known
    augmented: ClassVar[bool]  # False: there is no other view than the one for evaluation

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> Images:
        """These images only, in this order."""
        ...

    def name(self, index: int) -> str: ...

    def digest(self, index: int) -> str:
        """sha256 of its content."""
        ...

    def check(self, backbone: Backbone) -> None:
        """Raise if these images do not suit the backbone."""
        ...

    def pixels(self, index: int, preprocessing: Preprocessing, views: Sequence[torch.Generator] = ()) -> Tensor:
        """[views, 3, size, size], each drawn from its generator; the evaluation view alone if none is wanted or there
        is no other."""
        ...


@dataclass(frozen=True)
class ImageFiles:
    """Image files under a folder, by their paths relative to it.

    upright  turn images as their EXIF tags say
    """

    root: Path
    paths: tuple[str, ...]  # with "/", so that they are the same on every system
    upright: bool = False
    has_pixels: ClassVar[bool] = True
    augmented: ClassVar[bool] = True

    @classmethod
    def of(cls, root: Path, paths: Sequence[str]) -> ImageFiles:
        return cls(root, tuple(paths))

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Sequence[int]) -> ImageFiles:
        return replace(self, paths=tuple(self.paths[i] for i in indices))

    def name(self, index: int) -> str:
        return self.paths[index]

    def digest(self, index: int) -> str:
        """sha256 of the file's bytes and of how it is read, if not as usual: what its pixels depend on."""
        try:
            digest = hashlib.sha256((self.root / self.paths[index]).read_bytes())
        except OSError as error:
            raise UnreadableImageError(f"{self.paths[index]} ({error.strerror or error})") from error
        if self.upright:
            digest.update(b"upright")
        return digest.hexdigest()

    def check(self, backbone: Backbone) -> None:
        """Files suit every backbone: its preprocessing sees to that."""

    def open(self, index: int) -> Image.Image:
        """The decoded image, in RGB."""
        try:
            return decode(self.root / self.paths[index], upright=self.upright)
        except BadImageError as error:
            raise UnreadableImageError(f"{self.paths[index]} ({error})") from error

    def pixels(self, index: int, preprocessing: Preprocessing, views: Sequence[torch.Generator] = ()) -> Tensor:
        image = self.open(index)
        if not views:
            return preprocessing.evaluation()(image)[None]
        return torch.stack([preprocessing.training(view)(image) for view in views])


@dataclass(frozen=True, eq=False)
class ImageRows:
    """Pixels in memory, [n, 3, size, size], already normalised as the backbone wants them; no random views."""

    rows: Tensor
    has_pixels: ClassVar[bool] = True
    augmented: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> ImageRows:
        return ImageRows(self.rows[list(indices)])

    def name(self, index: int) -> str:
        return f"image {index}"

    def digest(self, index: int) -> str:
        return row_digest(self.rows[index])

    def check(self, backbone: Backbone) -> None:
        size = backbone.preprocessing.size
        if tuple(self.rows.shape[1:]) != (3, size, size):
            raise CalpromptError(
                f"the images are {list(self.rows.shape[1:])}, but backbone {backbone.name!r} takes [3, {size}, {size}]"
            )

    def pixels(self, index: int, preprocessing: Preprocessing, views: Sequence[torch.Generator] = ()) -> Tensor:
        return self.rows[index].float()[None]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Image features in memory, [n, D], of the backbone's own image tower; the images themselves are not known."""

    rows: Tensor
    has_pixels: ClassVar[bool] = False
    augmented: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> FeatureRows:
        return FeatureRows(self.rows[list(indices)])

    def name(self, index: int) -> str:
        return f"features {index}"

    def digest(self, index: int) -> str:
        return row_digest(self.rows[index])

    def check(self, backbone: Backbone) -> None:
        if self.rows.shape[1] != backbone.embed_dim:
            raise CalpromptError(
                f"the image features have {self.rows.shape[1]} dimensions, but backbone {backbone.name!r} has "
                f"{backbone.embed_dim}; were they made with another backbone?"
            )

    def pixels(self, index: int, preprocessing: Preprocessing, views: Sequence[torch.Generator] = ()) -> Tensor:
        raise CalpromptError("pixels are needed, and this dataset holds image features only")


def row_digest(row: Tensor) -> str:
    """sha256 of a tensor's dtype, shape and bytes."""
    digest = hashlib.sha256(f"{row.dtype} {tuple(row.shape)}".encode())
    digest.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
