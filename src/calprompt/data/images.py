"""Images by number: files on disk, images as users have them, rows of pixels, features; and a cache of file contents.

A run looks at its images several times: to digest them, to compute features, to train on pixels. What was read is kept
up to a budget and given again while the file stays as it is on disk; a larger dataset is read again instead.

Each knows its names and digests and returns pixels or features; none knows labels. torch is imported only
where pixels or features are asked for.
"""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from PIL import ImageOps

from calprompt.data.decoding import as_rgb, check_start, decode, from_array, is_array, is_pillow, read, read_with_stat
from calprompt.errors import DataError, ImageError, SettingError
from calprompt.files import file_signature, signature

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from calprompt.clip.backbone import Backbone
    from calprompt.clip.identity import BackboneIdentity
    from calprompt.clip.preprocessing import Preprocessing

BUDGET = 512 << 20  # bytes

Signature = tuple[int, int, int, int]


class ImageMemory:
    """A bounded store of file contents; several threads may use it.

    Args:
        budget: Bytes that it keeps at most; the files used longest ago go first.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.size = 0
        self._kept: OrderedDict[str, tuple[Signature, bytes]] = OrderedDict()
        self._digests: dict[tuple[str, bool], tuple[Signature, str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, path: str) -> bytes:
        """The contents of a file, from memory if it has not changed; raises `ImageError` if it cannot be read."""
        return self._read(path)[0]

    def digest(self, path: str, upright: bool, compute: Callable[[bytes], str]) -> str:
        """The digest of a file, computed if it is not known or the file has changed."""
        known = self._digests.get((path, upright))
        if known is not None and known[0] == file_signature(path):
            return known[1]
        data, signature = self._read(path)
        digest = compute(data)
        if signature is not None:
            self._digests[path, upright] = (signature, digest)
        return digest

    def _read(self, path: str) -> tuple[bytes, Signature | None]:
        """The contents of a file, and its signature; None if it changed while it was read."""
        kept = self._kept.get(path)
        if kept is not None and kept[0] == file_signature(path):
            with self._lock:
                if path in self._kept:
                    self._kept.move_to_end(path)
            return kept[1], kept[0]
        data, found = read_with_stat(path)
        read = signature(found)
        if read != file_signature(path):
            return data, None
        self._keep(path, read, data)
        return data, read

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._digests.clear()
            self.size = 0

    def _keep(self, path: str, signature: Signature, data: bytes) -> None:
        with self._lock:
            replaced = self._kept.pop(path, None)
            self.size += len(data) - (0 if replaced is None else len(replaced[1]))
            self._kept[path] = (signature, data)
            while self.size > self.budget:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.size -= len(dropped)


class Picture(ABC):
    """One image, read once: digest and pixels are of the same content, whatever becomes of its file meanwhile."""

    nbytes = 0  # held in memory
    _known = ""

    @property
    def digest(self) -> str:
        """sha256 of everything its pixels depend on, computed once; thread-safe."""
        self._known = self._known or self._sha256()
        return self._known

    @abstractmethod
    def _sha256(self) -> str: ...

    def check(self) -> None:  # noqa: B027 (many have nothing to check)
        """Raise `ImageError` if the first bytes show that it is not an image of a supported format."""

    @abstractmethod
    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        """Levels of views, for `preprocessing.normalise`: each drawn from its generator, or the evaluation view alone
        if none is wanted or there is no other."""


class Images(ABC):
    """Images by number, of any kind."""

    has_pixels: ClassVar[bool] = True  # False: only features are known
    augmented: ClassVar[bool] = True  # False: there is no other view than the one for evaluation

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: Sequence[int]) -> Images:
        """These images only, in this order."""

    @abstractmethod
    def name(self, index: int) -> str: ...

    @abstractmethod
    def read(self, index: int) -> Picture: ...

    def digest(self, index: int) -> str:
        return self.read(index).digest

    def check(self, backbone: Backbone | BackboneIdentity) -> None:  # noqa: B027 (as above)
        """Raise if these images do not suit the backbone; files always do."""


@dataclass(frozen=True)
class ImageFiles(Images):
    """Image files under a folder, by their paths relative to it.

    Attributes:
        root: The folder.
        paths: With "/", so that they are the same on every system.
        upright: Turn images as their EXIF tags say.
        memory: Keeps the bytes of files that are read, so that they are opened once; `None`: keeps nothing.
    """

    root: Path
    paths: tuple[str, ...]
    upright: bool = False
    memory: ImageMemory | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Sequence[int]) -> ImageFiles:
        return replace(self, paths=tuple(self.paths[i] for i in indices))

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> Picture:
        path = os.path.join(self.root, self.paths[index])
        with named(self.paths[index]):
            data = read(path) if self.memory is None else self.memory.read(path)
        return FileContent(self.paths[index], data, self.upright)

    def digest(self, index: int) -> str:
        """sha256 of the file's bytes; of one that has not changed since, as it was computed before."""
        name = self.paths[index]
        if self.memory is None:
            return checked_digest(self.read(index))
        with named(name):
            path = os.path.join(self.root, name)
            return self.memory.digest(
                path, self.upright, lambda data: checked_digest(FileContent(name, data, self.upright))
            )


def checked_digest(picture: Picture) -> str:
    """The digest of an image, after a look at its first bytes."""
    picture.check()
    return picture.digest


