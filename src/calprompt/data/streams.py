"""Images that come one after another: from zip and tar files, from videos, and as they arrive in a folder.

Nothing is unpacked to disk: a member of an archive is read into memory, up to a limit, and its path is only a name. So
a path that leads out of the archive leads nowhere, and a member that claims to be larger than it is is cut off.
"""

from __future__ import annotations

import lzma
import os
import signal
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

from calprompt.data.decoding import SUFFIXES
from calprompt.data.images import FileContent, PillowPicture
from calprompt.errors import DataError, ImageError

ZIPS = (".zip",)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
LARGEST_MEMBER = 256 << 20  # bytes of a member that is read
_DAMAGE = (  # what reading a damaged archive raises
    *(OSError, EOFError, RuntimeError, ValueError),
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
)
POLL_SECONDS = 1.0  # seconds between two looks at a folder


Streamed = FileContent | PillowPicture | ImageError  # the last for an image that cannot be read


@dataclass(frozen=True)
class NamedImages:
    """Images that come one after another, whose names are known before they are read."""

    images: Iterable[Any]  # paths and streamed images, to be read once
    names: Sequence[str]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.images)

    def __len__(self) -> int:
        return len(self.names)


def is_stream(path: str | Path) -> bool:
    """Whether a file holds several images: an archive or a video, by its suffix."""
    return str(path).lower().endswith((*ZIPS, *TARS, *VIDEOS))


def streamed_images(path: str | Path, *, seconds: float = 1.0) -> Iterator[Streamed]:
    """The images in an archive, or frames of a video."""
    return _frames(Path(path), seconds) if str(path).lower().endswith(VIDEOS) else _archived(Path(path))


def names_in(path: str) -> list[str] | None:
    """Names of the images in a zip file; None for other streams, which would have to be read for that."""
    if not path.lower().endswith(ZIPS):
        return None
    try:
        return [_name(Path(path), inside) for inside, *_ in _members(Path(path)) if _is_image(inside)]
    except (OSError, zipfile.BadZipFile):  # reading it says why
        return None


def _archived(path: Path) -> Iterator[Streamed]:
    """The images of an archive; one that is damaged ends with an error that says so."""
    count = 0
    try:
        for inside, size, encrypted, opened in _members(path):
            if not _is_image(inside):
                continue
            name, data = _name(path, inside), b""
            if not encrypted and size <= LARGEST_MEMBER:
                with opened() as file:
                    data = file.read(LARGEST_MEMBER + 1)
            count += 1
            if encrypted:
                yield ImageError("encrypted; unpack the archive with its password", name)
            elif max(size, len(data)) > LARGEST_MEMBER:
                yield ImageError(f"more than {LARGEST_MEMBER >> 20} MB; unpack the archive", name)
            else:
                yield FileContent(name, data, False)
    except _DAMAGE as error:
        yield ImageError(f"damaged after {count} images: {str(error) or type(error).__name__}", str(path))


def _members(path: Path) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    """Name, size, whether it is encrypted and what opens it, of every file in an archive."""
    if path.name.lower().endswith(ZIPS):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, info.file_size, bool(info.flag_bits & 1), partial(archive.open, info)
        return
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            if member.isreg():
                yield member.name, member.size, False, partial(tar.extractfile, member)


def _is_image(name: str) -> bool:
    last = PurePosixPath(name.replace("\\", "/")).name
    return last.lower().endswith(SUFFIXES) and not last.startswith(".")


def _name(path: Path, inside: str) -> str:
    """The name of a member: the archive and the path in it, without parts that lead out of it."""
    parts = [part for part in inside.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join([str(path), *parts])


def require_video_decoder(advice: str = "") -> None:
    """Raise a `DataError` if no video decoder is installed."""
    if find_spec("av") is None:
        raise DataError(f"decoding videos needs PyAV: pip install 'calprompt[video]'{advice}")


def _frames(path: Path, seconds: float) -> Iterator[Streamed]:
    import av

    due = 0.0
    try:
        with av.open(str(path)) as video:
            if not video.streams.video:
                yield ImageError("it has no pictures", str(path))
                return
            for number, frame in enumerate(video.decode(video=0)):
                at = float(frame.time) if frame.time is not None else float(number)
                if at >= due:
                    due = max(due, at) + seconds
                    yield PillowPicture(f"{path}@{at:.2f}s", frame.to_image())
    except (OSError, ValueError) as error:  # PyAV's own errors are both
        yield ImageError(f"damaged after {due:.0f} seconds: {error}", str(path))


def arrivals(
    folders: Sequence[str],
    stop: threading.Event,
    *,
    done: set[str],
    failed: Mapping[str, str],
    leave_out: str | None = None,
) -> Iterator[list[str]]:
    """Image files of folders as they arrive, those that are there first; ends when `stop` is set.

    A file is taken when its size and time have not changed between two looks, a second apart. One that could not be
    read is taken again if it changes after that.
    """
    taken: dict[str, tuple[int, int]] = {}
    before: dict[str, tuple[int, int]] = {}
    while not stop.is_set():
        now = dict(_there(folders, leave_out))
        ready = []
        for path, signature in now.items():
            again = path in taken and path in failed and taken[path] != signature
            if path not in done and (path not in taken or again) and before.get(path) == signature and signature[0]:
                ready.append(path)
                taken[path] = signature
        taken = {path: signature for path, signature in taken.items() if path in now}
        before = now
        if ready:
            yield ready
        stop.wait(POLL_SECONDS)


def _there(folders: Sequence[str], leave_out: str | None) -> Iterator[tuple[str, tuple[int, int]]]:
    """Image files with their size and time."""
    avoided = None if leave_out is None else os.path.realpath(leave_out)
    for root in folders:
        for folder, inside, names in os.walk(root):
            inside[:] = sorted(n for n in inside if os.path.realpath(os.path.join(folder, n)) != avoided)
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                    try:
                        found = os.stat(path)
                    except OSError:  # removed since
                        continue
                    yield path, (found.st_size, found.st_mtime_ns)


@contextmanager
def stop_on_interrupt(wanted: bool = True) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that work in progress is finished; a second one interrupts at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)
