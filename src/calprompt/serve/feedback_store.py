"""Where feedback is kept: an SQLite file that one server owns, in which a record is there as a whole or not at all.

A full disk, a limit on file sizes or a killed process leaves all feedback that was confirmed, and no part of any other.
Nothing is removed: feedback that was undone and alarms that were reset stay on record. Images whose true class feedback
has told are kept in a folder, to fit again: FOLDER/CLASS/SHA256-OF-PIXELS.SUFFIX.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, Parameter, SettingError
from calprompt.files import write_bytes
from calprompt.serve.problems import ProblemError
from calprompt.text import format_size, os_problem, parse_problem, slug

FORMAT = 3
OTHER_FILE = Parameter("feedback", "FILE")
TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS feedback (
    id INTEGER PRIMARY KEY, nonce TEXT NOT NULL, image TEXT NOT NULL, decision TEXT NOT NULL, answered TEXT NOT NULL,
    right INTEGER NOT NULL, true TEXT, counted INTEGER NOT NULL, time REAL NOT NULL, author TEXT NOT NULL DEFAULT '',
    own INTEGER NOT NULL DEFAULT 1, undone REAL, undone_by TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS one_per_answer ON feedback (nonce) WHERE undone IS NULL;
CREATE INDEX IF NOT EXISTS by_image ON feedback (image);
CREATE TABLE IF NOT EXISTS shadow_answers (
    version TEXT NOT NULL, image TEXT NOT NULL, time REAL NOT NULL, decision TEXT NOT NULL, class_name TEXT NOT NULL,
    probability REAL NOT NULL, shadow_decision TEXT NOT NULL, shadow_class_name TEXT NOT NULL,
    shadow_probability REAL NOT NULL, PRIMARY KEY (version, image)
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, after INTEGER NOT NULL, watch TEXT NOT NULL, action TEXT NOT NULL, note TEXT NOT NULL,
    time REAL NOT NULL, author TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class FeedbackRecord:
    """Feedback on one answer, as it is kept."""

    nonce: str  # of the answer's receipt
    image: str  # digest of the image's pixels
    decision: str  # what the model decided
    answered: str  # the class it named
    right: bool  # whether that was right
    true: str | None  # the true class, if it is known
    counted: bool  # whether it counts for the watch
    time: float  # when it was given, in seconds since 1970
    author: str = ""  # name of the key that it was given with
    own: bool = True  # whether the model answered with its own classes and threshold


@dataclass(frozen=True)
class WatchEvent:
    """An alarm that was acknowledged, or a watch that was restarted."""

    watch: str  # "promise" or "images"
    action: str  # "acknowledge" or "reset"
    note: str  # why, in the words of the author
    time: float  # when, in seconds since 1970
    author: str  # name of the key that did it
    after: int = 0  # feedback with a larger id came later


@dataclass(frozen=True)
class ShadowAnswer:
    """How a model and another version of it answered the same image."""

    version: str  # the other one
    image: str  # digest of the image's pixels
    time: float  # when, in seconds since 1970
    decision: str  # of the model
    class_name: str  # its most probable class
    probability: float  # of that class
    shadow_decision: str  # of the other version
    shadow_class_name: str  # its most probable class
    shadow_probability: float  # of that class


MOST_SHADOW_ANSWERS = 100_000  # that are kept, the newest
NAMES = tuple(field.name for field in fields(FeedbackRecord))


class FeedbackStore:
    """The feedback on one model, in a file or, without a path, in memory."""

    def __init__(self, path: Path | None, model: str, target_error: float | None) -> None:
        self.path = path
        self._model = json.dumps([model, target_error])
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it has the secret of receipts
            except OSError as error:
                raise CalpromptError(f"feedback cannot be written: {os_problem(error)}") from error
        self._db = sqlite3.connect(
            ":memory:" if path is None else path, timeout=1.0, isolation_level=None, check_same_thread=False
        )
        try:
            self.secret = self._prepare()
        except BaseException:
            self._db.close()
            raise

    def records(self) -> Iterator[tuple[int, FeedbackRecord]]:
        """Ids and records in the order in which they were given, but for those that were undone."""
        query = f"SELECT id, {', '.join(NAMES)} FROM feedback WHERE undone IS NULL ORDER BY id"
        for number, *row in self._db.execute(query):
            values = dict(zip(NAMES, row, strict=True))
            values |= {name: bool(values[name]) for name in ("right", "counted", "own")}
            yield number, FeedbackRecord(**values)

    def events(self) -> list[WatchEvent]:
        columns = "watch, action, note, time, author, after"
        return [WatchEvent(*row) for row in self._db.execute(f"SELECT {columns} FROM events ORDER BY id")]

    def add(self, record: FeedbackRecord) -> None:
        """Keep a record; when this returns it is on the disk."""
        with self._changing():
            self._insert("feedback", record)

    def undo(self, nonce: str, *, author: str, time: float) -> None:
        """Take feedback back; it stays on record as undone."""
        with self._changing():
            self._db.execute(
                "UPDATE feedback SET undone = ?, undone_by = ? WHERE nonce = ? AND undone IS NULL",
                (time, author, nonce),
            )

    def add_event(self, event: WatchEvent) -> WatchEvent:
        """Keep an event, with all feedback so far before it."""
        with self._changing():
            (after,) = self._db.execute("SELECT coalesce(max(id), 0) FROM feedback").fetchone()
            event = replace(event, after=after)
            self._insert("events", event)
        return event

    def add_shadow_answers(self, answers: Sequence[ShadowAnswer]) -> None:
        """Keep answers of two versions; of an image that was answered before, the new ones."""
        with self._changing():
            for answer in answers:
                self._insert("shadow_answers", answer)
            self._db.execute(
                "DELETE FROM shadow_answers WHERE rowid NOT IN "
                "(SELECT rowid FROM shadow_answers ORDER BY rowid DESC LIMIT ?)",
                (MOST_SHADOW_ANSWERS,),
            )

    def shadow_answers(self, version: str) -> Iterator[tuple[ShadowAnswer, bool | None, str | None]]:
        """Answers of the model and a version of it, the newest first, with what feedback says last of the image.

        That is whether the model's own answer was right, and the true class; None where it is not known.
        """
        told = "(SELECT {0} FROM feedback f WHERE f.image = s.image AND undone IS NULL{1} ORDER BY id DESC LIMIT 1)"
        columns = f"s.*, {told.format('right', ' AND f.answered = s.class_name')}, {told.format('true', '')}"
        query = f"SELECT {columns} FROM shadow_answers s WHERE version = ? ORDER BY rowid DESC"
        for *values, right, true in self._db.execute(query, (version,)):
            yield ShadowAnswer(*values), None if right is None else bool(right), true

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _insert(self, table: str, record: FeedbackRecord | WatchEvent | ShadowAnswer) -> None:
        """Keep a record; a second answer in the shadow on one image takes the place of the first."""
        how = "INSERT OR REPLACE" if table == "shadow_answers" else "INSERT"
        names = ", ".join(vars(record))
        marks = ", ".join("?" * len(vars(record)))
        self._db.execute(f"{how} INTO {table} ({names}) VALUES ({marks})", tuple(vars(record).values()))

    def _prepare(self) -> bytes:
        """Take hold of the file, create or convert its tables, and return its secret."""
        with self._problems():
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("BEGIN EXCLUSIVE")
            self._db.execute("COMMIT")
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            with self._changing():
                for statement in TABLES.split(";"):
                    self._db.execute(statement)
                if not tables:
                    facts = {"format": str(FORMAT), "model": self._model, "secret": secrets.token_hex(32)}
                    self._db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            facts = dict(self._db.execute("SELECT name, value FROM facts"))
            if int(facts["format"]) > FORMAT:
                raise NewerFormatError(f"{self.path} has format {facts['format']}, and {FORMAT} is known here")
            if facts["model"] != self._model:
                raise SettingError(f"{self.path} has feedback on another model; give another file with ", OTHER_FILE)
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
        damaged = f"{self.path} is not a feedback file, or damaged"
        try:
            yield
        except CalpromptError:
            raise
        except (KeyError, ValueError) as error:
            raise DamagedFileError(f"{damaged}: {parse_problem(error)}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise SettingError(
                    f"{self.path} is used by another server; give another file with ", OTHER_FILE
                ) from error
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise ProblemError(
                    507, f"the feedback cannot be written to {self.path}: {error}; make room, and send it again"
                ) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise CalpromptError(f"feedback cannot be written to {self.path}: {error}") from error
            raise DamagedFileError(f"{damaged}: {error}") from error


SUFFIXES = {"JPEG": "jpg", "TIFF": "tif"}  # of other formats it is their name


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
        suffix = SUFFIXES.get(format or "", (format or "img").lower())
        path = self.folder / (slug(class_name) or "class") / f"{digest}.{suffix}"
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
            raise ProblemError(
                507,
                f"the folder for images is full ({format_size(self._quota)}); send the feedback without the image, or "
                "start the server with a larger --max-keep",
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
            raise ProblemError(507 if full else 422, f"the image cannot be kept: {os_problem(error)}") from error

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
