"""Where marks are kept: an SQLite file that one server owns, in which a mark is there as a whole or not at all.

A full disk, a limit on file sizes or a killed process leaves the marks that were confirmed, and no part of another.
Files of JSON lines, which earlier versions wrote, are taken over when they are opened.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, Parameter, SettingError
from calprompt.files import write_bytes
from calprompt.text import os_problem, parse_problem

FORMAT = 2
OTHER = Parameter("marks", "FILE")
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE marks (
    nonce TEXT PRIMARY KEY, image TEXT NOT NULL, decision TEXT NOT NULL, answered TEXT NOT NULL,
    right INTEGER NOT NULL, true TEXT, counted INTEGER NOT NULL, time REAL NOT NULL
);
"""


class NoRoomError(CalpromptError):
    """A mark that could not be written, because the disk is full."""


@dataclass(frozen=True)
class MarkRecord:
    """A mark as it is kept.

    Attributes:
        nonce: Of the answer's receipt.
        image: Digest of the image's pixels.
        decision: What the model decided.
        answered: The class it named.
        right: Whether that was right.
        true: The true class, if it is known.
        counted: Whether the mark counts for the watch.
        time: When it was made, in seconds since 1970.
    """

    nonce: str
    image: str
    decision: str
    answered: str
    right: bool
    true: str | None
    counted: bool
    time: float


NAMES = tuple(field.name for field in fields(MarkRecord))


class MarkStore:
    """The marks of one model, in a file or, without a path, in memory.

    Args:
        path: The file; it is created if it is not there.
        model: Fingerprint of the model.
        target_error: What it promises; marks of another model or promise are refused.

    Attributes:
        secret: Of receipts; as old as the file.

    Raises:
        SettingError: if another server uses the file, or it has marks of another model or promise.
        DamagedFileError: if it is no file of marks.
    """

    def __init__(
        self,
        path: Path | None,
        model: str,
        target_error: float | None,
        *,
        _old: tuple[bytes, list[MarkRecord]] | None = None,
    ) -> None:
        self.path = path
        self._model = json.dumps([model, target_error])
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it has the secret of receipts
                if path.stat().st_size and path.read_bytes()[:1] == b"{":
                    _take_over(path, model, target_error)
            except OSError as error:
                raise CalpromptError(f"marks cannot be written: {os_problem(error)}") from error
        self._db = sqlite3.connect(
            ":memory:" if path is None else path, timeout=1.0, isolation_level=None, check_same_thread=False
        )
        try:
            self.secret = self._prepare(_old)
        except BaseException:
            self._db.close()
            raise

    def __iter__(self) -> Iterator[MarkRecord]:
        """All marks, in the order in which they were made."""
        for row in self._db.execute(f"SELECT {', '.join(NAMES)} FROM marks ORDER BY rowid"):
            values = dict(zip(NAMES, row, strict=True))
            yield MarkRecord(**{**values, "right": bool(values["right"]), "counted": bool(values["counted"])})

    def add(self, mark: MarkRecord) -> None:
        """Keep a mark; when this returns it is on the disk."""
        with self._changing():
            self._insert(mark)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _insert(self, mark: MarkRecord) -> None:
        self._db.execute(f"INSERT INTO marks VALUES ({', '.join('?' * len(NAMES))})", astuple(mark))

    def _prepare(self, old: tuple[bytes, list[MarkRecord]] | None) -> bytes:
        """Take hold of the file, make its tables if there are none, and return its secret."""
        with self._problems():
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute("COMMIT")
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                secret, marks = old or (secrets.token_bytes(32), [])
                with self._changing():
                    for statement in filter(str.strip, TABLES.split(";")):
                        self._db.execute(statement)
                    facts = {"format": str(FORMAT), "model": self._model, "secret": secret.hex()}
                    self._db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
                    for mark in marks:
                        self._insert(mark)
            facts = dict(self._db.execute("SELECT name, value FROM facts"))
            if int(facts["format"]) > FORMAT:
                raise NewerFormatError(f"{self.path} has format {facts['format']}, and {FORMAT} is known here")
            if facts["model"] != self._model:
                raise SettingError(f"{self.path} has marks of another model; give another file with ", OTHER)
            return bytes.fromhex(facts["secret"])

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction: all of it or nothing."""
        with self._problems():
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """SQLite's errors as those of this library."""
        try:
            yield
        except CalpromptError:
            raise
        except (KeyError, ValueError) as error:
            raise DamagedFileError(f"{self.path} is not a file of marks, or damaged: {parse_problem(error)}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise SettingError(f"{self.path} is used by another server; give another file with ", OTHER) from error
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise NoRoomError(
                    f"the mark cannot be written to {self.path}: {error}; make room, and send it again"
                ) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise CalpromptError(f"marks cannot be written to {self.path}: {error}") from error
            raise DamagedFileError(f"{self.path} is not a file of marks, or damaged: {error}") from error


def _take_over(path: Path, model: str, target_error: float | None) -> None:
    """Put the marks of a file of JSON lines into an SQLite file in its place; the old file stays beside it.

    Lines that cannot be read, as a full disk left them, are kept in another file.
    """
    lines = path.read_bytes().split(b"\n")
    try:
        head = json.loads(lines[0])
        secret, own = bytes.fromhex(head["secret"]), (head["model"], head["target_error"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not a file of marks, or damaged: {parse_problem(error)}") from error
    if own != (model, target_error):
        raise SettingError(f"{path} has marks of another model; give another file with ", OTHER)
    made = path.stat().st_mtime
    marks: dict[str, MarkRecord] = {}
    bad: list[bytes] = []
    for line in filter(None, lines[1:]):
        try:
            mark = MarkRecord(**{**json.loads(line), "time": made})
            marks.setdefault(mark.nonce, mark)
        except (TypeError, ValueError, RecursionError):
            bad.append(line)
    if bad:
        write_bytes(path.with_name(f"{path.name}.unreadable"), b"\n".join(bad) + b"\n")
    new, kept = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.old")
    for leftover in path.parent.glob(f"{new.name}*"):
        leftover.unlink()
    MarkStore(new, model, target_error, _old=(secret, list(marks.values()))).close()
    kept.unlink(missing_ok=True)
    os.link(path, kept)
    new.replace(path)
