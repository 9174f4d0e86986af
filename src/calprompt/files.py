"""Files that are either there in full or not at all, and a folder that one process at a time writes to."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from calprompt.errors import BusyError, CalpromptError, DamagedFileError, NotFoundError
from calprompt.text import parse_problem

LOCK = ".lock"
_LEFTOVER = ".tmp"
_PATIENCE = 0.2  # seconds: somebody may only be looking whether the folder is locked


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces another in one step, a piece at a time.

    Whoever reads `path`, even after a crash, sees the old bytes or all of the new ones.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_LEFTOVER}")  # another writer has its own
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        if error.filename not in (None, str(temporary), temporary):
            raise  # of another file, which was read meanwhile
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error  # not the temporary name
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step: whoever reads it, even after a crash, sees the old bytes or the new ones."""
    with replacing(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """A JSON file that people can read; NaN and infinity, which JSON does not have, are refused."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def canonical_json(value: Any) -> bytes:
    """The same bytes for equal values: keys sorted, no blanks. What digests are taken of.

    >>> canonical_json({"b": 1.0, "a": [True, None]})
    b'{"a":[true,null],"b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror or error}") from error
    except OSError as error:
        raise CalpromptError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON: {parse_problem(error)}") from error


def file_digest(path: Path) -> str:
    """sha256 of a file, read a piece at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def clear_leftovers(folder: Path) -> None:
    """Remove what a process killed in the middle of a write left in a folder; call it holding the folder's lock."""
    for path in folder.glob(f".*{_LEFTOVER}"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; it is free again when the process ends, in whatever way.

    Raises:
        BusyError: if another process, or another part of this one, holds it.
    """
    from filelock import FileLock, Timeout

    path = folder / LOCK
    lock = FileLock(path, timeout=_PATIENCE, poll_interval=0.02, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"process {_holder(path)} is working in {folder}; wait until it ends, or use another folder"
        ) from error
    try:
        with suppress(OSError):
            path.write_text(str(os.getpid()))  # for the message above
        yield
    finally:
        with suppress(OSError):  # Windows does not remove a file that is open
            path.unlink(missing_ok=True)
        lock.release()


def clear_stale_lock(folder: Path) -> None:
    """Remove the lock file that a killed process left in a folder, if nobody holds it."""
    if (folder / LOCK).exists():
        with suppress(BusyError, OSError), locked(folder):
            pass


def is_locked(folder: Path) -> bool:
    """Whether some process holds the folder now."""
    from filelock import FileLock, Timeout

    path = folder / LOCK
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:  # a colleague's folder, which can be read but not written: ask whether the process is there
        return _is_alive(_holder(path))
    lock.release()
    return False


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "of unknown number"
    except OSError:
        return "of unknown number"


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:  # another user's
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system lets a folder be opened for that."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
