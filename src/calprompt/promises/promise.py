"""Promises in words and as data, made on held-out images or refused with the reason and what would help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calprompt.metrics.inputs import ArrayLike
from calprompt.metrics.selective import choose_start, guaranteed_threshold
from calprompt.promises.conformal import SetRule, choose_temperature, fit_sets, set_sizes
from calprompt.promises.division import MOST, Refusal, Requests, error_words, percent, sets_words
from calprompt.promises.open_set import OpenSetRule
from calprompt.promises.rule import DecisionRule
from calprompt.text import plural

MADE, REFUSED, WITHDRAWN = "made", "refused", "withdrawn"


@dataclass(frozen=True)
class Promise:
    """Something that a model promises of its answers.

    Attributes:
        kind: "error", "sets" or "sets per class".
        text: The promise, in words.
        status: "made", "refused" or "withdrawn".
        detail: What it rests on and what it costs; or why it is refused or withdrawn, and what would help.
        images: How many held-out images it rests on.
        needed: About how many images in all it would take, if it is refused for want of images.
    """

    kind: str
    text: str
    status: str
    detail: str
    images: int = 0
    needed: int | None = None

    @property
    def sentence(self) -> str:
        """The promise with its status."""
        if self.status == MADE:
            return f"Promised: {self.text} ({self.detail})."
        return f"{'Not promised' if self.status == REFUSED else 'Withdrawn'}: {self.text}: {self.detail}."

    def withdrawn(self, reason: str) -> Promise:
        """The same promise, withdrawn if it was made."""
        return replace(self, status=WITHDRAWN, detail=reason) if self.status == MADE else self

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What promises are made from.

    Attributes:
        logits: Before calibration, [n, C].
        probabilities: Calibrated, [n, C].
        labels: True classes, [n].
    """

    logits: np.ndarray[Any, np.dtype[np.float64]]
    probabilities: np.ndarray[Any, np.dtype[np.float64]]
    labels: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, logits: ArrayLike, probabilities: ArrayLike, labels: ArrayLike) -> Evidence:
        """From tensors, arrays or lists."""
        return cls(
            np.asarray(logits, dtype=np.float64),
            np.asarray(probabilities, dtype=np.float64),
            np.asarray(labels, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def taken_by(self, open_set: OpenSetRule | None) -> Evidence:
        """The images that are taken for one of the classes."""
        if open_set is None or not len(self):
            return self
        rows = open_set.accepts(self.logits)
        return Evidence(self.logits[rows], self.probabilities[rows], self.labels[rows])

    @property
    def confidence(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of the most probable class, [n]."""
        return np.asarray(np.minimum(self.probabilities.max(axis=1), 1.0))

    @property
    def correct(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the most probable class is the true one, [n]."""
        return np.asarray(self.probabilities.argmax(axis=1) == self.labels)


def make_promises(
    requests: Requests,
    pilot: Evidence,
    held_out: Evidence,
    *,
    open_set: OpenSetRule | None = None,
    temperature: float = 1.0,
    refusals: Sequence[Refusal] = (),
    total: int = 0,
) -> tuple[DecisionRule, tuple[Promise, ...]]:
    """Thresholds and quantiles with what they promise.

    Args:
        requests: What is to be promised.
        pilot: Other images, on which the start of the tests and the temperature of sets are chosen.
        held_out: Images that the promises rest on; nothing else may have been chosen on them.
        open_set: The rule for none of these; images it rejects are not answered.
        temperature: The one of probabilities, around which that of sets is looked for.
        refusals: Promises that were refused before.
        total: How many images the user gave, to say how many it would take.
    """
    refused = {refusal.promise: refusal for refusal in refusals}
    rule, promises = DecisionRule(open_set=open_set), []
    text = error_words(requests)
    if requests.target_error is not None:
        if text in refused:
            promise = _refused("error", refused[text])
            threshold = None
        else:
            threshold, promise = _error_promise(requests, pilot, held_out, open_set, total)
        promises.append(promise)
        if threshold is None:  # calibrated probabilities err as often as they say; nothing vouches for that
            rule = replace(rule, min_confidence=1 - requests.target_error)
        else:
            rule = replace(rule, min_confidence=threshold, target_error=requests.target_error)
    if requests.coverage is not None:
        around = choose_temperature(pilot.logits, pilot.labels, requests.coverage, around=temperature)
        for per_class in (False, True) if requests.per_class else (False,):
            sets = fit_sets(
                held_out.logits, held_out.labels, requests.coverage, temperature=around, per_class=per_class
            )
            rule = replace(rule, sets=(*rule.sets, sets))
            name = f"{sets_words(requests)}{', for each class by itself' if per_class else ''}"
            promises.append(_sets_promise(name, sets, held_out, refused.get(name)))
    return rule, tuple(promises)


def _error_promise(
    requests: Requests, pilot: Evidence, held_out: Evidence, open_set: OpenSetRule | None, total: int
) -> tuple[float | None, Promise]:
    target, text = requests.target_error, error_words(requests)
    assert target is not None

    known, other = held_out.taken_by(open_set), pilot.taken_by(open_set)
    if not len(known) or not len(other):
        return None, Promise("error", text, REFUSED, "no image is taken for one of the classes", len(held_out))
    start = choose_start(other.confidence, other.correct, target, len(known))
    found = guaranteed_threshold(known.confidence, known.correct, target, requests.level, starts=[start])
    if found.threshold is None:
        share = float((other.confidence >= start).sum() / len(pilot))
        needed = _images_in_all(found.needed, share, total, len(held_out))
        advice = "" if needed is None else f"; about {needed} images in all would do, if this goes on"
        reason = (found.reason or "").replace("validation image", "held-out image")
        reason = reason.split("; at this")[0].split("; it would")[0]
        return None, Promise("error", text, REFUSED, f"{reason}{advice}", len(held_out), needed)
    detail = (
        f"{percent(requests.level)} sure; it answers from a confidence of {percent(found.threshold)} up, which is "
        f"{found.accepted} of {plural(len(held_out), 'held-out image')}, {found.wrong} of them wrong"
    )
    return found.threshold, Promise("error", text, MADE, detail, len(held_out))


def _images_in_all(needed: int | None, share: float, total: int, held: int) -> int | None:
    """How many images the user would have to give so that enough of the held-out ones, of which a share, are sure."""
    if needed is None or not total or not share:
        return None
    images = math.ceil(needed / share / max(held / total, MOST))
    return images if images > total else None


def _sets_promise(text: str, sets: SetRule, held_out: Evidence, refusal: Refusal | None) -> Promise:
    kind = "sets per class" if sets.per_class else "sets"
    if refusal is not None and (not sets.per_class or not sets.useful):
        return _refused(kind, refusal)
    if not sets.useful:
        return Promise(kind, text, REFUSED, "there are too few held-out images: the set is all classes", len(held_out))
    sizes = set_sizes(sets.sets(held_out.logits))
    detail = f"from {plural(len(held_out), 'held-out image')}; sets have {sizes['mean']:.1f} classes on average"
    if sets.per_class and not all(map(math.isfinite, sets.quantiles)):
        full = sum(not math.isfinite(q) for q in sets.quantiles)
        detail += f"; {plural(full, 'class')} with too few images {'is' if full == 1 else 'are'} in every set"
    return Promise(kind, text, MADE, detail, len(held_out))


def _refused(kind: str, refusal: Refusal) -> Promise:
    more = "" if refusal.needed is None else f"; about {refusal.needed} images in all would do"
    return Promise(kind, refusal.promise, REFUSED, f"{refusal.reason}{more}", 0, refusal.needed)
