"""Dividing the images before anything is learned: which tune and calibrate, and which are kept for promises.

    images ──┬── tune       prompts are learned on all of them; calibrators are fitted on cross-fitted predictions:
             │                fold 1  predicted by prompts that were tuned on folds 2, 3, …
             │                fold 2  predicted by prompts that were tuned on folds 1, 3, …
             └── held out   seen by nothing above: promises are made, and the model is checked, on these

A promise needs a number of held-out images that follows from its arithmetic, whatever the model is. If there are too
few, holding out any would only cost images to learn from: the promise is refused, with how many more it would take.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from calprompt.errors import SettingError
from calprompt.promises.conformal import as_fraction, images_needed
from calprompt.text import plural, shorten

USUAL, MOST = 0.3, 0.5  # of the images of a class that are held out; more only if a promise needs it
LEFT = 2  # images of a class that tune, if it has them, before any is held out
ROOM = 2.0  # times the fewest images that would do: a model that errs now and then needs more than the fewest


@dataclass(frozen=True)
class Requests:
    """What the user wants to be promised.

    Attributes:
        target_error: The largest error rate among answered images; None: no such promise.
        coverage: How often the true class is in the prediction set; None: no such promise.
        per_class: Promise the coverage for each class by itself too.
        level: How sure the promise on errors is.
    """

    target_error: float | None = None
    coverage: float | None = None
    per_class: bool = False
    level: float = 0.95

    def __post_init__(self) -> None:
        for name in ("target_error", "coverage", "level"):
            if getattr(self, name) is not None:
                as_fraction(name, getattr(self, name))
        if self.per_class and self.coverage is None:
            raise SettingError("per_class is about prediction sets; give coverage too, such as coverage=0.9")

    @property
    def fewest_for_error(self) -> int:
        """Held-out images that the promise on errors takes if all of them are answered, and rightly.

        >>> Requests(target_error=0.05).fewest_for_error, Requests(target_error=0.1).fewest_for_error
        (59, 29)
        """
        if self.target_error is None:
            return 0
        return math.ceil(math.log(1 - self.level) / math.log1p(-self.target_error))

    @property
    def fewest_for_sets(self) -> int:
        """Held-out images with which a set can leave out a class."""
        return 0 if self.coverage is None else images_needed(self.coverage)


@dataclass(frozen=True)
class Refusal:
    """A promise that is not made, before anything is learned.

    Attributes:
        promise: Which one, in words.
        reason: Why.
        needed: How many images in all would do; None if that cannot be said.
    """

    promise: str
    reason: str
    needed: int | None = None


@dataclass(frozen=True)
class Division:
    """Which images do what.

    Attributes:
        tune: Indices of the images that prompts are learned on.
        held_out: Indices of the images that nothing is learned on.
        folds: For each image of `tune`, which fold it is in.
        counts: Images of each class: (tuned on, held out).
        refusals: Promises that cannot be made with so few images.
        notes: What else the user should know of the division.
    """

    tune: tuple[int, ...]
    held_out: tuple[int, ...]
    folds: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_folds(self) -> int:
        """How many folds there are."""
        return max(self.folds, default=-1) + 1

    @property
    def unpromised(self) -> tuple[int, ...]:
        """Classes without a held-out image, for which nothing is promised; none if nothing is held out at all."""
        return tuple(label for label, (_, held) in enumerate(self.counts) if not held) if self.held_out else ()


@dataclass
class _Share:
    """How many images of each class are held out, for a share of them."""

    counts: Sequence[int]
    most_tuned: int | None
    share: float
    held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for count in self.counts:
            held = min(math.floor(count * self.share + 0.5), max(0, count - LEFT))
            if self.most_tuned is not None:
                held = max(held, count - self.most_tuned)
            self.held.append(held)

    @property
    def total(self) -> int:
        return sum(self.held)


def divide(
    labels: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,
    *,
    folds: int = 5,
    most_tuned: int | None = None,
    held_out: float | None = None,
    groups: Sequence[Any] | None = None,
    seed: int = 0,
) -> Division:
    """Decide which images tune and which are held out.

    Args:
        labels: Of the images.
        class_names: Of the labels.
        requests: What is to be promised.
        folds: Of the cross-fitting; fewer if there are fewer images.
        most_tuned: Images of a class that tune at most; the others are held out.
        held_out: Share of each class to hold out, instead of what the promises need; 0: none.
        groups: Images of one group stay together, such as copies of one picture; None: each is its own group.
        seed: Of the draw.

    Raises:
        SettingError: if there are too few images to do anything with.
    """
    counts = [0] * len(class_names)
    for label in labels:
        counts[label] += 1
    empty = [name for name, count in zip(class_names, counts, strict=True) if not count]
    if empty:
        raise SettingError(f"there is no image of {shorten(map(repr, empty))}; every class needs at least one")
    if len(class_names) < 2:
        raise SettingError(
            f"all images are of one class, {class_names[0]!r}; a classifier needs two or more to tell apart"
        )
    if held_out is not None and not 0 <= held_out < 1:
        raise SettingError(f"held_out must be a share of the images, at least 0 and below 1; got {held_out}")
    share, refusals = _share(counts, class_names, requests, most_tuned, held_out)
    keys = list(range(len(labels))) if groups is None else list(groups)
    rng = random.Random(f"{seed}/division")
    tune, held = _draw(labels, keys, share.held if share is not None else [0] * len(counts), rng)
    own = Counter(labels[index] for index in tune), Counter(labels[index] for index in held)
    division = tuple((own[0][label], own[1][label]) for label in range(len(counts)))
    return Division(
        tuple(tune),
        tuple(held),
        _folds(labels, keys, tune, folds, rng),
        division,
        refusals,
        _notes(class_names, division, counts),
    )


def join_groups(*keys: Sequence[Any] | None) -> list[int]:
    """One number per image; images that share any of their keys have the same one.

    Args:
        *keys: Lists of one key per image; None is passed over.

    >>> join_groups(["a", "b", "a", "c"], [1, 2, 3, 2])
    [0, 1, 0, 1]
    """
    given = [each for each in keys if each is not None]
    parent = list(range(len(given[0])))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    for each in given:
        first: dict[Any, int] = {}
        for index, key in enumerate(each):
            parent[root(index)] = root(first.setdefault(key, index))
    return [root(index) for index in range(len(parent))]


def _share(
    counts: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,
    most_tuned: int | None,
    fixed: float | None,
) -> tuple[_Share | None, tuple[Refusal, ...]]:
    """How many images to hold out, and the promises that even that is too little for; None: hold out nothing."""
    usual = _Share(counts, most_tuned, USUAL if fixed is None else fixed)
    limit = _Share(counts, most_tuned, MOST) if fixed is None else usual
    refusals, wanted = [], []
    total = sum(counts)
    for promise, fewest in (
        (error_words(requests), requests.fewest_for_error),
        (sets_words(requests), requests.fewest_for_sets),
    ):
        if not fewest:
            continue
        if limit.total >= fewest:
            wanted.append(fewest)
            continue
        needed = math.ceil(fewest / (MOST if fixed is None else max(fixed, 1e-9)))
        refusals.append(
            Refusal(
                promise,
                f"it takes {fewest} held-out images at least, and of {total} images {limit.total} can be held out",
                needed,
            )
        )
    if requests.per_class:
        short = [name for name, held in zip(class_names, limit.held, strict=True) if held < requests.fewest_for_sets]
        if short:
            each = math.ceil(requests.fewest_for_sets / MOST)
            refusals.append(
                Refusal(
                    f"{sets_words(requests)}, for each class by itself",
                    f"it takes {requests.fewest_for_sets} held-out images of a class, and {shorten(short)} "
                    f"{'has' if len(short) == 1 else 'have'} fewer; their sets are all classes",
                    each * len(counts),
                )
            )
    if fixed is not None:
        return usual if usual.total else None, tuple(refusals)
    if not wanted:
        return None, tuple(refusals)
    if requests.per_class and requests.fewest_for_sets:
        return limit, tuple(refusals)
    for percent in range(round(100 * USUAL), round(100 * MOST) + 1, 5):
        share = _Share(counts, most_tuned, percent / 100)
        if share.total >= ROOM * max(wanted):
            return share, tuple(refusals)
    return limit, tuple(refusals)


def _draw(
    labels: Sequence[int], groups: Sequence[Any], held: Sequence[int], rng: random.Random
) -> tuple[list[int], list[int]]:
    """Indices that tune and that are held out; a group goes to one side as a whole."""
    members: dict[Any, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    order = list(members)
    rng.shuffle(order)
    left, out = list(held), []
    for group in order:
        own = Counter(labels[index] for index in members[group])
        if all(left[label] >= count for label, count in own.items()):
            for label, count in own.items():
                left[label] -= count
            out += members[group]
    chosen = set(out)
    return [index for index in range(len(labels)) if index not in chosen], sorted(out)


def _folds(
    labels: Sequence[int], groups: Sequence[Any], tune: Sequence[int], folds: int, rng: random.Random
) -> tuple[int, ...]:
    """A fold for each image that tunes, the images of a class dealt out evenly, groups together."""
    folds = min(folds, len({groups[index] for index in tune}))
    if folds < 2:
        return (0,) * len(tune)
    place: dict[Any, int] = {}
    start = 0
    for label in sorted({labels[index] for index in tune}):
        own = list(dict.fromkeys(groups[index] for index in tune if labels[index] == label))
        rng.shuffle(own)
        for number, group in enumerate(own):
            place.setdefault(group, (start + number) % folds)
        start += len(own)
    return tuple(place[groups[index]] for index in tune)


def _notes(class_names: Sequence[str], division: Sequence[tuple[int, int]], counts: Sequence[int]) -> tuple[str, ...]:
    notes = []
    single = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if single:
        notes.append(
            f"{plural(len(single), 'class')} with one image ({shorten(single)}): prompts learn from it, but nothing "
            "can be checked or promised for it"
        )
    unheld = [
        name
        for name, (_, held), count in zip(class_names, division, counts, strict=True)
        if not held and count > 1 and any(own for _, own in division)
    ]
    if unheld:
        notes.append(f"no image of {shorten(unheld)} could be held out, so nothing is promised for it")
    largest, smallest = max(counts), min(counts)
    if largest >= 10 * smallest:
        notes.append(
            f"the classes are very unequal, {smallest} to {largest} images; what is promised holds for images in these "
            "proportions, so look at the classes one by one too"
        )
    return tuple(notes)


def plan_sentences(division: Division) -> list[str]:
    """What will be done with the images, before anything is learned."""
    tuned, held = len(division.tune), len(division.held_out)
    counts = [tuned + held for tuned, held in division.counts]
    each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
    lines = [
        f"{plural(tuned + held, 'image')} of {plural(len(counts), 'class')} ({each}): {tuned} tune the prompts and, by "
        f"{division.n_folds}-fold cross-fitting, calibrate; {held or 'none'} {'is' if held == 1 else 'are'} held out "
        "to check it and to make promises."
    ]
    for refusal in division.refusals:
        more = "" if refusal.needed is None else f"; about {refusal.needed} images in all would do"
        lines.append(f"It cannot be promised that {refusal.promise}: {refusal.reason}{more}.")
    return [*lines, *(f"Note: {note}." for note in division.notes)]


def error_words(requests: Requests) -> str:
    """The promise on errors, in words.

    >>> error_words(Requests(target_error=0.05))
    'at most 5 % wrong among what it answers'
    """
    return (
        "" if requests.target_error is None else f"at most {percent(requests.target_error)} wrong among what it answers"
    )


def sets_words(requests: Requests) -> str:
    """The promise on prediction sets, in words.

    >>> sets_words(Requests(coverage=0.9))
    'the set contains the truth 90 % of the time'
    """
    return "" if requests.coverage is None else f"the set contains the truth {percent(requests.coverage)} of the time"


def percent(share: float) -> str:
    """A share as people write it.

    >>> percent(0.05), percent(0.999), percent(0.125)
    ('5 %', '99.9 %', '12.5 %')
    """
    return f"{100 * share:.4g} %"
