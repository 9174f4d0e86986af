"""Images by number, of three kinds: files on disk, rows of pixels, rows of features.

Each tells its names and digests, and gives what a tower or a tuner takes; none knows labels.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from calprompt.clip import Backbone, Preprocessing
from calprompt.data.decoding import BadImageError, decode, read
from calprompt.errors import CalpromptError


class UnreadableImageError(CalpromptError):
    """An image that cannot be read; `calprompt.data.features` collects them and reports all at once."""


class Picture(Protocol):
    """One image, read once: digest and pixels are of the same content, whatever becomes of its file meanwhile."""

    @property
    def held(self) -> int:
        """Bytes that it keeps in memory."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of all that its pixels depend on."""
        ...

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        """Pixels [3, size, size] of views, each drawn from its generator; of the evaluation view alone if none is
        wanted or there is no other."""
        ...


class Images(Protocol):
    """What the three kinds have in common."""

    has_pixels: ClassVar[bool]  # False: only features are known
    augmented: ClassVar[bool]  # False: there is no other view than the one for evaluation

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> Images:
        """These images only, in this order."""
        ...

    def name(self, index: int) -> str: ...

    def read(self, index: int) -> Picture: ...

    def digest(self, index: int) -> str:
        return self.read(index).digest

    def check(self, backbone: Backbone) -> None:
        """Raise if these images do not suit the backbone."""
        ...

    def pixels(self, index: int, preprocessing: Preprocessing) -> Tensor:
        """[3, size, size] of the evaluation view."""
        return self.read(index).views(preprocessing)[0]


@dataclass(frozen=True)
class ImageFiles(Images):
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

    def read(self, index: int) -> Picture:
        try:
            return FileContent(self.paths[index], read(os.path.join(self.root, self.paths[index])), self.upright)
        except BadImageError as error:
            raise UnreadableImageError(f"{self.paths[index]} ({error})") from error

    def check(self, backbone: Backbone) -> None:
        """Files suit every backbone: its preprocessing sees to that."""


class Digested(ABC):
    """What computes its digest once; several threads may do that at the same time."""

    _known = ""

    @property
    def digest(self) -> str:
        self._known = self._known or self._sha256()
        return self._known

    @abstractmethod
    def _sha256(self) -> str: ...


@dataclass(eq=False)
class FileContent(Digested):
    """The bytes of an image file."""

    name: str
    data: bytes
    upright: bool

    @property
    def held(self) -> int:
        return len(self.data)

    def _sha256(self) -> str:
        """Of the file's bytes and of how it is read, if not as usual."""
        return hashlib.sha256(self.data + b"upright" if self.upright else self.data).hexdigest()

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        try:
            image = decode(self.data, upright=self.upright)
        except BadImageError as error:
            raise UnreadableImageError(f"{self.name} ({error})") from error
        if not drawn:
            return [preprocessing.evaluation()(image)]
        return [preprocessing.training(generator)(image) for generator in drawn]


@dataclass(frozen=True, eq=False)
class ImageRows(Images):
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

    def read(self, index: int) -> Picture:
        return Row(self.rows[index])

    def check(self, backbone: Backbone) -> None:
        size = backbone.preprocessing.size
        if tuple(self.rows.shape[1:]) != (3, size, size):
            raise CalpromptError(
                f"the images are {list(self.rows.shape[1:])}, but backbone {backbone.name!r} takes [3, {size}, {size}]"
            )


@dataclass(frozen=True, eq=False)
class FeatureRows(Images):
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

    def read(self, index: int) -> Picture:
        return FeatureRow(self.rows[index])

    def check(self, backbone: Backbone) -> None:
        if self.rows.shape[1] != backbone.embed_dim:
            raise CalpromptError(
                f"the image features have {self.rows.shape[1]} dimensions, but backbone {backbone.name!r} has "
                f"{backbone.embed_dim}; were they made with another backbone?"
            )


@dataclass(eq=False)
class Row(Digested):
    """A tensor of those in memory."""

    row: Tensor
    held: ClassVar[int] = 0  # no more than all of them do

    def _sha256(self) -> str:
        """Of its dtype, shape and bytes."""
        digest = hashlib.sha256(f"{self.row.dtype} {tuple(self.row.shape)}".encode())
        digest.update(self.row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        return [self.row.float()]


class FeatureRow(Row):
    """A tensor of features, of which there are no pixels."""

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        raise CalpromptError("pixels are needed, and this dataset holds image features only")
