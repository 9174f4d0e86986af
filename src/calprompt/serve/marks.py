"""Answers that were marked right or wrong: counted once, watched, and kept if that is wanted.

    <marks>            an SQLite file, see `MarkStore`
    <keep>/<class>/    images whose true class is known, named by the sha256 of their pixels: calprompt fit <keep>
    <watch>            what all images that were answered say, marked or not: the state of an `ImageWatch`

An image counts once: the same pixels again, in whatever file, say nothing new.
"""

from __future__ import annotations

import errno
import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, SettingError
from calprompt.files import write_bytes
from calprompt.promises import ANSWER, NONE_OF_THESE, UNSURE, DecisionRule, ImageWatch, Watch
from calprompt.promises.image_watch import NO_HELD_OUT, unwatched
from calprompt.promises.requests import Requests
from calprompt.serve.mark_store import MarkRecord, MarkStore, NoRoomError
from calprompt.serve.receipts import Receipt
from calprompt.text import os_problem, slug

SAVED_WITHIN = 5.0  # seconds; so much of the watch of images is lost at most if the process is killed
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
        class_names: Of the model.
        fingerprint: Of the model.
        false_alarms: How often at most the watch may alarm although the promise holds.
        path: File that keeps the marks; None: they are forgotten at the end.
        keep: Folder that keeps images whose true class is known; None: none are kept.
        image_watch: What images are compared with, as `ServedModel.image_watch`; None: they are not watched.
        not_watched: Why they are not.
        image_path: File that keeps the watch of images; None: it is forgotten at the end.

    Attributes:
        secret: For receipts; as old as the file.
        watch: Of the promise on errors; None if none is made.
        missed: Of the classes that must not be missed, by name; marks that tell the true class count for them, whatever
            was decided.
        images: Watches what images are like; None if nothing does.

    Raises:
        DamagedFileError: if the file is not one of marks.
        SettingError: if it is of another model or promise.
    """

    def __init__(
        self,
        rule: DecisionRule,
        fingerprint: str,
        *,
        class_names: Sequence[str] = (),
        false_alarms: float = 0.01,
        path: str | Path | None = None,
        keep: str | Path | None = None,
        image_watch: dict[str, Any] | None = None,
        not_watched: str = NO_HELD_OUT,
        image_path: str | Path | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.watch = Watch.of(rule, false_alarms) if rule.promised else None
        self.missed = Watch.of_classes(rule, class_names, false_alarms) if class_names else {}
        self.keep = None if keep is None else Path(keep).expanduser()
        target = None if self.watch is None else self.watch.target_error
        self._store = MarkStore(None if path is None else Path(path).expanduser(), fingerprint, target)
        self.secret = self._store.secret
        self._nonces: set[str] = set()
        self._images: set[str] = set()
        self._of_class: set[str] = set()
        self._lock = threading.Lock()
        if self.keep is not None:
            try:
                self.keep.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.keep):  # a read-only disk is told now, not at the first mark
                    pass
            except OSError as error:
                raise CalpromptError(f"images cannot be kept in {self.keep}: {error.strerror or error}") from error
        for mark in self._store:
            self._take(mark)
        self.images = None if image_watch is None else ImageWatch.from_record(image_watch, false_alarms=false_alarms)
        self._not_watched = not_watched
        self._image_path = None if image_path is None else Path(image_path).expanduser()
        self._timer: threading.Timer | None = None
        if self._image_path is not None:
            if self.images is None:
                raise SettingError(f"{self._image_path} has nothing to keep. {not_watched}", parameter="watch")
            self.images = self.images.resumed(self._image_path)
            self.images.save(self._image_path)  # whether it can be written is known before the first image

    def add(
        self,
        receipt: Receipt,
        right: bool,
        *,
        class_name: str | None = None,
        image: bytes | None = None,
        format: str | None = None,
    ) -> Mark:
        """Mark an answer."""
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
            mark = MarkRecord(
                receipt.nonce,
                receipt.image,
                receipt.decision,
                receipt.class_name,
                right,
                receipt.class_name if right else class_name,
                reason is None,
                time.time(),
            )
            with self._keeping(mark, image, format) as kept:
                self._store.add(mark)
            self._take(mark, own=receipt.model == self.fingerprint)
            return Mark(reason is None, reason, kept, self._state())

    def see(self, scores: Sequence[float], digest: str) -> None:
        """Watch an image that was answered. The file is written within seconds, and at once for an alarm."""
        with self._lock:
            if self.images is None:
                return
            before = self.images.changed
            self.images.see_scores([scores], [digest])
            if self.images.changed != before:
                self._save_images()
            elif self._image_path is not None and self._timer is None:
                self._timer = threading.Timer(SAVED_WITHIN, self._on_timer)
                self._timer.daemon = True
                self._timer.start()

    def save(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            self._save_images()

    def close(self) -> None:
        """Write what is not written yet, and let go of the file of marks."""
        with self._lock:
            try:
                self._save_images()
            finally:
                self._store.close()

    def _on_timer(self) -> None:
        try:
            self.save()
        except CalpromptError as error:
            logging.getLogger(__name__).warning("%s", error)

    def _save_images(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._image_path is not None and self.images is not None:
            self.images.save(self._image_path)

    def state(self) -> dict[str, Any]:
        """Both watches as plain data."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        watch = self.watch
        images = unwatched(self._not_watched) if self.images is None else self.images.state()
        missed = [
            {
                "class_name": name,
                "promise": Requests().missed_words(name, each.target_error),
                "status": "broken" if each.broken else "holds",
                "sentence": each.sentence,
                "marks": each.marked,
                "missed": each.wrong,
            }
            for name, each in self.missed.items()
        ]
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
                "images": images,
                "classes": missed,
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
            "images": images,
            "classes": missed,
        }

    def _why_not(self, receipt: Receipt) -> str | None:
        if self.watch is None:
            return UNWATCHED
        if receipt.decision != ANSWER:
            return "only answers are watched, and the model did not answer here"
        if receipt.model != self.fingerprint or not receipt.promised:
            return "no promise stood behind this answer: its classes or its threshold were not the model's own"
        if receipt.image in self._images:
            return "this image was marked already, and an image counts once"
        return None

    def _take(self, mark: MarkRecord, own: bool = True) -> None:
        self._nonces.add(mark.nonce)
        if own and mark.true in self.missed and mark.image not in self._of_class:
            self._of_class.add(mark.image)
            gone = mark.answered != mark.true and mark.decision != UNSURE
            self.missed[mark.true] = self.missed[mark.true].mark(gone or mark.decision == NONE_OF_THESE)
        if mark.counted and self.watch is not None:
            self._images.add(mark.image)
            self.watch = self.watch.mark(not mark.right)

    @contextmanager
    def _keeping(self, mark: MarkRecord, image: bytes | None, format: str | None) -> Iterator[bool]:
        """Keep the image in its class, and nowhere else, if the mark is written; yields whether it is kept."""
        if self.keep is None or image is None or mark.true is None:
            yield False
            return
        folder = self.keep / (slug(mark.true) or "class")
        path = folder / f"{mark.image}.{SUFFIXES.get(format or '', 'img')}"
        others = set(self.keep.glob(f"*/{mark.image}.*"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, image)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise (NoRoomError if full else CalpromptError)(f"the image cannot be kept: {os_problem(error)}") from error
        try:
            yield True
        except CalpromptError:
            if path not in others:
                path.unlink(missing_ok=True)
            raise
        for other in others - {path}:
            other.unlink(missing_ok=True)
