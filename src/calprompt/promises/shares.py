"""How many groups of each class are held out: as few as the promises need, as many as keeps the proportions.

A promise needs a number of images that follows from its arithmetic, whatever the model is. If there are too few,
holding out any would only cost images to learn from: the promise is refused, with how many more it would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calprompt.promises.requests import ERROR, SETS, SETS_PER_CLASS, Refusal, Requests

USUAL, MOST = 0.3, 0.5  # of the groups of a class that are held out; more only if a promise needs it
LEFT = 2  # groups of a class that tune, if it has them, before any is held out
ROOM = 2.0  # times the fewest images that would do: a model that errs now and then needs more than the fewest
LARGEST = 1_000_000  # more images than this are not worth suggesting


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


def choose_shares(
    counts: Sequence[int],
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