class Decodable(Picture):
    """An image that is decoded when its pixels are asked for."""

    name: str

    @abstractmethod
    def decode(self) -> Image.Image:
        """The picture, in RGB."""

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        image = self.decode()
        if not drawn:
            return [preprocessing.evaluation().pixels(image)]
        return [preprocessing.training(generator).pixels(image) for generator in drawn]


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors on an image get its name."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.reason, name) from error


@dataclass(eq=False)
class FileContent(Decodable):
    """The bytes of an image file."""

    name: str
    data: bytes
    upright: bool

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return len(self.data)

    def _sha256(self) -> str:
        """Digest of the file's bytes and of how it is read, if not as usual."""
        return hashlib.sha256(self.data + b"upright" if self.upright else self.data).hexdigest()

    def check(self) -> None:
        with named(self.name):
            check_start(self.data)

    def decode(self) -> Image.Image:
        with named(self.name):
            return decode(self.data, upright=self.upright)


@dataclass(eq=False)
class PillowPicture(Decodable):
    """A picture that is decoded already."""

    name: str
    image: Image.Image

    def _sha256(self) -> str:
        """Digest of its mode, size and pixels."""
        return hashlib.sha256(f"{self.image.mode} {self.image.size}".encode() + self.image.tobytes()).hexdigest()

    def decode(self) -> Image.Image:
        with named(self.name):
            return as_rgb(self.image)


@dataclass(frozen=True, eq=False)
class GivenImages(Images):
    """Images given by a user: paths, bytes, PIL images or arrays.

    Attributes:
        items: The images.
        names: A path, or "image 3" for the fourth that has none.
        upright: Turn images as their EXIF data say.
    """

    items: tuple[Any, ...]
    names: tuple[str, ...] = ()
    upright: bool = False

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
        with named(self.names[index]):
            return open_image(self.items[index], index, upright=self.upright, name=self.names[index])


def open_image(image: Any, number: int, *, upright: bool = False, name: str | None = None) -> Picture:
    """One image of any kind, read but not decoded."""
    name = name or f"image {number}"
    if isinstance(image, FileContent):
        return FileContent(image.name, image.data, upright)
    if isinstance(image, PillowPicture):
        return image
    if isinstance(image, ImageError):  # of a stream
        raise image
    if isinstance(image, str | Path):
        with named(str(image)):
            return FileContent(str(image), read(os.fspath(Path(image).expanduser())), upright)
    if isinstance(image, bytes | bytearray | memoryview):
        return FileContent(name, bytes(image), upright)
    if is_pillow(image):
        return PillowPicture(name, ImageOps.exif_transpose(image) if upright else image)
    if is_array(image):
        with named(name):
            pixels = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
            return PillowPicture(name, from_array(pixels))
    raise SettingError(f"must be a path, bytes, a PIL image or an array; got {type(image).__name__}", parameter=name)


@dataclass(frozen=True, eq=False)
class TensorRows(Images):
    """Images as rows of a tensor, without random views.

    Attributes:
        rows: The tensor, an image a row.
    """

    rows: Tensor
    augmented: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Sequence[int]) -> Self:
        return replace(self, rows=self.rows[list(indices)])

    def name(self, index: int) -> str:
        return f"{'image' if self.has_pixels else 'features'} {index}"

    def read(self, index: int) -> Picture:
        return TensorRow(self.rows[index], self.has_pixels)


@dataclass(frozen=True, eq=False)
class ImageRows(TensorRows):
    """Pixels in memory, [n, 3, size, size], already normalised as the backbone wants them."""

    def __post_init__(self) -> None:
        if not self.rows.is_floating_point() or self.rows.ndim != 4:
            raise DataError(
                "images in memory must be normalised pixels [n, 3, height, width] in floating point, as "
                "backbone.preprocessing.evaluation() makes of a PIL image; got "
                f"{self.rows.dtype} {list(self.rows.shape)}"
            )

    def check(self, backbone: Backbone | BackboneIdentity) -> None:
        size = backbone.preprocessing.size
        if tuple(self.rows.shape[1:]) != (3, size, size):
            raise DataError(
                f"the images are {list(self.rows.shape[1:])}, but backbone {backbone.name!r} takes [3, {size}, {size}]"
            )


class FeatureRows(TensorRows):
    """Image features in memory, [n, D], of the backbone's own image tower; the images themselves are not known."""

    has_pixels: ClassVar[bool] = False

    def check(self, backbone: Backbone | BackboneIdentity) -> None:
        if self.rows.shape[1] != backbone.embed_dim:
            raise DataError(
                f"the image features have {self.rows.shape[1]} dimensions, but backbone {backbone.name!r} has "
                f"{backbone.embed_dim}; were they made with another backbone?"
            )


@dataclass(eq=False)
class TensorRow(Picture):
    """A tensor of those in memory."""

    row: Tensor
    has_pixels: bool

    def _sha256(self) -> str:
        """Digest of its dtype, shape and bytes."""
        import torch

        digest = hashlib.sha256(f"{self.row.dtype} {tuple(self.row.shape)}".encode())
        digest.update(self.row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def views(self, preprocessing: Preprocessing, drawn: Sequence[torch.Generator] = ()) -> list[Tensor]:
        if not self.has_pixels:
            raise DataError("pixels are needed, and this dataset holds image features only")
        return [self.row.float()]
