"""From an image file to RGB pixels, or to the reason why it cannot be read.

RGBA, palette, grey, CMYK  ->  RGB as Pillow converts them: transparency is dropped, as prompt-tuning code does
16 bits                    ->  the upper 8
animated                   ->  the first frame
turned by its EXIF tag     ->  left lying, as prompt-tuning code does; `upright` turns it

Decoders are selected by content, never by suffix, and only raster formats are tried: nothing that runs a program. This
file is copied into the script of every exported folder (`calprompt.export.exporter`): it needs numpy and Pillow alone.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from calprompt.errors import ImageError, SettingError

COMMON = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # what every installation reads
OPTIONAL_DECODERS = {
    ".avif": "Pillow 11.3 or newer",
    ".heic": "pip install pillow-heif",
    ".heif": "pip install pillow-heif",
}


def _more_formats() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Formats with their suffixes that only some installations have a decoder for."""
    if features.check("avif"):
        yield "AVIF", (".avif",)
    try:
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return
    pillow_heif.register_heif_opener()
    yield "HEIF", (".heic", ".heif")


_MORE = dict(_more_formats())
FORMATS = (*COMMON, *_MORE)
# fmt: off
SUFFIXES = (
    ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
    *(suffix for suffixes in _MORE.values() for suffix in suffixes),
)
# fmt: on
CHANNELS = (1, 3, 4)  # of an array that is one image
LARGEST_RATIO = 200  # times the short side: beyond it, resizing the short side makes a picture too large to hold

