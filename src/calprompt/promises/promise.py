"""Promises in words and as data, made on held-out images or refused with the reason and what would help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calprompt.metrics.inputs import ArrayLike
from calprompt.metrics.selective import GuaranteedThreshold, choose_start, guarantee_chance, guaranteed_threshold
from calprompt.promises.conformal import choose_temperature, fit_sets
from calprompt.promises.requests import (
    ERROR,
    MADE,
    NEVER_MISS,
    REFUSED,
    SETS,
    SETS_PER_CLASS,
    Promise,
    Requests,
    Unseen,
    counted_as_wrong,
    percent,
)
from calprompt.promises.rule import DecisionRule, Guard, OpenSetRule, SetRule
from calprompt.promises.shares import whole_folder
from calprompt.text import plural, shorten

LEAST_CHANCE = 0.25  # chance of a promise on errors from which on images are held out for it


@dataclass(frozen=True, eq=False)
class Evidence:
    """What promises are made from."""

    logits: np.ndarray[Any, np.dtype[np.float64]]  # before calibration, [n, C]
    probabilities: np.ndarray[Any, np.dtype[np.float64]]  # calibrated, [n, C]
    labels: np.ndarray[Any, np.dtype[np.int64]]  # true classes, [n]
    # the class to answer for each, [n]; None: the most probable
    chosen: np.ndarray[Any, np.dtype[np.int64]] | None = None

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

    def taken_by(self, rule: DecisionRule) -> Evidence:
        """The images that a rule answers if they are sure enough, and its answers to them."""
        if not len(self):
            return self
        rows = replace(rule, min_confidence=None).answered(self.logits, self.probabilities)
        p = self.probabilities[rows]
        return Evidence(self.logits[rows], p, self.labels[rows], rule.chosen(p))

    @property
    def confidence(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Probability of the class to answer, [n]."""
        own = self.probabilities.max(axis=1)
        if self.chosen is not None:
            own = self.probabilities[np.arange(len(self)), self.chosen]
        return np.asarray(np.minimum(own, 1.0))

    @property
    def correct(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the class to answer is the true one, [n]."""
        return np.asarray((self.probabilities.argmax(axis=1) if self.chosen is None else self.chosen) == self.labels)


def make_promises(
    requests: Requests,  # what is to be promised
    pilot: Evidence,  # other images, on which the start of the tests and the temperature of sets are chosen
    # images that the promises rest on, in the proportions of the classes; nothing else may have been chosen on them
    held_out: Evidence,
    *,
    open_set: OpenSetRule | None = None,  # the rule for none of these; images it rejects are not answered
    temperature: float = 1.0,  # the one of probabilities, around which that of sets is looked for
    refusals: Sequence[Promise] = (),  # promises that were refused before
    unseen: Unseen | None = None,  # what the held-out images do not speak for
    total: int = 0,  # how many images the user gave, to say how many it would take
    # of answering a class (column) where another is true (row); None: all errors cost the same
    costs: tuple[tuple[float, ...], ...] | None = None,
    class_names: Sequence[str] = (),  # what promises on a class call it
    guard: Evidence | None = None,  # images that promises never to miss a class rest on; None: there are none
    # for each class that must not be missed, the share of its images that these do not speak for
    unguarded: Sequence[float] = (),
) -> tuple[DecisionRule, tuple[Promise, ...]]:
    """Thresholds and quantiles with what they promise.

    Classes that must not be missed come first, on images of their own: what the other promises rest on has no part in
    their thresholds, so that these may be taken as given.
    """
    refused = {refusal.kind: refusal for refusal in refusals if refusal.kind != NEVER_MISS}
    unseen = unseen or Unseen()
    rule, promises = DecisionRule(open_set=open_set, costs=costs), []
    guards = _never_miss(requests, class_names, pilot, guard, held_out, unguarded, refusals)
    rule = replace(rule, guards=tuple(found for found, _ in guards))
    if requests.target_error is not None:
        threshold = None
        if ERROR in refused:
            promises.append(refused[ERROR])
        else:
            threshold, promise = _error_promise(requests, pilot, held_out, rule, unseen, total)
            promises.append(promise)
        if threshold is None:  # calibrated probabilities err as often as they say; nothing vouches for that
            rule = replace(rule, min_confidence=1 - requests.target_error)
        else:
            rule = replace(rule, min_confidence=threshold, target_error=requests.target_error)
    if requests.coverage is not None:
        around = choose_temperature(pilot.logits, pilot.labels, requests.coverage, around=temperature)
        whole = whole_folder(requests, SETS, len(held_out), unseen) is not False
        for kind in (SETS, SETS_PER_CLASS) if requests.per_class else (SETS,):
            sets = fit_sets(
                held_out.logits,
                held_out.labels,
                requests.coverage,
                temperature=around,
                per_class=kind == SETS_PER_CLASS,
                level=requests.coverage_level,
                by_class=True,
                uncovered=unseen.wrong(len(held_out), whole=whole),
            )
            rule = replace(rule, sets=(*rule.sets, sets))
            if kind in refused:
                promises.append(refused[kind])
            else:
                promises.append(_sets_promise(requests, sets, held_out, unseen, whole))
    return rule, (*promises, *(promise for _, promise in guards))


def _never_miss(
    requests: Requests,
    class_names: Sequence[str],
    pilot: Evidence,
    guard: Evidence | None,
    held_out: Evidence,
    unguarded: Sequence[float],
    refusals: Sequence[Promise],
) -> list[tuple[Guard, Promise]]:
    """From which probability on an image may be of a class that must not be missed, and what that promises.

    The threshold is the (k + 1)-th smallest probability of the class among n images of it, where k is how many of them
    may be missed (`Requests.most_missed`): a tolerance limit, whatever the model and the images are like. Where nothing
    can be promised, the share itself is taken of the cross-fitted images.
    """
    found = []
    for place, (name, share) in enumerate(requests.never_miss):
        label, text = class_names.index(name), requests.missed_words(name, share)
        own = np.empty(0) if guard is None else np.sort(guard.probabilities[guard.labels == label, label])
        missing = unguarded[place] if place < len(unguarded) else 0.0
        most = requests.most_missed(share, len(own), counted_as_wrong(len(own), missing)) if len(own) else None
        if most is None:
            crossed = np.sort(pilot.probabilities[pilot.labels == label, label])
            threshold = float(crossed[math.floor(share * len(crossed))]) if len(crossed) else 0.0
            why = next((each for each in refusals if each.text == text), None)
            detail = "too few images of it could be held out" if why is None else why.detail
            detail += f"; from a probability of {_rounded(threshold)} up an image is called nothing else all the same"
            needed = None if why is None else why.needed
            found.append((Guard(label, threshold, share), Promise(NEVER_MISS, text, REFUSED, detail, len(own), needed)))
            continue
        threshold = float(own[most])
        others = held_out.probabilities[held_out.labels != label]
        held = Guard(label, threshold, share, promised=True)
        rule = DecisionRule(guards=(held,))
        kept = int(((rule.guarded(others) == label) & (rule.chosen(others) != label)).sum()) if len(others) else 0
        detail = (
            f"{percent(requests.level)} sure, from {plural(len(own), 'held-out image')} of it; an image with a "
            f"probability of {_rounded(threshold)} or more is called this or unsure, which makes {kept} of "
            f"{plural(len(others), 'held-out image')} of other classes unsure"
        )
        found.append((held, Promise(NEVER_MISS, text, MADE, detail, len(own))))
    return found


def _rounded(share: float) -> str:
    """A probability in a few digits, also a small one.

    >>> _rounded(0.123456), _rounded(0.000012345)
    ('12.3 %', '0.00123 %')
    """
    return f"{100 * share:.3g} %"


def _error_promise(
    requests: Requests,
    pilot: Evidence,
    held_out: Evidence,
    rule: DecisionRule,
    unseen: Unseen,
    total: int,
) -> tuple[float | None, Promise]:
    target, text = requests.target_error, requests.words(ERROR)
    assert target is not None
    known, other = held_out.taken_by(rule), pilot.taken_by(rule)
    if not len(known) or not len(other):
        what = "no image could be held out" if not len(held_out) else "no image is taken for one of the classes"
        return None, Promise(ERROR, text, REFUSED, what, len(held_out))
    counted = unseen.wrong(len(held_out))  # as if they were answered, sure and wrong
    scaled = math.ceil(counted * len(pilot) / len(held_out))
    start = choose_start(*_with_wrong(other, scaled), target, len(known) + counted)
    found = guaranteed_threshold(*_with_wrong(known, counted), target, requests.level, starts=[start])
    if found.threshold is None:
        share = float((other.confidence >= start).sum() / len(pilot))
        needed = _images_in_all(found.needed, share, total, len(held_out))
        detail = f"{_why_not(found, counted, needed)}{_whole_words(unseen, counted)}"
        return None, Promise(ERROR, text, REFUSED, detail, len(held_out), needed)
    detail = (
        f"{percent(requests.level)} sure: of models that err more often, at most {percent(1 - requests.level)} would "
        f"pass this test; it answers from a confidence of {percent(found.threshold)} up, which is "
        f"{found.accepted - counted} of {plural(len(held_out), 'held-out image')}, {found.wrong - counted} of them "
        f"wrong{_whole_words(unseen, counted)}"
    )
    promise = Promise(ERROR, text, MADE, detail, len(held_out))
    return found.threshold, replace(promise, excluded=unseen.classes, excluded_share=unseen.share)


def doubtful_promise(
    requests: Requests, pilot: Evidence, images: int, unseen: Unseen, total: int, rule: DecisionRule
) -> Promise | None:
    """The refusal of the promise on errors if so many held-out images would hardly make it.

    It is judged by other images only, so that the held-out ones may then be learned from, or some of them be kept for
    other promises.
    """
    assert requests.target_error is not None
    other = pilot.taken_by(rule)
    if not len(other):
        return None
    expected = round(images * len(other) / len(pilot))
    chance, needed = guarantee_chance(
        other.confidence,
        other.correct,
        requests.target_error,
        expected,
        wrong=unseen.wrong(images),
        level=requests.level,
    )
    if chance >= LEAST_CHANCE:
        return None
    share = percent(round(chance, 2))
    detail = f"judged by cross-fitting, {images} held-out images have a chance of {share} to be enough for it"
    in_all = None if needed is None else math.ceil(needed * len(pilot) / len(other) * total / images)
    if in_all is None or in_all <= total:
        return Promise(ERROR, requests.words(ERROR), REFUSED, detail)
    return Promise(ERROR, requests.words(ERROR), REFUSED, f"{detail}; about {in_all} images in all would do", 0, in_all)


def _with_wrong(images: Evidence, counted: int) -> tuple[list[float], list[bool]]:
    """Confidences and whether they are right, with so many more that are sure and wrong."""
    return [*images.confidence.tolist(), *[1.0] * counted], [*images.correct.tolist(), *[False] * counted]


def _whole_words(unseen: Unseen, counted: int) -> str:
    """What is counted as wrong because no held-out image speaks for it."""
    if not counted:
        return ""
    parts = [f"the images of {unseen.which}, of which none could be held out"] if unseen.classes else []
    if unseen.crowded:
        parts.append(f"further images of unusually large groups ({percent(round(unseen.crowded, 4))} of the images)")
    return f"; {' and '.join(parts)}, count as wrong, like {plural(counted, 'more held-out image')}"


def _why_not(found: GuaranteedThreshold, counted: int, needed: int | None) -> str:
    assert found.tested is not None
    threshold, n, k = found.tested
    if n == counted:
        return f"no held-out image has a confidence of {percent(threshold)} or more"
    shown = f"the {plural(n - counted, 'held-out image')} with a confidence of {percent(threshold)} or more"
    errors = f"{k - counted} of {shown} are wrong"
    if found.is_hopeless and not counted:
        return f"{errors}, which is not below that: more images alone would not help"
    if k >= found.target_error * n:
        return f"{errors}, which are too few images to tell"
    return errors if needed is None else f"{errors}; at this error rate about {needed} images in all would do"


def _images_in_all(needed: int | None, share: float, total: int, held: int) -> int | None:
    """How many images the user would have to give so that enough of the held-out ones, of which a share, are sure."""
    if needed is None or not total or not share or not held:
        return None
    images = math.ceil(needed / share / (held / total))
    return images if images > total else None


def _sets_promise(requests: Requests, sets: SetRule, held_out: Evidence, unseen: Unseen, whole: bool) -> Promise:
    kind = SETS_PER_CLASS if sets.per_class else SETS
    text = requests.words(kind)
    if not sets.useful:
        return Promise(kind, text, REFUSED, "there are too few held-out images: the set is all classes", len(held_out))
    size = float(sets.sets(held_out.logits).sum(axis=1).mean())
    sure = "" if sets.level is None else f"{percent(sets.level)} sure; "
    detail = f"{sure}from {plural(len(held_out), 'held-out image')}; sets have {size:.1f} classes on average"
    if sets.per_class:
        full = sum(not math.isfinite(q) for q in sets.quantiles)
        if full:
            detail += f"; {plural(full, 'class')} with too few images {'is' if full == 1 else 'are'} in every set"
        return Promise(kind, text, MADE, detail, len(held_out))
    detail += _whole_words(unseen, unseen.wrong(len(held_out), whole=whole)) if whole else ""
    if not whole:
        text += f", for images of the other classes than {shorten(unseen.classes)}"
        detail += f"; nothing is promised for images of {unseen.which}, of which none could be held out"
    promise = Promise(kind, text, MADE, detail, len(held_out), whole=whole)
    return replace(promise, excluded=unseen.classes, excluded_share=unseen.share)
