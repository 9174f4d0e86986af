"""Files that are either there in full or not at all, a folder that one process at a time writes to, and what a folder
holds: a fitted model, an exported one, a run, or data; told by the file that each of them has.

What calprompt can make again is kept in the folder that CALPROMPT_CACHE names, or else in ~/.cache/calprompt:

    <cache>/features/     the feature store
            pocket/       pictures of the embedded datasets
            backbones/    fingerprints of weights files that were loaded before
            fits/         fits of a classifier that were interrupted, to be continued
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from calprompt.errors import BusyError, CalpromptError, DamagedFileError, NotFoundError, SettingError
from calprompt.text import parse_problem, shorten

LOCK = ".lock"
LONGEST_NAME = 255  # bytes, in nearly all file systems
_LEFTOVER = ".tmp"
_PATIENCE = 0.2  # seconds: somebody may only be looking whether the folder is locked


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces another in one step, a piece at a time.

    Whoever reads `path`, even after a crash, sees the old bytes or all of the new ones. A symbolic link stays, and the
    file it points to is replaced. A device, a pipe or standard output cannot be replaced: it gets the bytes as they
    come.
    """
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there is not None and not stat.S_ISDIR(there.st_mode):
        standard = _standard_stream(there)
        if standard is not None or not stat.S_ISREG(there.st_mode):
            with _named(path), open(path if standard is None else os.dup(standard), "wb") as file:
                yield file
            return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_LEFTOVER}")  # another writer has its own
    try:
        with _named(path, temporary, target):
            with open(temporary, "wb") as file:
                if there is not None:
                    with suppress(OSError):
                        os.chmod(temporary, stat.S_IMODE(there.st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


@contextmanager
def _named(path: Path, *others: Path) -> Iterator[None]:
    """An OSError without a file name, or with one that the user did not give, gets that of `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not any(str(error.filename) == str(each) for each in (path, *others)):
            raise  # about another file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _standard_stream(there: os.stat_result) -> int | None:
    """The descriptor of standard output or error if a path leads to it, as /dev/stdout does."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if os.path.samestat(there, os.fstat(descriptor)):
                if stream is not None:
                    stream.flush()
                return descriptor
    return None


@contextmanager
def failing_as(what: str, *advice: object) -> Iterator[None]:
    """Turn an OSError into an error that says what cannot be done, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise CalpromptError(f"{what}: {error.strerror or error}", *advice) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step: whoever reads it, even after a crash, sees the old bytes or the new ones."""
    with replacing(path) as file:
        file.write(data)


def check_output(path: str | Path, suffixes: Sequence[str] = (), *, parameter: str | None = None) -> Path:
    """A file that can be written when there is something to write; raises now rather than after the work."""
    if not str(path).strip():
        raise SettingError(f"must be the name of a file, got {str(path)!r}", parameter=parameter)
    path = Path(path).expanduser()
    if suffixes and path.suffix.lower() not in suffixes:
        raise SettingError(f"must end in {' or '.join(suffixes)}, got {path.name!r}", parameter=parameter)
    if path.is_dir():
        raise SettingError(f"must be the name of a file, and {path} is a folder", parameter=parameter)
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise SettingError(f"must have a name of {LONGEST_NAME} bytes at most, got {path}", parameter=parameter)
    check_writable(path.parent, parameter=parameter)
    return path


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user asked for, and make the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


def check_writable(folder: str | Path, *, parameter: str | None = None) -> None:
    """Raise unless a folder can be written to, or can be made."""
    if not str(folder).strip():
        raise SettingError(f"must be a folder, got {str(folder)!r}", parameter=parameter)
    folder = Path(folder).expanduser()
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in folder.parts):
        raise SettingError(f"must have names of {LONGEST_NAME} bytes at most, got {folder}", parameter=parameter)
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        problem = "is a file" if there == folder else f"lies in {there}, which is not a folder"
        raise SettingError(f"must be a folder, and {folder} {problem}", parameter=parameter)
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(f"must be a folder that can be written to, and {there} cannot", parameter=parameter)


def write_json(path: Path, value: Any) -> None:
    """A JSON file that people can read; NaN and infinity, which JSON does not have, are refused."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A value as `write_json` writes it."""
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def csv_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    return csv_text(columns, rows).encode()


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    r"""Rows below a line of column names, as CSV.

    >>> csv_text(("metric", "value"), [{"metric": "ece", "value": 0.1}])
    'metric,value\nece,0.1\n'
    """
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns] for row in rows)
    return text.getvalue()


