"""Whether a worker sees the folder of whoever sent it; if not, results travel as bytes and are written there.

driver: <folder>/.shared-<token>  ──▶  worker: is it there?  ── yes ── results go into the folder
                                                             └─ no ─── files ──▶ driver writes them
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from calprompt.errors import CalpromptError

PREFIX = ".shared-"
PATIENCE = 3.0  # seconds in which a file of another machine has to show up; network file systems look now and then

_seen: dict[str, bool] = {}


@contextmanager
def shared_marker(folder: Path) -> Iterator[str]:
    """A file in a folder by which others tell whether they see the folder; gives its path, and removes it.

    Those that killed processes of this machine left are removed too.
    """
    folder = folder.resolve()
    for left in folder.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            host, process = left.read_text(encoding="utf-8").split()
            if host == socket.gethostname() and not _is_alive(int(process)):
                left.unlink()
    path = folder / f"{PREFIX}{secrets.token_hex(8)}"
    path.write_text(f"{socket.gethostname()} {os.getpid()}", encoding="utf-8")
    try:
        yield str(path)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def is_shared(marker: str) -> bool:
    """Whether this process sees the folder of a marker."""
    if marker not in _seen:
        end = time.monotonic() + PATIENCE
        while not (found := os.path.isfile(marker)) and time.monotonic() < end:
            time.sleep(0.1)
            with suppress(OSError):
                os.listdir(os.path.dirname(marker))  # some network file systems look again for that
        _seen.clear()
        _seen[marker] = found
    return _seen[marker]


def pack_folder(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their paths in it; half-written ones and locks are left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def unpack_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a folder in one step, in place of what was there."""
    folder, token = Path(os.path.realpath(folder)), secrets.token_hex(4)
    draft, old = (folder.with_name(f".{folder.name}.{token}.{end}") for end in ("tmp", "old"))
    try:
        for name, content in files.items():
            place = draft / name
            if not place.resolve().is_relative_to(draft.resolve()):
                raise CalpromptError(f"{name} is outside of its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            os.replace(folder, old)
        os.replace(draft, folder)
    finally:
        for rest in (draft, old):
            shutil.rmtree(rest, ignore_errors=True)
