"""What the user wants to be promised, what no held-out image can speak for, and a promise: made, refused, withdrawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from calprompt.errors import Parameter, SettingError
from calprompt.metrics.binomial import log_binomial_tail
from calprompt.promises.conformal import as_fraction, rank_needed
from calprompt.records import Record
from calprompt.text import shorten

ERROR, SETS, SETS_PER_CLASS, NEVER_MISS = "error", "sets", "sets per class", "never miss"
MADE, REFUSED, WITHDRAWN = "made", "refused", "withdrawn"
MOST_HELD_OUT = 100_000  # more held-out images than this are not worth suggesting


@dataclass(frozen=True)
class Requests:
    """What the user wants to be promised."""

    target_error: float | None = None  # the largest error rate among answered images; None: no such promise
    coverage: float | None = None  # how often the true class is in the prediction set; None: no such promise
    per_class: bool = False  # promise the coverage for each class by itself too
    level: float = 0.95  # how sure the promise on errors is
    # how sure the coverage is for the held-out images that were drawn; None: it holds on average over draws of them
    coverage_level: float | None = None
    # classes and the share of the images of each that may be called something else
    never_miss: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for _, share in self.never_miss:
            as_fraction("never_miss", share)
        for name in ("target_error", "coverage", "level", "coverage_level"):
            if getattr(self, name) is not None:
                as_fraction(name, getattr(self, name))
        for name in ("per_class", "coverage_level"):
            if getattr(self, name) and self.coverage is None:
                raise SettingError(
                    "is about prediction sets; give their coverage too, such as ",
                    Parameter("coverage", 0.9),
                    parameter=name,
                )

    @property
    def kinds(self) -> tuple[str, ...]:
        sets = () if self.coverage is None else (SETS, SETS_PER_CLASS) if self.per_class else (SETS,)
        return sets if self.target_error is None else (ERROR, *sets)

    def allowed(self, kind: str) -> float:
        """The share of images that a promise allows to be wrong."""
        if kind == ERROR:
            return self.target_error or 0.0
        return float(1 - as_fraction("coverage", self.coverage or 0.5))

    def possible(self, kind: str, images: int, wrong: int = 0) -> bool:
        """Whether a promise can be made if all held-out images are right."""
        if not images:
            return False
        if kind == ERROR:
            return log_binomial_tail(wrong, images + wrong, self.allowed(ERROR)) <= math.log(1 - self.level)
        assert self.coverage is not None
        rank = rank_needed(images + wrong, self.coverage, level=self.coverage_level, by_class=kind == SETS)
        return rank <= images

    @lru_cache  # noqa: B019, a few small settings
    def fewest(self, kind: str, unseen: float = 0.0) -> int | None:
        """The smallest number of held-out images with which a promise is possible; None if no number is.

        >>> requests = Requests(target_error=0.05, coverage=0.9)
        >>> requests.fewest("error"), requests.fewest("sets"), requests.fewest("sets", unseen=0.05)
        (59, 10, 19)
        """
        if unseen >= self.allowed(kind):
            return None
        images = 1
        while not self.possible(kind, images, counted_as_wrong(images, unseen)):
            images = max(images + 1, math.ceil(1.01 * images))
            if images > MOST_HELD_OUT:
                return None
        while self.possible(kind, images - 1, counted_as_wrong(images - 1, unseen)):
            images -= 1
        return images

    def most_missed(self, share: float, images: int, unseen: int = 0) -> int | None:
        """How many of so many held-out images of a class may be missed for the promise of a share; None: not any.

        The (k + 1)-th smallest of n scores is above the true quantile of the share with a probability of
        P(Bin(n, share) ≤ k), which has to be 1 − level at most (Wilks, 1941).

        >>> Requests().most_missed(0.01, 298), Requests().most_missed(0.01, 299), Requests().most_missed(0.05, 93)
        (None, 0, 1)
        """
        k = unseen - 1
        while log_binomial_tail(k + 1, images + unseen, share) <= math.log(1 - self.level):
            k += 1
        return k - unseen if k >= unseen else None

    @lru_cache  # noqa: B019, a few small settings
    def fewest_of_class(self, share: float, unseen: float = 0.0) -> int | None:
        """The smallest number of held-out images of a class for the promise never to miss more than a share of it."""
        images = 1
        while unseen < share and images <= MOST_HELD_OUT:
            if self.most_missed(share, images, counted_as_wrong(images, unseen)) is not None:
                return images
            images += 1
        return None

    def missed_words(self, name: str, share: float) -> str:
        """The promise on one class in words.

        >>> Requests().missed_words("scratched", 0.01)
        "at most 1 % of the images of 'scratched' are called something else"
        """
        return f"at most {percent(share)} of the images of {name!r} are called something else"

    def words(self, kind: str) -> str:
        """A promise in words.

        >>> Requests(target_error=0.05).words("error"), Requests(coverage=0.9).words("sets")
        ('at most 5 % of its answers are wrong', 'the set contains the truth 90 % of the time')
        >>> Requests(coverage=0.9, coverage_level=0.95).words("sets")
        'the set contains the truth at least 90 % of the time for this very model'
        """
        if kind == ERROR:
            return f"at most {percent(self.target_error or 0)} of its answers are wrong"
        share = percent(self.coverage or 0)
        sets = f"the set contains the truth {share} of the time"
        if self.coverage_level is not None:
            sets = f"the set contains the truth at least {share} of the time for this very model"
        return f"{sets}, for each class by itself" if kind == SETS_PER_CLASS else sets


@dataclass(frozen=True)
class Unseen(Record):
    """Images of the folder that no held-out image speaks for; a promise over the whole folder counts them as wrong."""

    classes: tuple[str, ...] = ()  # classes with too few groups of images to hold any out
    share: float = 0.0  # their share of the images
    crowded: float = 0.0  # share of the images that are further ones of unusually large groups

    def wrong(self, images: int, *, whole: bool = True) -> int:
        """How many images have to count as wrong beside so many held-out ones."""
        return counted_as_wrong(images, self.missing(whole=whole))

    def missing(self, *, whole: bool = True) -> float:
        """The share of images that nothing is known about: of all, or of those of the other classes."""
        if whole:
            return self.share + self.crowded
        return self.crowded / (1 - self.share) if self.share < 1 else 0.0

    @property
    def which(self) -> str:
        """The classes and their share, in words.

        >>> Unseen(("cat", "dog"), 0.125).which
        'cat, dog (12.5 % of the images)'
        """
        return f"{shorten(self.classes)} ({percent(round(self.share, 3))} of the images)"


def counted_as_wrong(images: int, share: float) -> int:
    """How many images have to be added to so many, so that at least a share of all is unseen.

    >>> counted_as_wrong(60, 0.0), counted_as_wrong(60, 0.005), counted_as_wrong(95, 0.05)
    (0, 1, 5)
    """
    return math.ceil(round(images * share / (1 - share), 9)) if images else 0


@dataclass(frozen=True)
class Promise(Record):
    """Something that a model promises of its answers.

    Attributes:
        kind: "error", "sets", "sets per class" or "never miss".
        text: The promise, in words.
        status: "made", "refused" or "withdrawn".
        detail: Evidence and price of the promise; or why it is refused or withdrawn, and what would help.
        images: Number of held-out images behind it.
        needed: About how many images in all it would take, if it is refused for want of images.
        excluded: Classes that no held-out image speaks for, named in the sentence too. The promise does not cover their
            images, if `whole` is false; otherwise it holds even if all of them are wrong.
        excluded_share: Their share of the images.
        whole: Whether the promise covers all images of the folder.
    """

    kind: str
    text: str
    status: str
    detail: str
    images: int = 0
    needed: int | None = None
    excluded: tuple[str, ...] = ()
    excluded_share: float = 0.0
    whole: bool = True

    @property
    def sentence(self) -> str:
        """The promise with its status."""
        if self.status == MADE:
            return f"Promised: {self.text} ({self.detail})."
        return f"{'Not promised' if self.status == REFUSED else 'Withdrawn'}: {self.text}: {self.detail}."

    def withdrawn(self, reason: str) -> Promise:
        """The same promise, withdrawn if it was made."""
        return replace(self, status=WITHDRAWN, detail=reason) if self.status == MADE else self


def percent(share: float) -> str:
    """A share as people write it.

    >>> percent(0.05), percent(0.999), percent(0.125), percent(0.999999)
    ('5 %', '99.9 %', '12.5 %', '99.9999 %')
    """
    return f"{100 * share:.6g} %"
