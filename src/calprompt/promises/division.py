"""Dividing the images before anything is learned: which tune and calibrate, and which are kept for promises.

    images ──┬── tune       prompts are learned on all of them; calibrators are fitted on cross-fitted predictions:
             │                fold 1  predicted by prompts that were tuned on folds 2, 3, …
             │                fold 2  predicted by prompts that were tuned on folds 1, 3, …
             └── held out   seen by nothing above: promises are made, and the model is checked, on these

What is divided are groups of images: copies of one picture, or pictures of one object, are one group, and an image of
which there is no other is a group by itself. Images of one group say the same thing again, so a promise rests on one
image of each group that is held out; and on as many of each class as keeps the proportions of the folder's images,
however many groups a class has and however large they are (`shares`).

A promise needs a number of such images that follows from its arithmetic, whatever the model is. If there are too few,
holding out any would only cost images to learn from: the promise is refused, with how many more it would take.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from calprompt.errors import SettingError
from calprompt.promises.groups import main_label
from calprompt.promises.requests import Refusal, Requests, Unseen
from calprompt.promises.sentences import classes_in_every_set, division_notes
from calprompt.promises.shares import SPARE, Sample, Stratum, choose_sample, draw_counts, size_limits
from calprompt.text import shorten


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
        unseen: Images that the held-out ones do not speak for.
    """

    tune: tuple[int, ...]
    folds: tuple[int, ...]
    promise: tuple[int, ...]
    unused: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    n_groups: int = 0
    unseen: Unseen = field(default_factory=Unseen)

    @property
    def n_folds(self) -> int:
        """How many folds there are."""
        return max(self.folds, default=-1) + 1


def divide(
    labels: Sequence[int],
    class_names: Sequence[str],
    requests: Requests,
    *,
    folds: int = 4,
    most_tuned: int | None = None,
    held_out: float | None = None,
    groups: Sequence[Any] | None = None,
    contents: Sequence[Any] | None = None,
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
        contents: What tells copies from other images, such as digests; copies count once. None: there are no copies.
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
    unit_labels = [main_label([labels[index] for index in unit]) for unit in units]
    sizes = [len(unit) if contents is None else len({contents[index] for index in unit}) for unit in units]
    rng = random.Random(f"{seed}/division")
    by_label = _by_label(range(len(units)), unit_labels)
    strata, eligible = _strata(by_label, sizes, _learned_from(units, unit_labels, labels), class_names, requests, rng)
    sample, refusals = choose_sample(strata, requests, most_tuned, held_out, len(labels) - sum(sizes))
    tuned, held, promised = _draw(by_label, eligible, sample, most_tuned, rng)
    fold_of = _deal(tuned, unit_labels, folds, rng)
    pairs = sorted((index, fold_of[number]) for number in tuned for index in units[number])
    promise = sorted(rng.choice(units[number]) for number in promised)
    rest = {index for number in held for index in units[number]} - set(promise)
    tune = [index for index, _ in pairs]
    used = [_counts([labels[index] for index in some], len(class_names)) for some in (tune, promise)]
    division = tuple(zip(*used, strict=True))
    totals = _counts(labels, len(class_names))
    notes = division_notes(class_names, totals, sample.unseen if promise else None)
    return Division(
        tuple(tune),
        tuple(fold for _, fold in pairs),
        tuple(promise),
        tuple(sorted(rest)),
        division,
        refusals,
        (*notes, *classes_in_every_set(class_names, requests, used[1])),
        len(units),
        sample.unseen,
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
        raise SettingError(
            f"must be a share of the images, at least 0 and below 1; got {held_out}", parameter="held_out"
        )


def _counts(labels: Sequence[int], n_classes: int) -> list[int]:
    """How many images each class has."""
    counts = Counter(labels)
    return [counts[label] for label in range(n_classes)]


def _by_label(numbers: Iterable[int], unit_labels: Sequence[int]) -> dict[int, list[int]]:
    """The groups of each class, in order."""
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
    spare = SPARE * min((requests.allowed(kind) for kind in requests.kinds), default=0.0)
    own_sizes = [[sizes[number] for number in by_label[label]] for label in range(len(class_names))]
    limits = size_limits(own_sizes, 0.0 if requests.per_class else spare)
    strata, eligible = [], set()
    for label, (name, limit, own) in enumerate(zip(class_names, limits, own_sizes, strict=True)):
        chosen = {n for n in by_label[label] if rng.randrange(limit) < sizes[n] and n not in tuned}
        strata.append(Stratum.of(name, own, limit, len(chosen)))
        eligible |= chosen
    return strata, eligible


def _draw(
    by_label: dict[int, list[int]], eligible: set[int], sample: Sample, most_tuned: int | None, rng: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Numbers of the groups that tune, that are held out, and of the latter those that are promised on."""
    tuned: list[int] = []
    held: list[int] = []
    promised: list[int] = []
    for label, count in enumerate(draw_counts(sample.size, sample.images, rng)):
        own = list(by_label[label])
        rng.shuffle(own)
        own.sort(key=lambda number: number not in eligible)
        promised += own[:count]
        most = len(own) if most_tuned is None or not sample.size else most_tuned
        first = max(count, len(own) - most)  # those that must tune come last
        held += own[:first]
        tuned += own[first:]
    return sorted(tuned), held, promised


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
