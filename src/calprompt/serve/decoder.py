"""A process that decodes images for the server, with limits of its own: python -m calprompt.serve.decoder SETTINGS

    standard input    length (8 bytes), image file
    standard output   length (4 bytes), JSON: width, height and format, or the reason why it cannot be read;
                      length (4 bytes), 8-bit pixels [size, size, 3]

An image that needs more memory than the process may have is refused; whatever else it does to a decoder, it does to
this process and not to the server. The process ends when its input ends, or when an image takes far too long. Neither
torch nor a model is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from PIL import Image

from calprompt.data.decoding import decode
from calprompt.errors import ImageError
from calprompt.kernel import resize_and_crop

FULL_PIXELS = 16_000_000  # JPEGs with more are decoded at 1/2, 1/4 or 1/8 of their size
OVERSAMPLING = 4  # the picture that is resized has at least so many times the pixels a side that the model sees
WHOLE_SHARE = 0.5  # of the pixels of the largest JPEG that images of other formats may have: they are decoded whole
LARGE_FILE = 2**20  # bytes
TOO_MUCH_MEMORY = "it takes more memory to decode than is allowed; make it smaller"


@dataclass(frozen=True)
class DecoderSettings:
    """What becomes of an image, and what it may cost.

    Attributes:
        size: Pixels along a side of the result.
        interpolation: "bicubic" or "bilinear".
        mode: "shortest" or "squash", see `calprompt.kernel`.
        upright: Turn images as their EXIF data say.
        formats: That are read.
        pixels: Of the largest JPEG; other formats may have half as many.
        memory: Bytes of address space that the process may take; None: as many as there are.
        seconds: After which the process ends itself if it still works on an image; None: never.
    """

    size: int
    interpolation: str
    mode: str
    upright: bool
    formats: tuple[str, ...]
    pixels: int
    memory: int | None = None
    seconds: float | None = None

    def to_json(self) -> str:
        """As the process takes it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DecoderSettings:
        """From what `to_json` gave."""
        values = json.loads(text)
        return cls(**{**values, "formats": tuple(values["formats"])})


def decode_image(data: bytes, settings: DecoderSettings) -> tuple[dict[str, Any], bytes]:
    """Width, height and format of an image, or the reason why it cannot be read, and its pixels."""
    facts: dict[str, Any] = {}
    try:
        if not data:
            raise ImageError("an empty file")
        image = decode(data, upright=settings.upright, prepare=lambda opened: facts.update(_prepare(opened, settings)))
        view = resize_and_crop(image, settings.size, settings.interpolation, settings.mode)
        return facts, view.tobytes()
    except ImageError as error:
        if isinstance(error.__cause__, MemoryError):
            return {"reason": TOO_MUCH_MEMORY}, b""
        return {"reason": error.reason}, b""
    except MemoryError:
        return {"reason": TOO_MUCH_MEMORY}, b""


def _prepare(image: Image.Image, settings: DecoderSettings) -> dict[str, Any]:
    """What the header of the file says; raises for more pixels than are allowed, before any is decoded."""
    kind = "JPEG" if image.format == "MPO" else str(image.format)  # two JPEGs in one file, as some cameras write
    width, height = image.size
    if kind not in settings.formats:
        raise ImageError(f"{kind}, which is not read here; send {' or '.join(settings.formats)}")
    most = settings.pixels if kind == "JPEG" else int(settings.pixels * WHOLE_SHARE)
    if width * height > most:
        raise ImageError(f"{width} by {height} pixels, and the limit for {kind} is {most / 1e6:g} million pixels")
    if kind == "JPEG" and width * height > FULL_PIXELS:
        image.draft(None, (OVERSAMPLING * settings.size, OVERSAMPLING * settings.size))
    return {"width": width, "height": height, "format": kind}


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode what comes on standard input until it ends."""
    settings = DecoderSettings.from_json((sys.argv[1:] if arguments is None else arguments)[0])
    Image.MAX_IMAGE_PIXELS = None  # the settings have a limit of their own
    warnings.simplefilter("ignore")  # odd images would fill the server's log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the input
    if settings.memory is not None:
        _limit_memory(settings.memory)
    source, target = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    while (head := source.read(8)) and len(head) == 8:
        (length,) = struct.unpack("!Q", head)
        data = source.read(length)
        if len(data) < length:
            break
        _set_alarm(settings.seconds or 0)
        found = decode_image(data, settings)
        _set_alarm(0)
        _write(target, *found)
        del data, found
        if length > LARGE_FILE:
            release_memory()
    return 0


def _write(target: BinaryIO, facts: dict[str, Any], levels: bytes) -> None:
    text = json.dumps(facts).encode()
    target.write(struct.pack("!I", len(text)) + text + struct.pack("!I", len(levels)) + levels)
    target.flush()


def release_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it for later (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _set_alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(most: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
