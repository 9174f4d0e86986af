"""What the user wants to be promised, and what is refused before anything is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calprompt.errors import Parameter, SettingError
from calprompt.promises.conformal import as_fraction, images_needed

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
            raise SettingError(
                "is about prediction sets; give their coverage too, such as ",
                Parameter("coverage", 0.9),
                parameter="per_class",
            )

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


def percent(share: float) -> str:
    """A share as people write it.

    >>> percent(0.05), percent(0.999), percent(0.125), percent(0.999999)
    ('5 %', '99.9 %', '12.5 %', '99.9999 %')
    """
    return f"{100 * share:.6g} %"
