"""Image features on disk, computed once and shared by every run: an SQLite file for each kind of features.

    <folder>/<identity>.sqlite    about     what the features depend on besides an image and its view; their type
                                  features  hash of the key, key, checksum, the bytes of the feature
                                  usage     how often they were used

The name of a file is the digest of what its features depend on, a key has the digest of an image's content in it, and
a checksum covers all of it, so a feature is either the right one or not found. Processes read and write at the same
time (write-ahead log; on network file systems, which cannot share one, a rollback journal). A folder that cannot be
written to is only read.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from calprompt.files import ENVIRONMENT, cache_folder, json_digest

SUFFIX, DAMAGED = ".sqlite", ".damaged"
COMPANIONS = ("-wal", "-shm", "-journal")  # files that SQLite keeps beside an open database
FORMAT = 1
DIGEST, VIEW = 32, 4  # bytes of a key
TYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
FLUSH_SECONDS, FLUSH_ROWS = 1.0, 4096  # features are written when the oldest is so old, or there are so many
KEYS_PER_QUERY = 500  # keys in one query
ROWS_PER_READ = 1024  # rows that are read together
LOCK_SECONDS = 60.0  # seconds to wait for other processes that write
CACHE_BYTES = 16 << 20  # bytes of pages that a connection keeps in memory
NOT_DAMAGE = {  # errors that say nothing of the contents of a file
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH),
}
NETWORK = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "9p", "afs", "glusterfs", "fuse.sshfs")
SCHEMA = """
CREATE TABLE about (format INTEGER, dtype TEXT, name TEXT, json TEXT);
CREATE TABLE features (id INTEGER PRIMARY KEY, hash INTEGER, key BLOB, checksum BLOB, row BLOB);
CREATE INDEX by_hash ON features (hash);
CREATE TABLE usage (time REAL, found INTEGER, computed INTEGER, seconds REAL);
INSERT INTO usage VALUES (0, 0, 0, 0);
"""
T = TypeVar("T")
INSERT = """INSERT INTO features (hash, key, checksum, row) SELECT ?1, ?2, ?3, ?4
WHERE NOT EXISTS (SELECT 1 FROM features WHERE hash = ?1 AND key = ?2)"""


def key(digest: str, view: int) -> bytes:
    """The key of a view of an image: 0 is the view for evaluation, 1 and above are those for training."""
    return bytes.fromhex(digest) + view.to_bytes(VIEW, "big")


def key_hash(key: bytes) -> int:
    """The indexed hash of a key; views of an image are neighbours, so that the index is written in few places."""
    return int.from_bytes(key[:6], "big", signed=True) << 16 | int.from_bytes(key[-2:], "big")


class FeatureStore:
    """Image features on disk.

    Args:
        folder: Where they are; "features" in the cache folder, see `calprompt.files`, unless given.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = cache_folder("features") if folder is None else Path(folder).expanduser()
        self.writable = True  # until a write fails
        self._spaces: dict[str, Space] = {}

    def __repr__(self) -> str:
        return f"FeatureStore({str(self.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)  # another process opens its own files

    def space(self, about: Mapping[str, Any], name: str) -> Space:
        """The features of one kind."""
        identity = json_digest(about)[:32]
        if identity not in self._spaces:
            self._spaces[identity] = Space(self, identity, about, name)
        return self._spaces[identity]

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        for space in self._spaces.values():
            space.close()