def canonical_json(value: Any) -> bytes:
    """The same bytes for equal values: keys sorted, no blanks. What digests are taken of.

    >>> canonical_json({"b": 1.0, "a": [True, None]})
    b'{"a":[true,null],"b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror or error}") from error
    except OSError as error:
        raise CalpromptError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not JSON: {parse_problem(error)}") from error


def signature(found: os.stat_result) -> tuple[int, int, int, int]:
    """Size, times and inode of a file: another content has others."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def file_signature(path: str | Path) -> tuple[int, int, int, int] | None:
    """The signature of the file at a path; None if there is none."""
    try:
        return signature(os.stat(path))
    except OSError:
        return None


def json_digest(value: Any) -> str:
    """sha256 of plain data, the same for equal values."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file, read a piece at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replaced_folder(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` at the end, in full or not at all; a link to a folder stays."""
    place, token = Path(os.path.realpath(out)), secrets.token_hex(4)
    building, old = (place.with_name(f".{place.name}.{token}.{kind}") for kind in ("tmp", "old"))
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        building.mkdir()
        yield building
        if place.is_dir():
            place.rename(old)
        try:
            building.rename(place)
        except OSError:
            if old.is_dir():
                old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Remove what a process killed in the middle of a write left in a folder; call it holding the folder's lock."""
    for path in folder.glob(f".*{_LEFTOVER}"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; it is free again when the process ends, in whatever way."""
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
    except OSError:  # a read-only folder of another user: check whether the process exists
        return is_alive(_holder(path))
    lock.release()
    return False


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "of unknown number"
    except OSError:
        return "of unknown number"


def is_alive(process: str) -> bool:
    """Whether this machine has a process of this number, whosever it is."""
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


RUN, MODEL, EXPORT, DATA = "run", "model", "export", "data"
RECORDS = {RUN: "run.json", EXPORT: "model.json", MODEL: "config.json"}  # in the order they are looked for
WORDS = {RUN: "a run", EXPORT: "an exported model", MODEL: "a model", DATA: "data"}


def folder_kind(folder: str | Path) -> str | None:
    """The kind of a folder, whole or damaged: "run", "export", "model", "data" for any other; None if there is none."""
    folder = Path(folder).expanduser()
    found = (kind for kind, name in RECORDS.items() if (folder / name).is_file())
    return next(found, DATA if folder.is_dir() else None)


def require_kind(folder: str | Path, *kinds: str) -> str:
    """The kind of a folder that has to be one of some kinds."""
    kind = folder_kind(folder)
    if kind in kinds:
        return str(kind)
    folder = Path(folder).expanduser()
    words = [f"of {WORDS[each]}" for each in kinds]
    expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if kind is None:
        problem = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise NotFoundError(f"{problem}; expected the folder {expected}")
    if kind != DATA:
        raise NotFoundError(f"{folder} is the folder of {WORDS[kind]}; expected the folder {expected}")
    names = " or ".join(RECORDS[each] for each in kinds)
    inside = sorted(path.parent.name for path in folder.glob(f"*/{RECORDS[RUN]}")) if RUN in kinds else []
    hint = f"; there are runs in it: {shorten(inside)}" if inside else ""
    raise NotFoundError(f"{folder} is not the folder {expected}, it has no {names}{hint}")


ENVIRONMENT = "CALPROMPT_CACHE"
FITS = "fits"
CACHED = {
    FITS: "interrupted fits, which the same command continues, and pictures of zip files that were added",
    "pocket": "pictures of the pocket's datasets",
    "backbones": "fingerprints of weights files",
}  # other than features


def cache_root() -> Path:
    """The folder of everything that is cached, whether it exists or not."""
    return Path(os.environ.get(ENVIRONMENT) or "~/.cache/calprompt").expanduser()


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached data, whether it exists or not."""
    return cache_root() / kind


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files a folder has, with all folders in it, and how many bytes they take; 0 if there is no folder."""
    count = size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                size += os.lstat(os.path.join(place, name)).st_size
                count += 1
    return count, size
