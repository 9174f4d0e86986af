"""How many groups of each class promises rest on: as few as they need, in the proportions of the folder's images.

    future image      of class c with the share that c has of the folder's images; of a new group of that class, large
                      groups in proportion to their images
    held-out images   one image of each held-out group, and n · share of class c: rounded at random, to the number below
                      or above, so that every class has its share on average

A group of m images stands for m images. So of two groups of a class, the one with twice as many images is held out
twice as often: each may be held out with probability m / limit, where the limit is the largest size (`size_limits`).
A few groups that are far larger than the others would leave hardly any; if the images beyond a smaller limit are a
tenth or less of what may be wrong, the smaller limit is taken, and they count as wrong, like classes of which none is
held out.

The random rounding is pivotal sampling (Deville and Tillé, 1998), which is strongly Rayleigh (Brändén and Jonasson,
2012): a class that is not drawn makes room for one other image at most, and how many of the images have some property
is distributed as a sum of independent indicators. So the bounds of `conformal` hold. The test of the promise on errors
is exact for images that are drawn each by itself; drawn in proportion, the counts that it looks at vary less.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from calprompt.metrics.binomial import log_binomial_tail
from calprompt.promises.requests import ERROR, REFUSED, SETS, SETS_PER_CLASS, Promise, Requests, Unseen, percent
from calprompt.text import plural, shorten

SHARE_FOR_ERRORS = 0.3  # of the groups of a class that are held out for a promise on errors
LARGEST_SHARE = 0.5  # if that takes more
SHARE_FOR_SETS = 0.1  # without one: sets are right from the fewest images on, and each is one less to learn from
LEAST_TUNED = 2  # groups of a class that tune, if it has them, before any is held out
SAFETY_FACTOR = 2.0  # times the fewest images that would do: a model that errs now and then needs more than the fewest
SPARE_SHARE = 0.1  # of what a promise allows to be wrong, that images of unusually large groups may take up
LARGEST_FOLDER = 1_000_000  # more images than this are not worth suggesting


@dataclass(frozen=True)
class Stratum:
    """The groups of one class."""

    name: str
    groups: int  # how many there are
    eligible: int  # how many of them may be held out, by the draw that makes up for their sizes
    images: int  # how many images they stand for: all, but for those of a group beyond the limit
    crowded: int  # how many images are beyond the limit
    # as many groups of equal size would have as many images in an average draw; fewer than `groups` if large ones,
    # which are drawn more often, have most of the images
    worth: float

    @classmethod
    def of(cls, name: str, sizes: Sequence[int], limit: int, eligible: int) -> Stratum:
        """From the sizes of the groups.

        >>> Stratum.of("cat", [10, 1, 1, 1, 1], 10, eligible=2).worth, Stratum.of("dog", [3, 3], 3, eligible=2).worth
        (1.8846153846153846, 2.0)
        """
        counted = [min(size, limit) for size in sizes]
        images, squares = sum(counted), sum(size * own for size, own in zip(sizes, counted, strict=True))
        worth = sum(sizes) * images / squares if squares else 0.0
        return cls(name, len(sizes), eligible, images, sum(sizes) - images, worth)

    def most(self, share: float, most_tuned: int | None) -> int:
        """How many groups can be held out, at most."""
        wanted = min(math.ceil(round(self.worth * share, 9)), max(0, self.groups - LEAST_TUNED))
        if most_tuned is not None and share:
            wanted = max(wanted, self.groups - most_tuned)
        return min(wanted, self.eligible)

    def without(self, taken: int) -> Stratum:
        """With so many eligible groups used for something else; its images stay what they are a share of."""
        left = (self.groups - taken) / max(1, self.groups)
        return replace(self, groups=self.groups - taken, eligible=self.eligible - taken, worth=self.worth * left)

    def scaled(self, factor: float) -> Stratum:
        """With more groups of the same sizes."""
        groups = max(self.groups, round(self.groups * factor))
        grown = groups / max(1, self.groups)
        eligible, images, crowded = (math.floor(own * grown) for own in (self.eligible, self.images, self.crowded))
        return Stratum(self.name, groups, eligible, images, crowded, self.worth * grown)


def size_limits(sizes: Sequence[Sequence[int]], spare: float) -> list[int]:
    """The size of groups up to which each image of a class counts, for every class.

    >>> size_limits([[5, 5, 5], [1] * 99 + [2], [1, 4]], spare=0.01)
    [5, 1, 4]
    """
    limits = [max(own, default=1) for own in sizes]
    left = spare * sum(map(sum, sizes))
    while True:
        cuts = []
        for label, own in enumerate(sizes):
            smaller = max((size for size in own if size < limits[label]), default=None)
            if smaller is not None:
                cost = sum(min(size, limits[label]) - min(size, smaller) for size in own)
                cuts.append((cost, label, smaller))
        if not cuts or min(cuts)[0] > left:
            return limits
        cost, label, limits[label] = min(cuts)
        left -= cost


def draw_counts(total: int, images: Sequence[int], rng: random.Random) -> list[int]:
    """Divide a total among classes in proportion to their images, rounding at random; see the top of this module.

    >>> draw_counts(60, [20, 20, 0], random.Random(0)), sum(draw_counts(7, [3] * 30, random.Random(0)))
    ([30, 30, 0], 7)
    """
    whole = sum(images)
    counts = [total * own // whole for own in images] if whole else [0] * len(images)
    open_label, open_part = -1, 0  # parts are in units of 1 / whole
    for label, own in enumerate(images):
        part = total * own % whole if whole else 0
        if not part or not open_part:
            open_label, open_part = (label, part) if part else (open_label, open_part)
            continue
        both = open_part + part
        if both < whole:  # one of the two takes the parts of both
            open_label, open_part = (open_label if rng.randrange(both) < open_part else label), both
            continue
        up, other = (open_label, label) if rng.randrange(2 * whole - both) < whole - part else (label, open_label)
        counts[up] += 1
        open_label, open_part = other, both - whole
    return counts


@dataclass(frozen=True)
class Sample:
    """What promises will rest on."""

    size: int  # how many images, one of each group
    images: tuple[int, ...]  # what each class has for a share among them; 0 for classes that are never held out
    unseen: Unseen  # what these images do not speak for


def take_sample(strata: Sequence[Stratum], share: float, most_tuned: int | None, strictest: float) -> Sample:
    """As many images as can be held out in proportion."""
    limits = [each.most(share, most_tuned) for each in strata]
    images = tuple(each.images if limit else 0 for each, limit in zip(strata, limits, strict=True))
    seen, total = sum(images), sum(each.images + each.crowded for each in strata)
    missing = [each for each, own in zip(strata, images, strict=True) if each.images and not own]
    unseen = Unseen(
        tuple(each.name for each in missing),
        sum(each.images + each.crowded for each in missing) / total,
        sum(each.crowded for each, own in zip(strata, images, strict=True) if own) / total,
    )
    size = min((limit * seen // own for own, limit in zip(images, limits, strict=True) if own), default=0)
    counted = unseen.wrong(size)
    if counted > 1 and unseen.missing() < strictest:  # a few images fewer may save one that counts as wrong
        fewer = math.floor((counted - 1) * (1 - unseen.missing()) / unseen.missing())
        if _chance(fewer, counted - 1, strictest) < _chance(size, counted, strictest):
            size = fewer
    return Sample(size, images, unseen)


def choose_sample(
    strata: Sequence[Stratum], requests: Requests, most_tuned: int | None, fixed: float | None, copies: int = 0
) -> tuple[Sample, tuple[Promise, ...]]:
    """How many images to hold out, and the promises that even the most is too little for."""
    strictest = min((requests.allowed(kind) for kind in requests.kinds), default=0.0)

    def sample(share: float) -> Sample:
        return take_sample(strata, share, most_tuned, strictest)

    limit = sample(LARGEST_SHARE if fixed is None else fixed)
    refusals, wanted = [], {}
    for kind in requests.kinds:
        fewest = _fewest(requests, kind, limit)
        if fewest is not None:
            wanted[kind] = fewest
        else:
            share = LARGEST_SHARE if fixed is None else fixed
            refusals.append(_refusal(strata, requests, kind, limit, most_tuned, share, copies))
    if fixed is not None:
        return limit, tuple(refusals)
    if not wanted:
        return Sample(0, limit.images, limit.unseen), tuple(refusals)
    if requests.per_class:
        return limit, tuple(refusals)
    usual, room = (SHARE_FOR_ERRORS, SAFETY_FACTOR) if ERROR in wanted else (SHARE_FOR_SETS, 1.0)
    for hundredths in range(round(100 * usual), round(100 * LARGEST_SHARE) + 1, 5):
        found = sample(hundredths / 100)
        if found.size >= room * max(wanted.values()):
            return found, tuple(refusals)
    return limit, tuple(refusals)


def whole_folder(requests: Requests, kind: str, images: int, unseen: Unseen) -> bool | None:
    """Whether a promise can be made over the whole folder (True) or the seen classes (False); None: not at all.

    A promise on errors is over the whole folder or not made: nobody can tell from an answer whether the image is of a
    class that was never held out.
    """
    if requests.possible(kind, images, unseen.wrong(images)):
        return True
    if kind == SETS and unseen.classes and requests.possible(kind, images, unseen.wrong(images, whole=False)):
        return False
    return None


def _fewest(requests: Requests, kind: str, sample: Sample) -> int | None:
    """The fewest held-out images that a promise takes; None if the sample is too small for it."""
    if kind == SETS_PER_CLASS:
        fewest, seen = requests.fewest(kind), sum(sample.images)
        most = max((sample.size * own // seen for own in sample.images), default=0) if seen else 0
        return fewest if fewest is not None and most >= fewest else None
    whole = whole_folder(requests, kind, sample.size, sample.unseen)
    return None if whole is None else requests.fewest(kind, sample.unseen.missing(whole=whole))


def _refusal(
    strata: Sequence[Stratum],
    requests: Requests,
    kind: str,
    limit: Sample,
    most_tuned: int | None,
    share: float,
    copies: int,
) -> Promise:
    """Why a promise cannot be made, and what it takes."""
    total, unseen = sum(each.images + each.crowded for each in strata), limit.unseen
    if kind == SETS_PER_CLASS:
        each_class = requests.fewest(kind) or 0
        reason = f"it takes {each_class} held-out images of a class, and no class has so many"
        advice = "" if not share else f"; {math.floor((each_class - 1) / share) + 1} images of each class would do"
        return Promise(kind, requests.words(kind), REFUSED, reason + advice)
    fewest = requests.fewest(kind, unseen.missing())
    if fewest is None or not limit.size:
        fewest = requests.fewest(kind)
    what = "images" if all(each.groups == each.images + each.crowded for each in strata) else "groups of images"
    same = "is a copy" if copies == 1 else "are copies"
    given = f"{total} images" if not copies else f"{total + copies} images, {copies} of which {same},"
    reason = f"it takes {fewest} held-out {what} at least, and of {given} {limit.size} can be used"
    if unseen.classes and limit.size and unseen.missing() >= requests.allowed(kind):
        reason = (
            f"no image of {unseen.which} can be held out, and if all of these were wrong, more than "
            f"{percent(requests.allowed(kind))} would be"
        )
    enough = _enough(strata, requests, kind, most_tuned, share)
    if enough is None:
        return Promise(kind, requests.words(kind), REFUSED, reason)
    needed = sum(each.images + each.crowded for each in enough)
    advice = f"it takes about {needed} images in all, or more"
    if what != "images":
        short = [
            f"{new.groups} of {old.name}, which has {old.groups}"
            for old, new in zip(strata, enough, strict=True)
            if old.groups < new.groups
        ]
        advice = f"it takes about {plural(sum(each.groups for each in enough), 'group')} in all: {shorten(short)}"
    return Promise(kind, requests.words(kind), REFUSED, f"{reason}; {advice}", needed=needed)


def _enough(
    strata: Sequence[Stratum], requests: Requests, kind: str, most_tuned: int | None, share: float
) -> list[Stratum] | None:
    """The classes with about so many more groups, in the same proportions, as would do; None if no number would."""
    factor = 1.0
    total = sum(each.images for each in strata)
    while share and factor * total <= LARGEST_FOLDER:
        factor = max(factor + 1 / total, 1.02 * factor)
        grown = [each.scaled(factor) for each in strata]
        sample = take_sample(grown, share, most_tuned, requests.allowed(kind))
        if whole_folder(requests, kind, sample.size, sample.unseen):
            return grown
    return None


def _chance(images: int, wrong: int, allowed: float) -> float:
    """The p-value of a promise if all held-out images are right."""
    return log_binomial_tail(wrong, images + wrong, allowed) if images > 0 else 0.0
