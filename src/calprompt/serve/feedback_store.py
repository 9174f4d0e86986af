"""Where feedback is kept: an SQLite file that one server owns, in which a record is there as a whole or not at all.

A full disk, a limit on file sizes or a killed process leaves all feedback that was confirmed, and no part of any other.
Nothing is removed: feedback that was undone and alarms that were reset stay on record. Files of JSON lines,
as the first version wrote them, are converted when they are opened.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, Parameter, SettingError
from calprompt.files import write_bytes
from calprompt.text import os_problem, parse_problem

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


class NoRoomError(CalpromptError):
    """Feedback that could not be written, because the disk or the quota is full."""


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
                if path.stat().st_size and path.read_bytes()[:1] == b"{":
                    _convert_lines(path, model, target_error)
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
                raise NoRoomError(
                    f"the feedback cannot be written to {self.path}: {error}; make room, and send it again"
                ) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise CalpromptError(f"feedback cannot be written to {self.path}: {error}") from error
            raise DamagedFileError(f"{damaged}: {error}") from error


def _convert_lines(path: Path, model: str, target_error: float | None) -> None:
    """Put the feedback of a file of JSON lines into an SQLite file in its place; the old file stays beside it.

    Lines that cannot be read, as a full disk left them, are kept in another file.
    """
    lines = path.read_bytes().split(b"\n")
    try:
        head = json.loads(lines[0])
        secret, own = bytes.fromhex(head["secret"]), (head["model"], head["target_error"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not a feedback file, or damaged: {parse_problem(error)}") from error
    if own != (model, target_error):
        raise SettingError(f"{path} has feedback on another model; give another file with ", OTHER_FILE)
    modified = path.stat().st_mtime
    records: dict[str, FeedbackRecord] = {}
    bad: list[bytes] = []
    for line in filter(None, lines[1:]):
        try:
            record = FeedbackRecord(**{**json.loads(line), "time": modified})
            records.setdefault(record.nonce, record)
        except (TypeError, ValueError, RecursionError):
            bad.append(line)
    if bad:
        write_bytes(path.with_name(f"{path.name}.unreadable"), b"\n".join(bad) + b"\n")
    new, kept = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.old")
    for leftover in path.parent.glob(f"{new.name}*"):
        leftover.unlink()
    store = FeedbackStore(new, model, target_error)
    with store._changing():
        store._db.execute("UPDATE facts SET value = ? WHERE name = 'secret'", (secret.hex(),))
        for record in records.values():
            store._insert("feedback", record)
    store.close()
    kept.unlink(missing_ok=True)
    os.link(path, kept)
    new.replace(path)
