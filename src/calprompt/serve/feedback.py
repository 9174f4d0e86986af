"""Feedback: which answers were right or wrong. It counts once an image, is watched, and can be undone.

An image counts once: the same pixels again, in whatever file, say nothing new. What the server answered is in a receipt
that it signs and does not keep: base64url(JSON of the answer) . base64url(HMAC-SHA256 of it). Any process that knows
the secret can read it back, and nobody can give feedback on an answer that was never given.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, SettingError
from calprompt.promises import ANSWER, NONE_OF_THESE, UNSURE, ImageWatch, Watch
from calprompt.promises.image_watch import unwatched
from calprompt.promises.requests import Requests
from calprompt.serve.feedback_store import FeedbackRecord, FeedbackStore, KeptImages, ShadowAnswer, WatchEvent
from calprompt.serve.problems import ProblemError
from calprompt.serve.served_model import ServedModel

LONGEST_RECEIPT = 4096  # characters
SAVED_WITHIN = 5.0  # seconds; so much of the watch of images is lost at most if the process is killed
PROMISE, IMAGES = "promise", "images"  # what is watched
ACKNOWLEDGE, RESET = "acknowledge", "reset"  # what an admin can do about an alarm
UNWATCHED = "The model promises nothing about its errors, so there is nothing to watch."


@dataclass(frozen=True)
class Receipt:
    """An answer that was given."""

    nonce: str  # differs from receipt to receipt
    model: str  # fingerprint of the model that answered
    image: str  # sha256 of the pixels that the model saw
    decision: str  # "answer", "unsure" or "none of these"
    class_name: str  # the most probable class
    promised: bool  # whether the promise on errors stood behind it

    @classmethod
    def of(cls, model: str, pixels: bytes, decision: str, class_name: str, promised: bool) -> Receipt:
        return cls(secrets.token_hex(8), model, hashlib.sha256(pixels).hexdigest(), decision, class_name, promised)


def sign(receipt: Receipt, secret: bytes) -> str:
    """The receipt as clients get it; all processes that serve a version share its secret."""
    body = _encode(json.dumps(vars(receipt), ensure_ascii=False, separators=(",", ":")).encode())
    return f"{body}.{_signature(body, secret)}"


def read_receipt(text: str, secret: bytes) -> Receipt | None:
    """The receipt that a client gave back; None if it was signed with another secret."""
    body, _, signature = text.partition(".")
    own = _signature(body, secret).encode()
    if len(text) > LONGEST_RECEIPT or not hmac.compare_digest(signature.encode("utf-8", "replace"), own):
        return None
    found = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    return Receipt(**json.loads(found))


def _signature(body: str, secret: bytes) -> str:
    return _encode(hmac.new(secret, body.encode("utf-8", "replace"), hashlib.sha256).digest()[:16])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class FeedbackBook:
    """All feedback on a served model; safe to use from several threads."""

    def __init__(
        self,
        model: ServedModel,
        *,
        false_alarms: float = 0.01,
        path: str | Path | None = None,
        keep: KeptImages | None = None,
        image_path: str | Path | None = None,
    ) -> None:
        self.fingerprint, self.view = model.fingerprint, model.view
        self._fresh = Watch.of(model.rule, false_alarms) if model.rule.promised else None
        self._fresh_missed = Watch.of_classes(model.rule, model.labels, false_alarms)
        self.keep = keep
        target = None if self._fresh is None else self._fresh.target_error
        self._store = FeedbackStore(None if path is None else Path(path).expanduser(), model.fingerprint, target)
        self.secret = self._store.secret
        self._lock = threading.RLock()
        self.watch: Watch | None = None
        self._labelled: set[str] = set()
        self._replay()
        if keep is not None:
            keep.claims.append(self._is_labelled)
        self._image_record, self._false_alarms = model.image_watch, false_alarms
        self.images = self._fresh_images()
        self._not_watched = model.not_watched
        self._image_path = None if image_path is None else Path(image_path).expanduser()
        self._timer: threading.Timer | None = None
        self._shadow_answers: list[ShadowAnswer] = []
        if self._image_path is not None:
            if self.images is None:
                raise SettingError(f"{self._image_path} has nothing to keep. {model.not_watched}", parameter="watch")
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
        author: str = "",
    ) -> dict[str, Any]:
        """Take feedback on an answer; returns whether it counts, why not, and the state of the watch after it."""
        if right and class_name not in (None, receipt.class_name):
            raise SettingError(
                f"must be {receipt.class_name!r} if the answer is right, got {class_name!r}", parameter="class_name"
            )
        if not right and class_name == receipt.class_name:
            raise SettingError(
                f"must be another than {receipt.class_name!r} if the answer is wrong", parameter="class_name"
            )
        with self._lock:
            if receipt.nonce in self._authors:
                raise ProblemError(409, "there is feedback on this answer already; undo it first to change it")
            reason = self._why_not(receipt)
            true, is_own = receipt.class_name if right else class_name, receipt.model == self.fingerprint
            told = (receipt.nonce, receipt.image, receipt.decision, receipt.class_name, right, true)
            record = FeedbackRecord(*told, reason is None, time.time(), author, is_own)
            keeping: AbstractContextManager[Any] = nullcontext()
            kept = self.keep is not None and image is not None and true is not None
            if self.keep is not None and image is not None and true is not None:
                keeping = self.keep.keeping(record.image, true, image, format)
            with keeping:
                self._store.add(record)
                self._remember(record)
            if record.counted and self.watch is not None:
                self.watch = self.watch.mark(not right)
            return {"counted": reason is None, "reason": reason, "kept": kept, "watch": self.state()}

    def undo(self, receipt: Receipt, *, author: str = "", is_admin: bool = True) -> dict[str, Any]:
        """Take feedback back, one's own or, as an admin, anybody's; returns the state of the watch after it."""
        with self._lock:
            if receipt.nonce not in self._authors:
                raise ProblemError(404, "there is no feedback on this answer")
            if not is_admin and self._authors[receipt.nonce] != author:
                raise ProblemError(
                    403, "this feedback was given with another key; only that key or an admin can undo it"
                )
            self._store.undo(receipt.nonce, author=author, time=time.time())
            self._replay()
            if self.keep is not None:
                self.keep.release(receipt.image)
            return self.state()

    def handle_alarm(self, watch: str, action: str, note: str, *, author: str = "") -> dict[str, Any]:
        """Acknowledge an alarm, or restart a watch; returns the state after it."""
        with self._lock:
            if (self.watch if watch == PROMISE else self.images) is None:
                raise SettingError(f"there is no watch of {watch}", parameter="watch")
            event = self._store.add_event(WatchEvent(watch, action, note, time.time(), author))
            self._events.append(event)
            if action == RESET and watch == PROMISE:
                self._replay()
            elif action == RESET:
                self.images = self._fresh_images()
                self.save()
            return self.state()

    def see(self, scores: Sequence[float], digest: str) -> None:
        """Watch an image that was answered. The file is written within seconds, and at once for an alarm."""
        with self._lock:
            if self.images is None:
                return
            before = self.images.changed
            self.images.see_scores([scores], [digest])
            if self.images.changed != before:
                self.save()
            elif self._image_path is not None:
                self._save_soon()

    def add_shadow_answer(self, answer: ShadowAnswer) -> None:
        """Note how the model and another version answered an image; it is written within seconds."""
        with self._lock:
            self._shadow_answers.append(answer)
            self._save_soon()

    def compare(self, version: str) -> dict[str, Any]:
        """Where another version answered differently, and which of the two was right by the feedback."""
        with self._lock:
            self.save()
            return compared(version, self._store.shadow_answers(version))

    def close(self) -> None:
        """Write what is not written yet, and let go of the file."""
        with self._lock:
            if self.keep is not None and self._is_labelled in self.keep.claims:
                self.keep.claims.remove(self._is_labelled)
            try:
                self.save()
            finally:
                self._store.close()

    def _fresh_images(self) -> ImageWatch | None:
        record = self._image_record
        return None if record is None else ImageWatch.from_record(record, false_alarms=self._false_alarms)

    def _on_timer(self) -> None:
        try:
            self.save()
        except CalpromptError as error:
            logging.getLogger(__name__).warning("%s", error)

    def _save_soon(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(SAVED_WITHIN, self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def save(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shadow_answers:
                self._store.add_shadow_answers(self._shadow_answers)
                self._shadow_answers = []
            if self._image_path is not None and self.images is not None:
                self.images.save(self._image_path)

    def state(self) -> dict[str, Any]:
        """Both watches as plain data."""
        with self._lock:
            images = unwatched(self._not_watched) if self.images is None else self.images.state()
            found: dict[str, Any] = {"status": "unwatched", "sentence": UNWATCHED, "feedback": 0, "wrong": 0}
            found |= dict.fromkeys(("target_error", "false_alarm_rate", "evidence", "alarm", "broken_at"))
            if self.watch is not None:
                watch = self.watch
                found = {**_told(watch), "wrong": watch.wrong, "target_error": watch.target_error}
                found |= {"false_alarm_rate": watch.false_alarms, "alarm": 1 / watch.false_alarms}
                found |= {"evidence": watch.evidence, "broken_at": watch.broken_at}
            missed = [
                {"class_name": name, "promise": Requests().missed_words(name, each.target_error), "missed": each.wrong}
                | _told(each)
                for name, each in self.missed.items()
            ]
            return {**found, **self._handled(PROMISE), "images": images | self._handled(IMAGES), "classes": missed}

    def _handled(self, watch: str) -> dict[str, Any]:
        """What admins did about the alarms of a watch: the last reset, and the last acknowledgement since then."""
        last: dict[str, dict[str, Any] | None] = {"acknowledged": None, "reset": None}
        for event in self._events:
            if event.watch == watch:
                found = {"time": event.time, "author": event.author, "note": event.note}
                last = {**last, "acknowledged": found}
                if event.action == RESET:
                    last = {"acknowledged": None, "reset": found}
        return last

    def _why_not(self, receipt: Receipt) -> str | None:
        if self.watch is None:
            return UNWATCHED
        if receipt.decision != ANSWER:
            return "only answers are watched, and the model did not answer here"
        if receipt.model != self.fingerprint or not receipt.promised:
            return "no promise stood behind this answer: its classes or its threshold were not the model's own"
        if receipt.image in self._counted:
            return "there is feedback on this image already, and an image counts once"
        return None

    def _replay(self) -> None:
        """Everything that follows from the records, since the last reset of the watch."""
        self._authors: dict[str, str] = {}
        self._counted: set[str] = set()
        self._of_class: set[str] = set()
        self.missed = dict(self._fresh_missed)
        self._events = self._store.events()
        start = max(
            (event.after for event in self._events if (event.watch, event.action) == (PROMISE, RESET)), default=0
        )
        wrong = []
        records = list(self._store.records())
        for number, record in records:
            self._remember(record, is_watched=number > start)
            if record.counted and number > start:
                wrong.append(not record.right)
        self._labelled = {record.image for _, record in records if record.true is not None}  # others may read it now
        self.watch = None if self._fresh is None else self._fresh.mark_all(wrong)

    def _is_labelled(self, digest: str) -> bool:
        return digest in self._labelled

    def _remember(self, record: FeedbackRecord, is_watched: bool = True) -> None:
        if is_watched and record.own and record.true in self.missed and record.image not in self._of_class:
            self._of_class.add(record.image)
            gone = record.answered != record.true and record.decision != UNSURE
            self.missed[record.true] = self.missed[record.true].mark(gone or record.decision == NONE_OF_THESE)
        self._authors[record.nonce] = record.author
        if record.true is not None:
            self._labelled.add(record.image)
        if record.counted:
            self._counted.add(record.image)


def _told(watch: Watch) -> dict[str, Any]:
    return {"status": "broken" if watch.broken else "holds", "sentence": watch.sentence, "feedback": watch.marked}


SHOWN_DIFFERENCES = 100  # of a comparison, the newest first
CLEAR = 20.0  # evidence with which one version is said to be better: a chance of 5 % at most if none is


def compared(version: str, rows: Iterable[tuple[ShadowAnswer, bool | None, str | None]]) -> dict[str, Any]:
    """What answers of two versions on the same images say, with whether the first was right and the true class."""
    counts = dict.fromkeys(
        ("images", "different", "told", "right", "shadow_right", "only_right", "only_shadow_right"), 0
    )
    differences: list[dict[str, Any]] = []
    for answer, was_right, true in rows:
        same = answer.class_name == answer.shadow_class_name
        right = was_right if true is None else answer.class_name == true
        shadow_right = (was_right if same else None) if true is None else answer.shadow_class_name == true
        counts["images"] += 1
        counts["different"] += not same
        if right is not None and shadow_right is not None:
            counts["told"] += 1
            counts["right"] += right
            counts["shadow_right"] += shadow_right
            counts["only_right"] += right and not shadow_right
            counts["only_shadow_right"] += shadow_right and not right
        if not same and len(differences) < SHOWN_DIFFERENCES:
            differences.append({**vars(answer), "true": true, "right": right, "shadow_right": shadow_right})
    a, b = counts["only_right"], counts["only_shadow_right"]
    n = a + b
    evidence = math.exp(min(700.0, n * math.log(2) + math.lgamma(a + 1) + math.lgamma(b + 1) - math.lgamma(n + 2)))
    verdict = "too few to tell" if evidence < CLEAR else "better" if b > a else "worse"
    sentence = (
        f"Version {version} named another class on {counts['different']} of {counts['images']} images. Of "
        f"{counts['told']} with feedback, the active version was right on {counts['right']} and version {version} on "
        f"{counts['shadow_right']}: {verdict}."
    )
    return {"version": version, **counts, "evidence": evidence, "verdict": verdict, "sentence": sentence} | {
        "differences": differences
    }
