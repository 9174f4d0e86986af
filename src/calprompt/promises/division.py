"""Dividing the images before anything is learned: which tune and calibrate, and which are kept for promises.

    images ──┬── tune       prompts are learned on all of them; calibrators are fitted on cross-fitted predictions:
             │                fold 1  predicted by prompts that were tuned on folds 2, 3, …
             │                fold 2  predicted by prompts that were tuned on folds 1, 3, …
             └── held out   seen by nothing above: promises are made, and the model is checked, on these

What is divided are groups of images: copies of one picture, or pictures of one object, are one group, and an image of
which there is no other is a group by itself. Images of one group say the same thing again, so a promise rests on one
image of each group that is held out; and on as many of each class as keeps the proportions of the folder's images,
however many groups a class has and however large they are (`shares`).

A class that must not be missed has held-out images of its own, beyond its share, one of each group again. They decide
from which probability on an image may be of it, so that the images of the other promises have no part in that.

A promise needs a number of such images that follows from its arithmetic, whatever the model is. If there are too few,
holding out any would only cost images to learn from: the promise is refused, with how many more it would take.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calprompt.errors import SettingError
from calprompt.promises.requests import ERROR, NEVER_MISS, REFUSED, SETS_PER_CLASS, Promise, Requests, Unseen
from calprompt.promises.shares import (
    LARGEST_SHARE,
    LEAST_TUNED,
    SAFETY_FACTOR,
    SPARE_SHARE,
    Sample,
    Stratum,
    choose_sample,
    draw_counts,
    size_limits,
)
from calprompt.registry import unknown
from calprompt.text import plural, shorten


@dataclass(frozen=True)
class Division:
    """Which images do what."""

    tune: tuple[int, ...]  # indices of the images that prompts are learned on
    folds: tuple[int, ...]  # for each image of `tune`, which fold it is in
    # indices of the images that promises and checks rest on, one of each group that is held out
    promise: tuple[int, ...]
    unused: tuple[int, ...]  # indices of the other images that are held out
    counts: tuple[tuple[int, int], ...]  # images of each class: (tuned on, promised on)
    refusals: tuple[Promise, ...] = ()  # promises that cannot be made with so few images
    notes: tuple[str, ...] = ()  # what else the user should know of the division
    n_groups: int = 0  # how many groups the images are in
    unseen: Unseen = field(default_factory=Unseen)  # images that the held-out ones do not speak for
    guard: tuple[int, ...] = ()  # indices of the images that promises never to miss a class rest on
    # for each class that must not be missed, the share of its images that these do not speak for
    unguarded: tuple[float, ...] = ()
    # the division without a promise on errors, where that holds out fewer: its held-out images are held out here too,
    # so that it may be chosen by what is learned from the others
    smaller: Division | None = None

    @property
    def n_folds(self) -> int:
        return max(self.folds, default=-1) + 1


def divide(
    labels: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,  # what is to be promised
    *,
    folds: int = 4,  # fewer if there are fewer groups
    most_tuned: int | None = None,  # groups of a class that tune at most; the others are held out
    held_out: float | None = None,  # share of each class to hold out, instead of what the promises need; 0: none
    # images of one group stay together, such as copies of one picture; None: each is its own group
    groups: Sequence[Any] | None = None,
    # what tells copies from other images, such as digests; copies count once; None: there are no copies
    contents: Sequence[Any] | None = None,
    seed: int = 0,
) -> Division:
    """Decide which images tune and which are held out."""
    _check(labels, class_names, held_out)
    members: dict[Any, list[int]] = {}
    for index, group in enumerate(range(len(labels)) if groups is None else groups):
        members.setdefault(group, []).append(index)
    if len(members) < 2:
        raise SettingError("all images are one group, so none can be held out; give groups of fewer images")
    units = list(members.values())
    unit_labels = [main_label([labels[index] for index in unit]) for unit in units]
    sizes = [len(unit) if contents is None else len({contents[index] for index in unit}) for unit in units]
    rng = random.Random(f"{seed}/division")
    by_label = _by_label(range(len(units)), unit_labels)
    strata, eligible = _strata(by_label, sizes, _learned_from(units, unit_labels, labels), class_names, requests, rng)
    mixed = {number for number, unit in enumerate(units) if len({labels[index] for index in unit}) > 1}
    guards = _Guards.of(requests, class_names, labels, [index for number in mixed for index in units[number]])
    guarding: list[int] = []
    for label in guards.shares:
        able = [number for number in by_label[label] if number in eligible and number not in mixed]
        rng.shuffle(able)
        own = able[: guards.wanted(label, len(by_label[label]), len(able), most_tuned, held_out)]
        guarding += own
        strata[label] = strata[label].without(len(own))
        by_label[label] = [number for number in by_label[label] if number not in set(own)]
    sample, refusals = choose_sample(strata, requests, most_tuned, held_out, len(labels) - sum(sizes))
    counts, less, smaller = draw_counts(sample.size, sample.images, rng), [0] * len(class_names), None
    other = random.Random(f"{seed}/smaller")
    if held_out is None and ERROR in requests.kinds and ERROR not in [refusal.kind for refusal in refusals]:
        smaller, _ = choose_sample(strata, replace(requests, target_error=None), most_tuned, None)
        less = draw_counts(smaller.size, smaller.images, other)
        if smaller.size >= sample.size:
            smaller, less = None, [0] * len(class_names)
    for _, own in sorted(by_label.items()):
        rng.shuffle(own)
        own.sort(key=lambda number: number not in eligible)  # those that must tune come last

    def division(sample: Sample, counts: Sequence[int], least: Sequence[int], rng: random.Random) -> Division:
        """Hold out so many of each class, and keep at least so many out of what tunes."""
        tuned: list[int] = []
        promised: list[int] = []
        most = most_tuned if sample.size else None
        for label, own in sorted(by_label.items()):
            promised += own[: counts[label]]
            tuned += own[max(counts[label], least[label], 0 if most is None else len(own) - most) :]
        fold_of = _deal(sorted(tuned), unit_labels, folds, rng)
        pairs = sorted((index, fold_of[number]) for number in tuned for index in units[number])
        promise, guard = (sorted(rng.choice(units[number]) for number in some) for some in (promised, guarding))
        tune = [index for index, _ in pairs]
        rest = set(range(len(labels))) - {*tune, *promise, *guard}
        used = [_counts([labels[index] for index in some], len(class_names)) for some in (tune, promise)]
        totals = _counts(labels, len(class_names))
        notes = division_notes(class_names, totals, sample.unseen if promise else None)
        return Division(
            tuple(tune),
            tuple(fold for _, fold in pairs),
            tuple(promise),
            tuple(sorted(rest)),
            tuple(zip(*used, strict=True)),
            (*refusals, *guards.refusals),
            (*notes, *classes_in_every_set(class_names, requests, used[1])),
            len(units),
            sample.unseen,
            tuple(guard),
            guards.unguarded,
        )

    found = division(sample, counts, less, rng)
    return found if smaller is None else replace(found, smaller=division(smaller, less, less, other))


@dataclass(eq=False)
class _Guards:
    """How many groups of each class that must not be missed are held out for that."""

    requests: Requests
    shares: dict[int, tuple[str, float]]
    unguarded: tuple[float, ...]
    counts: list[int]
    refusals: list[Promise] = field(default_factory=list)

    @classmethod
    def of(cls, requests: Requests, class_names: Sequence[str], labels: Sequence[int], mixed: Sequence[int]) -> _Guards:
        """Those that are asked for; images of groups with two labels are not spoken for, and count as missed."""
        for name, _ in requests.never_miss:
            if name not in class_names:
                raise unknown("class in never_miss", name, class_names)
        counts = _counts(labels, len(class_names))
        own = _counts([labels[index] for index in mixed], len(class_names))
        shares = {class_names.index(name): (name, share) for name, share in requests.never_miss}
        return cls(requests, shares, tuple(own[label] / counts[label] for label in shares), counts)

    def wanted(self, label: int, groups: int, eligible: int, most_tuned: int | None, fixed: float | None) -> int:
        """How many groups of a class to hold out for this; what cannot be promised is noted."""
        name, share = self.shares[label]
        fewest = self.requests.fewest_of_class(share, self.unguarded[list(self.shares).index(label)])
        part = LARGEST_SHARE if fixed is None else fixed
        most = math.floor(groups * part) if most_tuned is None else max(math.floor(groups * part), groups - most_tuned)
        can = max(0, min(eligible, most if part else 0, groups - LEAST_TUNED))
        if fewest is not None and can >= fewest:
            return min(max(fewest, can // 2), math.ceil(SAFETY_FACTOR * fewest))  # the rest is for other promises
        reason = f"too many images of {name} are in groups with images of other classes"
        needed = None
        if fewest is not None:
            reason = f"it takes {fewest} held-out images of it, one of a group, and {can} of {groups} can be used"
            needed = math.ceil(fewest / part) if part else None
            reason += "" if needed is None else f"; about {needed} images of it would do"
        text = self.requests.missed_words(name, share)
        self.refusals.append(Promise(NEVER_MISS, text, REFUSED, reason, needed=needed))
        return 0


def _check(labels: Sequence[int], class_names: Sequence[str], held_out: float | None) -> None:
    present = set(labels)
    empty = [name for label, name in enumerate(class_names) if label not in present]
    if empty:
        raise SettingError(f"there is no image of {shorten(map(repr, empty))}; every class needs at least one")
    if len(class_names) < 2:
        raise SettingError(
            f"all images are of one class, {class_names[0]!r}; a classifier needs two or more to tell apart"
        )
    if held_out is not None and not 0 <= held_out < 1:
        raise SettingError(
            f"must be a share of the images, at least 0 and below 1; got {held_out}", parameter="held_out"
        )


def _counts(labels: Sequence[int], n_classes: int) -> list[int]:
    counts = Counter(labels)
    return [counts[label] for label in range(n_classes)]


def _by_label(numbers: Iterable[int], unit_labels: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        members[unit_labels[number]].append(number)
    return members


def _learned_from(units: Sequence[Sequence[int]], unit_labels: Sequence[int], labels: Sequence[int]) -> set[int]:
    """Groups that must tune: a class whose images are all in groups of other classes is learned from one of them."""
    missing = set(labels) - set(unit_labels)
    first: dict[int, int] = {}
    for number, unit in enumerate(units) if missing else ():
        for index in unit:
            first.setdefault(labels[index], number)
    return {first[label] for label in missing}


def _strata(
    by_label: dict[int, list[int]],
    sizes: Sequence[int],
    tuned: set[int],
    class_names: Sequence[str],
    requests: Requests,
    rng: random.Random,
) -> tuple[list[Stratum], set[int]]:
    """The groups of each class, and those that may be held out: with a probability in proportion to their size."""
    spare = SPARE_SHARE * min((requests.allowed(kind) for kind in requests.kinds), default=0.0)
    own_sizes = [[sizes[number] for number in by_label[label]] for label in range(len(class_names))]
    limits = size_limits(own_sizes, 0.0 if requests.per_class or requests.never_miss else spare)
    strata, eligible = [], set()
    for label, (name, limit, own) in enumerate(zip(class_names, limits, own_sizes, strict=True)):
        chosen = {n for n in by_label[label] if rng.randrange(limit) < sizes[n] and n not in tuned}
        strata.append(Stratum.of(name, own, limit, len(chosen)))
        eligible |= chosen
    return strata, eligible


def _deal(tuned: Sequence[int], unit_labels: Sequence[int], folds: int, rng: random.Random) -> dict[int, int]:
    """A fold for each group that tunes, those of a class dealt out evenly; no fold is empty."""
    folds = min(folds, len(tuned))
    place: dict[int, int] = {}
    start = 0
    for _, own in sorted(_by_label(tuned, unit_labels).items()):
        rng.shuffle(own)
        for turn, number in enumerate(own):
            place[number] = (start + turn) % folds
        start += len(own)
    return place


def join_groups(*keys: Sequence[Any] | None) -> list[int]:
    """One number per image; images that share any of their keys have the same one.

    >>> join_groups(["a", "b", "a", "c"], [1, 2, 3, 2])
    [0, 1, 0, 1]
    """
    given = [list(each) for each in keys if each is not None]
    firsts: list[dict[Any, int]] = [{} for _ in given]
    pairs = (
        (first.setdefault(key, index), index)
        for first, each in zip(firsts, given, strict=True)
        for index, key in enumerate(each)
    )
    return connected(len(given[0]), pairs)


def connected(n: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """One number for each of n things; those that pairs lead from one to the other have the same one.

    >>> connected(4, [(0, 2), (3, 1)])
    [0, 1, 0, 1]
    """
    parent = list(range(n))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return [root(index) for index in range(n)]


def main_label(labels: Sequence[int]) -> int:
    """The label that most images of a group have; the smallest of several.

    >>> main_label([3, 1, 1, 3])
    1
    """
    if len(labels) == 1:
        return labels[0]
    counts = Counter(labels)
    return max(sorted(counts), key=counts.__getitem__)


def plan_sentences(division: Division) -> list[str]:
    """What will be done with the images, before anything is learned."""
    tuned, promised, unused = len(division.tune), len(division.promise), len(division.unused)
    guard = f" {len(division.guard)} more are held out for classes that must not be missed." if division.guard else ""
    counts = [0] * len(division.counts)
    for label, (own, held) in enumerate(division.counts):
        counts[label] = own + held
    each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
    lines = [
        f"{plural(tuned + promised, 'image')} of {plural(len(counts), 'class')} ({each}): {tuned} "
        f"to learn from and, by {division.n_folds}-fold cross-fitting, to calibrate with; {promised or 'none'} "
        f"{'is' if promised == 1 else 'are'} held out to check it and to make promises.{guard}"
    ]
    if unused:
        lines.append(
            f"{plural(unused, 'more image')} {'is' if unused == 1 else 'are'} not used: copies of held-out images or "
            "others of their groups, or more of a class than its share."
        )
    lines += [f"It cannot be promised that {refusal.text}: {refusal.detail}." for refusal in division.refusals]
    return [*lines, *(f"Note: {note}." for note in division.notes)]


def division_notes(class_names: Sequence[str], counts: Sequence[int], unseen: Unseen | None) -> tuple[str, ...]:
    """What else the user should know: classes with one image, without promises, or of very unequal sizes."""
    notes = []
    single = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if single:
        notes.append(
            f"{plural(len(single), 'class')} with one image ({shorten(single)}): it is learned from, but nothing "
            "can be checked for images of it"
        )
    if unseen is not None and unseen.classes:
        notes.append(f"no image of {unseen.which} could be held out: that takes three images, or groups of them")
    largest, smallest = max(counts), min(counts)
    if largest >= 10 * smallest:
        notes.append(
            f"the classes are very unequal, {smallest} to {largest} images; promises hold for images in these "
            "proportions, so look at the classes one by one too"
        )
    return tuple(notes)


def classes_in_every_set(class_names: Sequence[str], requests: Requests, promised: Sequence[int]) -> list[str]:
    """A note on classes that have too few images for a promise of their own, where others have enough."""
    fewest = (requests.fewest(SETS_PER_CLASS) if requests.per_class else None) or 0
    short = [name for name, own in zip(class_names, promised, strict=True) if own < fewest]
    if not short or len(short) == len(class_names):
        return []
    few, are = ("it has", "is") if len(short) == 1 else ("they have", "are")
    return [f"{shorten(short)} {are} in every set per class, because {few} fewer than {fewest} held-out images"]
