"""Dividing the images before anything is learned: which tune and calibrate, and which are kept for promises.

    images ──┬── tune       prompts are learned on all of them; calibrators are fitted on cross-fitted predictions:
             │                fold 1  predicted by prompts that were tuned on folds 2, 3, …
             │                fold 2  predicted by prompts that were tuned on folds 1, 3, …
             └── held out   seen by nothing above: promises are made, and the model is checked, on these

What is divided are groups of images: copies of one picture, or pictures of one object, are one group, and an image of
which there is no other is a group by itself. Images of one group say the same thing again, so a promise rests on one
image of each group that is held out; and on as many of each class as keeps the proportions of the folder.

A promise needs a number of such images that follows from its arithmetic, whatever the model is. If there are too few,
holding out any would only cost images to learn from: the promise is refused, with how many more it would take.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calprompt.errors import SettingError
from calprompt.promises.conformal import as_fraction, images_needed
from calprompt.text import plural, shorten

USUAL, MOST = 0.3, 0.5  # of the groups of a class that are held out; more only if a promise needs it
LEFT = 2  # groups of a class that tune, if it has them, before any is held out
ROOM = 2.0  # times the fewest images that would do: a model that errs now and then needs more than the fewest
LARGEST = 1_000_000  # more images than this are not worth suggesting
ERROR, SETS, SETS_PER_CLASS = "error", "sets", "sets per class"


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

    def words(self, kind: str) -> str:
        """A promise in words.

        >>> Requests(target_error=0.05).words("error"), Requests(coverage=0.9).words("sets")
        ('at most 5 % of its answers are wrong', 'the set contains the truth 90 % of the time')
        """
        if kind == ERROR:
            return f"at most {percent(self.target_error or 0)} of its answers are wrong"
        sets = f"the set contains the truth {percent(self.coverage or 0)} of the time"
        return f"{sets}, for each class by itself" if kind == SETS_PER_CLASS else sets


@dataclass(frozen=True)
class Refusal:
    """A promise that is not made, before anything is learned.

    Attributes:
        kind: Which one: "error", "sets" or "sets per class".
        promise: The same in words.
        reason: Why.
        advice: What would help; empty if nothing would.
        needed: How many images in all would do; None if that cannot be said.
    """

    kind: str
    promise: str
    reason: str
    advice: str = ""
    needed: int | None = None

    @property
    def detail(self) -> str:
        """The reason and the advice."""
        return f"{self.reason}; {self.advice}" if self.advice else self.reason


@dataclass(frozen=True)
class Division:
    """Which images do what.

    Attributes:
        tune: Indices of the images that prompts are learned on.
        folds: For each image of `tune`, which fold it is in.
        promise: Indices of the images that promises and checks rest on, one of each group that is held out.
        unused: Indices of the other images that are held out.
        counts: Images of each class: (tuned on, promised on).
        refusals: Promises that cannot be made with so few images.
        notes: What else the user should know of the division.
        n_groups: How many groups the images are in.
    """

    tune: tuple[int, ...]
    folds: tuple[int, ...]
    promise: tuple[int, ...]
    unused: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    n_groups: int = 0

    @property
    def n_folds(self) -> int:
        """How many folds there are."""
        return max(self.folds, default=-1) + 1


@dataclass(frozen=True)
class Shares:
    """How many groups of each class are held out, and how many of these are promised on.

    Attributes:
        held: Groups of each class that are held out.
        promised: Of these, as many as keeps the proportions of the classes.
    """

    held: tuple[int, ...]
    promised: tuple[int, ...]

    @property
    def total(self) -> int:
        """Groups that are promised on."""
        return sum(self.promised)

    @classmethod
    def of(cls, counts: Sequence[int], share: float, most_tuned: int | None) -> Shares:
        """Hold out a share of every class, and what is more than may be tuned on.

        >>> Shares.of([20, 20, 1], 0.3, None).promised, Shares.of([1000, 100], 0.3, 64)
        ((6, 6, 0), Shares(held=(936, 36), promised=(360, 36)))
        """
        held = [min(math.floor(count * share + 0.5), max(0, count - LEFT)) for count in counts]
        if most_tuned is not None and share:
            held = [max(own, count - most_tuned) for own, count in zip(held, counts, strict=True)]
        least = min((own / count for own, count in zip(held, counts, strict=True) if own), default=0.0)
        promised = [
            min(own, max(1, math.floor(least * count + 0.5))) if own else 0
            for own, count in zip(held, counts, strict=True)
        ]
        return cls(tuple(held), tuple(promised))


def divide(
    labels: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,
    *,
    folds: int = 4,
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
        folds: Of the cross-fitting; fewer if there are fewer groups.
        most_tuned: Groups of a class that tune at most; the others are held out.
        held_out: Share of each class to hold out, instead of what the promises need; 0: none.
        groups: Images of one group stay together, such as copies of one picture; None: each is its own group.
        seed: Of the draw.

    Raises:
        SettingError: if there are too few images to do anything with.
    """
    _check(labels, class_names, held_out)
    members: dict[Any, list[int]] = {}
    for index, group in enumerate(range(len(labels)) if groups is None else groups):
        members.setdefault(group, []).append(index)
    if len(members) < 2:
        raise SettingError("all images are one group, so none can be held out; give groups of fewer images")
    units = list(members.values())
    unit_labels = [_main_label([labels[index] for index in unit]) for unit in units]
    counts = [unit_labels.count(label) for label in range(len(class_names))]
    shares, refusals = _shares(counts, class_names, requests, most_tuned, held_out)
    every_set = _in_every_set(class_names, requests, shares)
    rng = random.Random(f"{seed}/division")
    tuned, held, promised = _draw(units, unit_labels, labels, shares, rng)
    fold_of = _deal(tuned, unit_labels, folds, rng)
    pairs = sorted((index, fold_of[number]) for number in tuned for index in units[number])
    promise = sorted(rng.choice(units[number]) for number in promised)
    rest = {index for number in held for index in units[number]} - set(promise)
    tune = [index for index, _ in pairs]
    division = tuple(
        (sum(labels[i] == label for i in tune), sum(labels[i] == label for i in promise))
        for label in range(len(counts))
    )
    return Division(
        tuple(tune),
        tuple(fold for _, fold in pairs),
        tuple(promise),
        tuple(sorted(rest)),
        division,
        refusals,
        (*_notes(class_names, division, [list(labels).count(label) for label in range(len(counts))]), *every_set),
        len(units),
    )


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
        raise SettingError(f"held_out must be a share of the images, at least 0 and below 1; got {held_out}")


