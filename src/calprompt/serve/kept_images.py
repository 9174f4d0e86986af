"""Images whose true class feedback has told, kept to fit again: FOLDER/CLASS/SHA256-OF-PIXELS.SUFFIX."""

from __future__ import annotations

import errno
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calprompt.errors import CalpromptError
from calprompt.files import write_bytes
from calprompt.serve.feedback_store import NoRoomError
from calprompt.text import format_size, os_problem, slug

SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "PPM": "ppm", "TIFF": "tif"}


class KeptImages:
    """A folder of images, each in the one class that was told last."""

    def __init__(self, folder: str | Path, quota: int | None = None) -> None:
        self.folder, self._quota = Path(folder).expanduser(), quota
        self.claims: list[Callable[[str], bool]] = []  # each says of a digest whether feedback tells the class
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):  # a read-only disk is found now, not at the first image
                pass
            self._bytes = sum(each.stat().st_size for each in self.folder.glob("*/*") if each.is_file())
        except OSError as error:
            raise CalpromptError(f"images cannot be kept in {self.folder}: {os_problem(error)}") from error

    @contextmanager
    def keeping(self, digest: str, class_name: str, image: bytes, format: str | None) -> Iterator[None]:
        """Keep an image in its class, and nowhere else, unless what is done meanwhile fails."""
        path = self.folder / (slug(class_name) or "class") / f"{digest}.{SUFFIXES.get(format or '', 'img')}"
        with self._lock:
            others = set(self.folder.glob(f"*/{digest}.*"))
            self._write(path, image)
            try:
                yield
            except CalpromptError:
                if path not in others:
                    self._remove(path)
                raise
            for other in others - {path}:
                self._remove(other)

    def _write(self, path: Path, image: bytes) -> None:
        if self._quota is not None and self._bytes + len(image) > self._quota:
            raise NoRoomError(
                f"the folder for images is full ({format_size(self._quota)}); send the feedback without the image, or "
                "start the server with a larger --max-keep"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.stat().st_size if path.exists() else 0
            write_bytes(path, image)
            self._bytes += len(image) - before
        except OSError as error:
            with suppress(OSError):
                path.parent.rmdir()  # an empty one would be a class without images
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise (NoRoomError if full else CalpromptError)(f"the image cannot be kept: {os_problem(error)}") from error

    def release(self, digest: str) -> None:
        """Keep an image no longer, unless feedback, on whichever version, still tells its class."""
        with self._lock:
            if not any(claim(digest) for claim in self.claims):
                for path in self.folder.glob(f"*/{digest}.*"):
                    self._remove(path)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            self._bytes -= size
            path.parent.rmdir()  # if it was the last one