class Space:
    """Features that differ in nothing but the image and its view; use it from one thread at a time."""

    def __init__(self, store: FeatureStore, identity: str, about: Mapping[str, Any], name: str) -> None:
        self.store, self.identity, self.about, self.name = store, identity, about, name
        self.path = store.folder / f"{identity}{SUFFIX}"
        self.record: dict[bytes, bytes] | None = None  # all features in and out, for whoever sends them on
        self._waiting: dict[bytes, bytes] = {}  # not written yet
        self.dtype: torch.dtype | None = None
        self._since = 0.0
        self._file: FeatureFile | None = None
        self._unusable = ""  # why the file is left alone

    def find(self, keys: Sequence[bytes]) -> tuple[list[int], Tensor]:
        """Look features up."""
        rows = {each: self._waiting[each] for each in keys if each in self._waiting}
        rest = [each for each in keys if each not in rows]
        stored = self._use(lambda file: (file, *file.find(rest))) if rest else None
        if stored is not None:
            file, intact, wrong = stored
            rows, self.dtype = rows | intact, file.dtype
            if wrong:
                warnings.warn(f"{file.path}: {len(wrong)} damaged features are computed again", stacklevel=2)
                if self.store.writable and not file.read_only:
                    with suppress(sqlite3.Error):  # found again the next time
                        file.delete(wrong)
        if self.record is not None:
            self.record |= rows
        found = [place for place, each in enumerate(keys) if each in rows]
        if not found or self.dtype is None:
            return [], torch.empty(0, 0)
        values = torch.frombuffer(bytearray().join([rows[keys[place]] for place in found]), dtype=self.dtype)
        return found, values.view(len(found), -1)

    def add(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Store features [keys, D]; they are written after a moment, together with others, or by `flush`."""
        if not keys:
            return
        if not self._waiting:
            self._since = time.monotonic()
        self.dtype = rows.dtype
        raw = rows.detach().cpu().contiguous().view(torch.uint8).numpy()
        added = {each: row.tobytes() for each, row in zip(keys, raw, strict=True)}
        self._waiting |= added
        if self.record is not None:
            self.record |= added
        if len(self._waiting) >= FLUSH_ROWS or time.monotonic() - self._since >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the features that are waiting; if that fails, the store writes no more."""
        waiting, self._waiting = self._waiting, {}
        if waiting and self.store.writable and self.dtype is not None:
            try:
                self.insert(waiting, self.dtype)
            except (OSError, sqlite3.Error) as error:
                self.store.writable = False
                reason = getattr(error, "strerror", None) or str(error)
                warnings.warn(
                    f"features are not stored: cannot write to {self.store.folder} ({reason}); set {ENVIRONMENT} to a "
                    "folder with room, or free some with 'calprompt cache prune'",
                    stacklevel=2,
                )

    def insert(self, rows: Mapping[bytes, bytes], dtype: torch.dtype) -> None:
        """Write features at once, but for those that are there."""
        kind = dtype, len(next(iter(rows.values())))
        for _ in range(5):  # another process may have removed the file, or this one has set it aside
            if self._use(lambda file: file.insert(rows), kind):
                return
        raise sqlite3.OperationalError(self._unusable or f"{self.path} is damaged")

    def note_use(self, found: int, computed: int, seconds: float) -> None:
        """Note how many features were found, how many were computed, and how long that took."""
        if self.store.writable and found + computed and self.path.exists():
            with suppress(sqlite3.Error, OSError):  # these are only statistics
                self._use(lambda file: file.note_use(found, computed, seconds))

    def close(self) -> None:
        """Write pending features, and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _use(self, action: Callable[[FeatureFile], T], create: tuple[torch.dtype, int] | None = None) -> T | None:
        """The result of an action on the file; None if there is no file, or if it is damaged and set aside."""
        try:
            if self._file is None or not self._file.is_current(create is not None):
                self._file = None
                if create is not None and not self.path.exists():
                    self.store.folder.mkdir(parents=True, exist_ok=True)
                    create_file(self.path, create, self.name, self.about)
                if self.path.exists() and not self._unusable:
                    self._file = FeatureFile.open(self.path)
            return None if self._file is None else action(self._file)
        except sqlite3.Error as error:
            file, self._file = self._file, None
            if not self.path.exists() or (file is not None and not file.is_current(True)):
                return None  # pruned meanwhile
            if create is not None and not is_damage(error):
                raise
            if is_damage(error):
                self._set_aside(str(error))
            else:
                self._unusable = f"{self.path} cannot be read: {error}"
                warnings.warn(f"features are computed again, {self._unusable}", stacklevel=3)
            return None

    def _set_aside(self, reason: str) -> None:
        """Rename a damaged file, and take over what is intact of it."""
        kept, damaged = 0, set_aside(self.path)
        if damaged is not None:
            with suppress(sqlite3.Error, OSError):
                old = FeatureFile.open(damaged, identity=self.identity, read_only=True)
                for rows, _ in old.scan():
                    if rows:
                        self.insert(rows, old.dtype)
                        kept += len(rows)
        else:
            self._unusable = f"{self.path} is damaged"
        what = f"set aside as {damaged.name}; {kept} of its features are kept" if damaged else "not used"
        warnings.warn(f"{self.path} is damaged ({reason}) and {what}; others are computed again", stacklevel=4)


@dataclass(frozen=True)
class Usage:
    """How features were used."""

    time: float = 0.0  # time of the last use, in seconds since 1970
    found: int = 0  # features that were in the store
    computed: int = 0  # features that were computed
    seconds: float = 0.0  # how long computing them took

    @property
    def saved(self) -> float:
        """Seconds that computing the found features would have taken, at the speed of the computed ones."""
        return self.seconds / self.computed * self.found if self.computed else 0.0


class FeatureFile:
    """A connection to the file of a space; use `FeatureFile.open`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, identity: str, read_only: bool) -> None:
        self.path, self.identity, self.read_only = path, identity, read_only
        self._connection, self._pid, self._inode = connection, os.getpid(), _inode(path)
        row: tuple[int, str, str, str] = connection.execute("SELECT * FROM about").fetchone() or (0, "", "?", "{}")
        format, dtype, self.name, about = row
        if format != FORMAT or dtype not in TYPES:
            raise sqlite3.DatabaseError(
                f"it has format {format} and type {dtype!r}, expected {FORMAT} and a float type"
            )
        self.dtype = TYPES[dtype]
        try:
            self.about: dict[str, Any] = dict(json.loads(about))
        except ValueError:
            self.about = {}
        self._start = hashlib.sha256(f"{identity} {dtype}".encode())
        weakref.finalize(self, _close, connection, self._pid)

    @classmethod
    def open(cls, path: Path, *, identity: str | None = None, read_only: bool = False) -> FeatureFile:
        """Open the file of a space."""
        read_only = read_only or not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        connection = _connect(path, "ro" if read_only else "rw")
        try:
            return cls(path, connection, identity or path.stem, read_only)
        except BaseException:
            connection.close()
            raise

    def is_current(self, writing: bool) -> bool:
        """Whether this process opened the file that is at its path now; for reading, one that is gone will do."""
        inode = _inode(self.path)
        return self._pid == os.getpid() and (inode == self._inode or (inode is None and not writing))

    def find(self, keys: Sequence[bytes]) -> tuple[dict[bytes, bytes], list[int]]:
        """The intact rows of some keys, and the numbers of rows that are damaged."""
        wanted, found, wrong = set(keys), dict[bytes, bytes](), list[int]()
        for start in range(0, len(keys), KEYS_PER_QUERY):
            hashes = [key_hash(each) for each in keys[start : start + KEYS_PER_QUERY]]
            query = f"SELECT id, key, checksum, row FROM features WHERE hash IN ({','.join('?' * len(hashes))})"
            for number, each, checksum, row in self._connection.execute(query, hashes):
                if each in wanted:
                    if self._is_right(each, checksum, row):
                        found[each] = row
                    else:
                        wrong.append(number)
        return found, wrong

    def insert(self, rows: Mapping[bytes, bytes]) -> bool:
        """Write features that are not there, in one transaction; returns that it is done."""
        if self.read_only:
            raise sqlite3.OperationalError("it can only be read")
        values = [(key_hash(each), each, self._checksum(each, row), row) for each, row in sorted(rows.items())]
        with self._transaction():
            self._connection.executemany(INSERT, values)
        return True

    def delete(self, numbers: Sequence[int]) -> None:
        with self._transaction():
            self._connection.executemany("DELETE FROM features WHERE id = ?", [(number,) for number in numbers])

    def note_use(self, found: int, computed: int, seconds: float) -> None:
        """Add to the statistics, if it can be written to."""
        if self.read_only:
            return
        update = "UPDATE usage SET time = ?, found = found + ?, computed = computed + ?, seconds = seconds + ?"
        with self._transaction():
            self._connection.execute(update, (time.time(), found, computed, seconds))

    def usage(self) -> Usage:
        found = self._connection.execute("SELECT time, found, computed, seconds FROM usage").fetchone()
        return Usage(*found) if found else Usage()

    def count(self) -> tuple[int, int]:
        """How many images it has features of, and how many views of them altogether."""
        query = "SELECT count(DISTINCT hash >> 16), count(*) FROM features"
        images, views = self._connection.execute(query).fetchone()
        return int(images), int(views)

    def scan(self) -> Iterator[tuple[dict[bytes, bytes], list[int]]]:
        """All features, some at a time, with the numbers of rows that are damaged; what cannot be read is left out."""
        most = self.path.stat().st_size // (DIGEST + VIEW) + 1  # more numbers than there can be rows
        with suppress(sqlite3.Error):
            most = min(most, self._connection.execute("SELECT max(id) FROM features").fetchone()[0] or 0)
        spans = [(start, min(start + ROWS_PER_READ, most + 1)) for start in reversed(range(1, most + 1, ROWS_PER_READ))]
        query = "SELECT id, key, checksum, row FROM features WHERE id >= ? AND id < ?"
        while spans:
            start, stop = spans.pop()
            try:
                rows = self._connection.execute(query, (start, stop)).fetchall()
            except sqlite3.Error:
                middle = (start + stop) // 2
                if middle > start:
                    spans += [(middle, stop), (start, middle)]
                else:
                    yield {}, [start]
                continue
            right = {number: self._is_right(each, checksum, row) for number, each, checksum, row in rows}
            intact = {each: row for number, each, _, row in rows if right[number]}
            yield intact, [number for number, intact in right.items() if not intact]

    def check(self) -> str:
        """The problem of the file's structure; empty if there is none."""
        found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        return "" if found == "ok" else str(found).splitlines()[-1]

    def close(self) -> None:
        self._connection.close()

    def _is_right(self, key: Any, checksum: Any, row: Any) -> bool:
        return isinstance(key, bytes) and isinstance(row, bytes) and checksum == self._checksum(key, row)

    def _checksum(self, key: bytes, row: bytes) -> bytes:
        digest = self._start.copy()
        digest.update(key)
        digest.update(row)
        return digest.digest()[:8]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the contents of a file are not what was written."""
    code = getattr(error, "sqlite_errorcode", None)
    return type(error) is sqlite3.DatabaseError if code is None else code & 0xFF not in NOT_DAMAGE


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file, without what SQLite keeps beside it; None if that cannot be done."""
    target = path.with_suffix(DAMAGED)
    try:
        for companion in COMPANIONS:
            Path(f"{path}{companion}").unlink(missing_ok=True)
        os.replace(path, target)
    except OSError:
        return None
    return target