def _main_label(labels: list[int]) -> int:
    return max(sorted(set(labels)), key=labels.count)


def join_groups(*keys: Sequence[Any] | None) -> list[int]:
    """One number per image; images that share any of their keys have the same one.

    Args:
        *keys: Lists of one key per image; None is passed over.

    >>> join_groups(["a", "b", "a", "c"], [1, 2, 3, 2])
    [0, 1, 0, 1]
    """
    given = [list(each) for each in keys if each is not None]
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


def _shares(
    counts: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,
    most_tuned: int | None,
    fixed: float | None,
) -> tuple[Shares, tuple[Refusal, ...]]:
    """How many groups to hold out, and the promises that even that is too little for."""
    nothing = Shares((0,) * len(counts), (0,) * len(counts))
    limit = Shares.of(counts, MOST if fixed is None else fixed, most_tuned)
    refusals, wanted = [], []
    for kind, fewest in ((ERROR, requests.fewest_for_error), (SETS, requests.fewest_for_sets)):
        if not fewest:
            continue
        if limit.total >= fewest:
            wanted.append(fewest)
            continue
        needed = _enough(counts, fewest, most_tuned, fixed)
        reason = f"it takes {fewest} held-out images at least, and of {sum(counts)} images {limit.total} can be used"
        advice = "" if needed is None else f"it takes about {needed} images in all, or more"
        refusals.append(Refusal(kind, requests.words(kind), reason, advice, needed))
    if requests.per_class:
        refusals += _per_class_refusal(requests, limit, fixed)
    if fixed is not None:
        return limit, tuple(refusals)
    if not wanted:
        return nothing, tuple(refusals)
    if requests.per_class:
        return limit, tuple(refusals)
    for hundredths in range(round(100 * USUAL), round(100 * MOST) + 1, 5):
        shares = Shares.of(counts, hundredths / 100, most_tuned)
        if shares.total >= ROOM * max(wanted):
            return shares, tuple(refusals)
    return limit, tuple(refusals)


def _per_class_refusal(requests: Requests, limit: Shares, fixed: float | None) -> list[Refusal]:
    """Refuse the promise for each class by itself if no class has enough images."""
    fewest = requests.fewest_for_sets
    if any(promised >= fewest for promised in limit.promised):
        return []
    share = MOST if fixed is None else fixed
    advice = "" if not share else f"{math.ceil((fewest - 0.5) / share)} images of each class would do"
    reason = f"it takes {fewest} held-out images of a class, and no class has so many"
    return [Refusal(SETS_PER_CLASS, requests.words(SETS_PER_CLASS), reason, advice)]


def _in_every_set(class_names: Sequence[str], requests: Requests, shares: Shares) -> list[str]:
    """A note on classes that have too few images for a promise of their own, where others have enough."""
    fewest = requests.fewest_for_sets
    short = [name for name, promised in zip(class_names, shares.promised, strict=True) if promised < fewest]
    if not requests.per_class or not short or len(short) == len(class_names):
        return []
    few, are = ("it has", "is") if len(short) == 1 else ("they have", "are")
    return [f"{shorten(short)} {are} in every set per class, because {few} fewer than {fewest} held-out images"]