# Pillow warns of a decompression bomb at 89 million pixels and refuses at twice that: large photographs are wanted,
# bombs are not, so the refusal is kept and the warning is not
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"BM", b"II*\x00", b"MM\x00*")
_SIGNATURES = (
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file with 'git lfs pull'"),
    (b"%PDF", "a PDF document"),
    (b"%!PS", "a PostScript file"),
    (b"8BPS", "a Photoshop file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"Rar!", "an archive"),
    (b"7z\xbc\xaf", "an archive"),
    (b"\x1f\x8b", "gzip-compressed; unpack it"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x1aE\xdf\xa3", "a video"),
    (b"\xff\xd8", "damaged: the beginning of a JPEG file, and no picture"),
    (b"\x89PNG", "damaged: the beginning of a PNG file, and no picture"),
    (b"GIF8", "damaged: the beginning of a GIF file, and no picture"),
    (b"II*\x00", "damaged: the beginning of a TIFF file, and no picture"),
    (b"MM\x00*", "damaged: the beginning of a TIFF file, and no picture"),
)
_MARKUP = ((b"<svg", "an SVG drawing"), (b"<html", "an HTML page, as a failed download leaves"), (b"<?xml", "XML"))


def count_left_out(names: Iterable[str]) -> str:
    """How many files do not have the suffix of an image, and what would read those in optional formats.

    >>> count_left_out(["a.txt", "b.txt", "LICENSE"])
    '3 files that cannot be read as images (2 .txt, 1 without a suffix)'
    """
    counts = Counter(os.path.splitext(name)[1].lower() for name in names)
    kinds = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts.most_common(5))
    more = sum(counts.values()) - sum(count for _, count in counts.most_common(5))
    advice = "".join(
        f"; {suffix} needs {OPTIONAL_DECODERS[suffix]}" for suffix in counts if suffix in OPTIONAL_DECODERS
    )
    number = sum(counts.values())
    files = "1 file that cannot be read as an image" if number == 1 else f"{number} files that cannot be read as images"
    return f"{files} ({kinds}{f', {more} others' if more else ''}){advice}"


def iterate_images(images: Any) -> tuple[Iterable[Any], int | None]:
    """An iterable of one image or many, and their number, if known."""
    if isinstance(images, str | bytes | bytearray | memoryview | Path) or is_pillow(images):
        return [images], 1
    if is_array(images):
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


def is_pillow(image: Any) -> bool:
    """Whether it is a picture of Pillow's, or behaves like one."""
    return hasattr(image, "convert") and hasattr(image, "getbands")


def is_array(image: Any) -> bool:
    """Whether it is an array of numpy's or of another library."""
    return hasattr(image, "ndim") and hasattr(image, "shape") and hasattr(image, "dtype")


def read(path: str | Path) -> bytes:
    """The contents of a file."""
    return read_with_stat(path)[0]


def read_with_stat(path: str | Path) -> tuple[bytes, os.stat_result]:
    """The contents of a file, and its status before it was read."""
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise ImageError("a folder, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise ImageError("not an ordinary file")
        if found.st_size == 0:
            raise ImageError("an empty file")
        with open(path, "rb", buffering=0) as file:
            return file.read(), found
    except OSError as error:
        dangling = os.path.islink(path) and isinstance(error, FileNotFoundError)
        reason = "a link to a file that is not there" if dangling else error.strerror or str(error)
        raise ImageError(reason) from error


def decode(data: bytes, *, upright: bool = False, prepare: Callable[[Image.Image], None] | None = None) -> Image.Image:
    """The picture in a file's bytes, in RGB; `upright` turns it as its EXIF tag says.

    `prepare` gets the opened file before any pixel is decoded, to refuse it or to ask for a smaller picture.
    """
    with _opened(io.BytesIO(data)) as image:
        if prepare is not None:
            prepare(image)
        image.load()
        return as_rgb(ImageOps.exif_transpose(image) if upright else image)


def check_start(data: bytes) -> None:
    """Raise if the first bytes show that a file is not an image, or is in a format that is not supported."""
    if not data[:8].startswith(_STARTS):
        with _opened(io.BytesIO(data)):
            pass


@contextmanager
def _opened(file: BinaryIO) -> Iterator[Image.Image]:
    """The file as Pillow opens it; whatever goes wrong, here or with it, is an `ImageError`."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            check_shape(image)
            yield image
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(_what_it_is(file)) from error
    except Image.DecompressionBombError as error:
        limit = round(2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6)
        raise ImageError(f"more than {limit} million pixels; make it smaller") from error
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        reason = str(error).splitlines()
        raise ImageError(f"damaged: {reason[0] if reason else type(error).__name__}") from error


def from_array(array: np.ndarray) -> Image.Image:
    """A picture from 8-bit pixels [height, width] or [height, width, 1, 3 or 4 channels]."""
    if array.dtype.name != "uint8":
        raise ImageError(
            f"an array of {array.dtype.name}; expected uint8 pixels from 0 to 255 (for floats in [0, 1]: "
            "(255 * x).round().astype('uint8'))"
        )
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or 0 in array.shape:
        raise ImageError(f"an array of shape {list(array.shape)}; expected [height, width] or [height, width, 3]")
    return Image.fromarray(array)


def check_shape(image: Image.Image) -> None:
    """Raise for an image so long and thin that resizing its short side makes it too large to hold."""
    width, height = image.size
    if min(width, height) < 1 or max(width, height) > LARGEST_RATIO * min(width, height):
        raise ImageError(f"{width} by {height} pixels; one side may be {LARGEST_RATIO} times the other at most")


def as_rgb(image: Image.Image) -> Image.Image:
    """A decoded picture in RGB, if its shape and colours allow that."""
    check_shape(image)
    if image.mode.startswith("I"):
        pixels = np.asarray(image).astype(np.int64)
        if pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ImageError("more than 16 bits a pixel; save it with 8")
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ImageError("floating-point pixels; save it with 8 bits")
    try:
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise ImageError(f"its colours ({image.mode}) cannot be converted to RGB") from error


def _what_it_is(file: BinaryIO) -> str:
    """The likely kind of a file that no decoder recognises."""
    file.seek(0)
    start = file.read(512)
    for signature, what in _SIGNATURES:
        if start.startswith(signature):
            return what
    if start[4:8] == b"ftyp":
        suffix = {b"avif": ".avif", b"avis": ".avif"}.get(start[8:12], ".heic")
        still = start[8:12] in (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis")
        return (
            f"{suffix[1:].upper()}, which needs a decoder: {OPTIONAL_DECODERS[suffix]}; or save it as JPEG"
            if still
            else "a video"
        )
    if start[:4] == b"RIFF":
        return "a video" if start[8:12] == b"AVI " else "damaged: the beginning of a WebP file, and no picture"
    lower = start.lower().lstrip(b"\xef\xbb\xbf \t\r\n")
    if lower.startswith(b"<"):
        return next((what for mark, what in _MARKUP if mark in lower), "markup, not an image")
    if not any(start):
        return "nothing but zeros"
    text = start.decode("utf-8", errors="ignore").encode()
    if all(byte in b"\t\r\n" or byte >= 0x20 for byte in start) and text[: len(start) - 3] == start[: len(start) - 3]:
        return "text, not an image"
    return f"no image in any format that is read ({', '.join(FORMATS)})"
