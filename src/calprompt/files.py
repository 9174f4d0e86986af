"""Files that are either there in full or not at all, and a folder that one process at a time writes to."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError

try:
    import fcntl
except ImportError:  # Windows: atomic writes all the same, but nothing keeps a second process away
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_LEFTOVER = ".tmp"


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step: whoever reads it, even after a crash, sees the old bytes or the new ones."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_LEFTOVER}")  # another writer has its own
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


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
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalpromptError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CalpromptError(f"{path} is not JSON: {error}") from error


def clear_leftovers(folder: Path) -> None:
    """Remove what a process killed in the middle of a write left in a folder; call it holding the folder's lock."""
    for path in folder.glob(f".*{_LEFTOVER}"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; it is free again when the process ends, in whatever way."""
    path = folder / LOCK
    file = _lock(path)
    try:
        yield
    finally:
        if file >= 0:
            path.unlink(missing_ok=True)
            os.close(file)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the folder now."""
    if fcntl is None:
        return False
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)  # a colleague's folder can be read, not written
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _lock(path: Path) -> int:
    if fcntl is None:
        return -1
    patience = 5  # `is_locked` in another process holds the lock for an instant
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, 64).decode(errors="replace") or "of unknown number"
            os.close(file)
            if patience == 0:
                raise CalpromptError(
                    f"process {holder} is working in {path.parent}; wait until it ends, or use another folder"
                ) from error
            patience -= 1
            time.sleep(0.02)
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                os.ftruncate(file, 0)
                os.write(file, str(os.getpid()).encode())
                return file
        os.close(file)  # its holder removed it between our opening and locking it: that is not the lock any more


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system lets a folder be opened for that."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