def _enough(counts: Sequence[int], fewest: int, most_tuned: int | None, fixed: float | None) -> int | None:
    """About how many images in the same proportions would be enough to promise on; None if no number would."""
    share = MOST if fixed is None else fixed
    total = sum(counts)
    size = total
    while share and size <= LARGEST:
        size = max(size + 1, math.ceil(size * 1.02))
        scaled = [max(count, round(count * size / total)) for count in counts]
        if Shares.of(scaled, share, most_tuned).total >= fewest:
            return sum(scaled)
    return None


def _draw(
    units: Sequence[Sequence[int]],
    unit_labels: Sequence[int],
    labels: Sequence[int],
    shares: Shares,
    rng: random.Random,
) -> tuple[list[int], list[int], list[int]]:
    """Numbers of the groups that tune, that are held out, and of the latter those that are promised on."""
    held: list[int] = []
    promised: list[int] = []
    for label, (out, used) in enumerate(zip(shares.held, shares.promised, strict=True)):
        own = [number for number, unit_label in enumerate(unit_labels) if unit_label == label]
        rng.shuffle(own)
        held += own[:out]
        promised += own[:used]
    chosen = set(held)
    tuned_labels = {labels[i] for number, unit in enumerate(units) if number not in chosen for i in unit}
    for number in held:  # groups of several classes could take away all that a class has to learn from
        back = {labels[index] for index in units[number]} - tuned_labels
        if back:
            chosen.discard(number)
            tuned_labels |= back
    tuned = [number for number in range(len(units)) if number not in chosen]
    return tuned, [number for number in held if number in chosen], [number for number in promised if number in chosen]


def _deal(tuned: Sequence[int], unit_labels: Sequence[int], folds: int, rng: random.Random) -> dict[int, int]:
    """A fold for each group that tunes, those of a class dealt out evenly; no fold is empty."""
    folds = min(folds, len(tuned))
    place: dict[int, int] = {}
    start = 0
    for label in sorted({unit_labels[number] for number in tuned}):
        own = [number for number in tuned if unit_labels[number] == label]
        rng.shuffle(own)
        for turn, number in enumerate(own):
            place[number] = (start + turn) % folds
        start += len(own)
    return place


def _notes(class_names: Sequence[str], division: Sequence[tuple[int, int]], counts: Sequence[int]) -> tuple[str, ...]:
    notes = []
    single = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if single:
        notes.append(
            f"{plural(len(single), 'class')} with one image ({shorten(single)}): prompts learn from it, but nothing "
            "can be checked or promised for images of it"
        )
    if any(promised for _, promised in division):
        left_out = [
            name
            for name, (_, promised), count in zip(class_names, division, counts, strict=True)
            if not promised and count > 1
        ]
        if left_out:
            notes.append(
                f"no image of {shorten(left_out)} could be held out, so promises do not cover images of "
                f"{'it' if len(left_out) == 1 else 'them'}"
            )
    largest, smallest = max(counts), min(counts)
    if largest >= 10 * smallest:
        notes.append(
            f"the classes are very unequal, {smallest} to {largest} images; promises hold for images in these "
            "proportions, so look at the classes one by one too"
        )
    return tuple(notes)


def plan_sentences(division: Division) -> list[str]:
    """What will be done with the images, before anything is learned."""
    tuned, promised, unused = len(division.tune), len(division.promise), len(division.unused)
    counts = [0] * len(division.counts)
    for label, (own, held) in enumerate(division.counts):
        counts[label] = own + held
    each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
    lines = [
        f"{plural(tuned + promised, 'image')} of {plural(len(counts), 'class')} ({each}): {tuned} tune the prompts "
        f"and, by {division.n_folds}-fold cross-fitting, calibrate; {promised or 'none'} "
        f"{'is' if promised == 1 else 'are'} held out to check it and to make promises."
    ]
    if unused:
        lines.append(
            f"{plural(unused, 'more image')} {'is' if unused == 1 else 'are'} not used: further images of groups that "
            "are held out, or more of a class than its share."
        )
    lines += [f"It cannot be promised that {refusal.promise}: {refusal.detail}." for refusal in division.refusals]
    return [*lines, *(f"Note: {note}." for note in division.notes)]


def percent(share: float) -> str:
    """A share as people write it.

    >>> percent(0.05), percent(0.999), percent(0.125), percent(0.999999)
    ('5 %', '99.9 %', '12.5 %', '99.9999 %')
    """
    return f"{100 * share:.6g} %"