def is_network(folder: Path) -> bool:
    """Whether a folder is on a network file system, whose machines cannot share the memory of a write-ahead log."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        place = str(folder.resolve())
    except OSError:
        return False
    mounts = [(line.split()[1].replace("\\040", " "), line.split()[2]) for line in lines]
    points = [(len(point), kind) for point, kind in mounts if f"{place}/".startswith(f"{point.rstrip('/')}/")]
    return max(points, default=(0, ""))[1].startswith(NETWORK)


def create_file(path: Path, kind: tuple[torch.dtype, int], name: str, about: Mapping[str, Any]) -> None:
    """Begin the file of a space, which appears in one step, unless another process was faster."""
    dtype, width = kind
    pages = next((size for size in (4096, 8192, 16384, 32768) if size >= 12 * (width + 60)), 65536)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp")
    try:
        connection = _connect(temporary, "rwc")
        try:
            connection.execute(f"PRAGMA page_size = {pages}")
            connection.execute(f"PRAGMA journal_mode = {'DELETE' if is_network(path.parent) else 'WAL'}")
            connection.executescript(SCHEMA)
            row = (FORMAT, str(dtype).removeprefix("torch."), name, json.dumps(dict(about)))
            connection.execute("INSERT INTO about VALUES (?, ?, ?, ?)", row)
        finally:
            connection.close()
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(temporary, path)
    finally:
        for companion in ("", *COMPANIONS):
            Path(f"{temporary}{companion}").unlink(missing_ok=True)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if mode == "ro" and not Path(f"{path}-wal").exists():
        mode = "ro&immutable=1"  # without a log, nothing has to be written beside the file in order to read it
    address = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    connection.execute(f"PRAGMA cache_size = -{CACHE_BYTES >> 10}")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last second, and damages nothing
    return connection


def _close(connection: sqlite3.Connection, pid: int) -> None:
    if pid == os.getpid():  # a forked process leaves the connection of its parent alone
        connection.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
