"""Answers that were marked right or wrong: counted once, watched, and kept if that is wanted.

    <marks>            a JSON line at the top (format, secret of receipts, what is watched), then one per mark
    <keep>/<class>/    images whose true class is known, named by their sha256: calprompt fit <keep>

An image counts once: the same image again says nothing new of the promise.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, Parameter, SettingError
from calprompt.files import write_bytes
from calprompt.promises import ANSWER, DecisionRule
from calprompt.promises.watch import Watch
from calprompt.serve.receipts import Receipt
from calprompt.text import os_problem, parse_problem, slug

FORMAT = 1
UNWATCHED = "The model promises nothing of its errors, so there is nothing to watch."
SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "PPM": "ppm", "TIFF": "tif"}


class MarkedAlreadyError(CalpromptError):
    """An answer that was marked before."""


@dataclass(frozen=True)
class Mark:
    """What became of a mark.

    Attributes:
        counted: Whether it counts for the watch.
        reason: Why it does not.
        kept: Whether the image was kept.
        watch: The state of the watch after it.
    """

    counted: bool
    reason: str | None
    kept: bool
    watch: dict[str, Any]


class MarkBook:
    """All marks of a served model; safe to use from several threads.

    Args:
        rule: Of the model; what it promises is watched.
        fingerprint: Of the model.
        false_alarms: How often at most the watch may alarm although the promise holds.
        path: File that keeps the marks; None: they are forgotten at the end.
        keep: Folder that keeps images whose true class is known; None: none are kept.

    Attributes:
        secret: For receipts; as old as the file.
        watch: Of the promise on errors; None if none is made.

    Raises:
        DamagedFileError: if the file is not one of marks.
        SettingError: if it is of another model or promise.
    """

    def __init__(
        self,
        rule: DecisionRule,
        fingerprint: str,
        *,
        false_alarms: float = 0.01,
        path: str | Path | None = None,
        keep: str | Path | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.watch = Watch.of(rule, false_alarms) if rule.promised else None
        self.secret = secrets.token_bytes(32)
        self.keep = None if keep is None else Path(keep).expanduser()
        self._path = None if path is None else Path(path).expanduser()
        self._nonces: set[str] = set()
        self._images: set[str] = set()
        self._lock = threading.Lock()
        if self.keep is not None:
            try:
                self.keep.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.keep):  # a read-only disk is told now, not at the first mark
                    pass
            except OSError as error:
                raise CalpromptError(f"images cannot be kept in {self.keep}: {error.strerror or error}") from error
        if self._path is not None:
            self._open(self._path)

    def add(
        self,
        receipt: Receipt,
        right: bool,
        *,
        class_name: str | None = None,
        image: bytes | None = None,
        format: str | None = None,
    ) -> Mark:
        """Mark an answer.

        Args:
            receipt: Of the answer.
            right: Whether its class is the true one.
            class_name: The true class, if it is known.
            image: The image file, to be kept.
            format: Of the image file.

        Raises:
            MarkedAlreadyError: if it was marked before.
            SettingError: if the mark contradicts itself.
        """
        if right and class_name not in (None, receipt.class_name):
            raise SettingError(
                f"must be {receipt.class_name!r} if the answer is right, got {class_name!r}", parameter="class_name"
            )
        if not right and class_name == receipt.class_name:
            raise SettingError(
                f"must be another than {receipt.class_name!r} if the answer is wrong", parameter="class_name"
            )
        with self._lock:
            if receipt.nonce in self._nonces:
                raise MarkedAlreadyError("this answer was marked already, and counts once")
            reason = self._why_not(receipt)
            true = receipt.class_name if right else class_name
            kept = image is not None and self._keep(true, receipt.image, image, format)
            self._write(
                {
                    "nonce": receipt.nonce,
                    "image": receipt.image,
                    "decision": receipt.decision,
                    "answered": receipt.class_name,
                    "right": right,
                    "true": true,
                    "counted": reason is None,
                }
            )
            self._take(receipt.nonce, receipt.image, right, reason is None)
            return Mark(reason is None, reason, kept, self.state())

    def state(self) -> dict[str, Any]:
        """The watch as plain data."""
        watch = self.watch
        if watch is None:
            return {
                "status": "unwatched",
                "sentence": UNWATCHED,
                "target_error": None,
                "false_alarm_rate": None,
                "marks": 0,
                "wrong": 0,
                "evidence": None,
                "alarm": None,
                "broken_at": None,
            }
        return {
            "status": "broken" if watch.broken else "holds",
            "sentence": watch.sentence,
            "target_error": watch.target_error,
            "false_alarm_rate": watch.false_alarms,
            "marks": watch.marked,
            "wrong": watch.wrong,
            "evidence": watch.evidence,
            "alarm": 1 / watch.false_alarms,
            "broken_at": watch.broken_at,
        }

    def _why_not(self, receipt: Receipt) -> str | None:
        if self.watch is None:
            return UNWATCHED
        if receipt.model != self.fingerprint or not receipt.promised:
            return "no promise stood behind this answer: its classes or its threshold were not the model's own"
        if receipt.decision != ANSWER:
            return "only answers are watched, and the model did not answer here"
        if receipt.image in self._images:
            return "this image was marked already, and an image counts once"
        return None

    def _take(self, nonce: str, image: str, right: bool, counted: bool) -> None:
        self._nonces.add(nonce)
        if counted and self.watch is not None:
            self._images.add(image)
            self.watch = self.watch.mark(not right)

    def _keep(self, true: str | None, digest: str, image: bytes, format: str | None) -> bool:
        if self.keep is None or true is None:
            return False
        folder = self.keep / (slug(true) or "class")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / f"{digest}.{SUFFIXES.get(format or '', 'img')}", image)
        except OSError as error:
            raise CalpromptError(f"the image cannot be kept: {os_problem(error)}") from error
        return True

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with open(self._path, "ab") as file:
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CalpromptError(f"the mark cannot be written: {os_problem(error)}") from error

    def _open(self, path: Path) -> None:
        target = None if self.watch is None else self.watch.target_error
        if not path.exists() or not path.stat().st_size:
            head = {"format": FORMAT, "model": self.fingerprint, "target_error": target, "secret": self.secret.hex()}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(json.dumps(head).encode() + b"\n")
            except OSError as error:
                raise CalpromptError(f"marks cannot be written: {os_problem(error)}") from error
            return
        try:
            lines = path.read_bytes().split(b"\n")
            if lines[-1]:  # killed while it wrote: the mark was not confirmed to anybody
                os.truncate(path, path.stat().st_size - len(lines[-1]))
            head, *marks = (json.loads(line) for line in lines[:-1])
            if not isinstance(head["format"], int) or head["format"] > FORMAT:
                raise NewerFormatError(f"{path} has format {head['format']}, and {FORMAT} is known here")
            self.secret = bytes.fromhex(head["secret"])
            if (head["model"], head["target_error"]) != (self.fingerprint, target):
                raise SettingError(
                    f"{path} has marks of another model; give another file with ", Parameter("marks", "FILE")
                )
            for mark in marks:
                self._take(mark["nonce"], mark["image"], mark["right"], mark["counted"])
        except OSError as error:
            raise CalpromptError(f"cannot read {path}: {os_problem(error)}") from error
        except NewerFormatError:
            raise
        except SettingError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DamagedFileError(f"{path} is not a file of marks, or damaged: {parse_problem(error)}") from error
