"""Which learner suits the images: candidates compared by the likelihood of images that they did not learn from.

    candidates ── each fold by a run without it, then calibrated on the other folds ── nats per image ── the lowest

All candidates share the features and the folds of the images that tune. Those held out for promises take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calprompt import tuners
from calprompt.errors import SettingError
from calprompt.records import Record
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.classifier.fitted_model import Predicted

AUTO = "auto"
FINALISTS = 4  # candidates that are compared again when more images tune, at most
CANDIDATES = ("zero-shot", "linear-probe", "tip-adapter-f", "clip-adapter", "kgcoop")  # what takes long comes last


@dataclass(frozen=True)
class Candidate:
    """A learner with its options."""

    tuner: str
    options: dict[str, Any]
    chosen: tuple[str, ...] = ()  # those of them that cross-fitting chooses

    @property
    def name(self) -> str:
        """With the options that are compared.

        >>> Candidate("linear-probe", {"strength": 0.1}, ("strength",)).name
        'linear-probe, strength 0.1'
        """
        return ", ".join([self.tuner, *(f"{name} {self.options[name]:g}" for name in self.chosen)])


def candidates_of(tuner: str, options: Mapping[str, Any] | None = None) -> list[Candidate]:
    """What a fit compares: all candidates for "auto", else the tuner with every choice of options not given."""
    options = dict(options or {})
    if tuner == AUTO:
        if options:
            raise SettingError(
                f"are those of one tuner, and {AUTO!r} compares several; name the tuner too", parameter="options"
            )
        return [each for name in CANDIDATES for each in candidates_of(name)]
    choices = {name: values for name, values in tuners.get(tuner).choices.items() if name not in options}
    every = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    return [Candidate(tuner, {**options, **each}, tuple(choices)) for each in every]


def between(candidate: Candidate) -> list[Candidate]:
    """The same learner with its option halfway to the next larger and smaller choice, if cross-fitting chose one.

    >>> [each.name for each in between(Candidate("linear-probe", {"strength": 0.1}, ("strength",)))]
    ['linear-probe, strength 0.3', 'linear-probe, strength 0.03']
    """
    if len(candidate.chosen) != 1:
        return []
    (name,) = candidate.chosen
    own = candidate.options[name]
    values = sorted(tuners.get(candidate.tuner).choices[name], reverse=True)
    near = [*[each for each in values if each > own][-1:], *[each for each in values if each < own][:1]]
    return [
        replace(candidate, options={**candidate.options, name: float(f"{(own * each) ** 0.5:.0e}")}) for each in near
    ]


@dataclass(frozen=True)
class Contender(Record):
    """What a candidate reached on images that it did not learn from."""

    name: str  # with the options that were compared
    tuner: str
    nll: float  # mean negative log likelihood, in nats, after calibration
    accuracy: float  # share of right predictions
    difference: float  # of its nll to that of the chosen one, image by image; 0 for the chosen one itself
    error: float  # standard error of that difference; images of one group count as one

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than chance would make it."""
        return self.difference > 2 * self.error


@dataclass(frozen=True)
class Choice(Record):
    """What was compared and chosen."""

    tuner: str  # as it was asked for, such as "auto"
    options: dict[str, Any]  # as they were asked for
    contenders: tuple[Contender, ...]  # the best first
    images: int  # how many they were compared on
    untried: tuple[str, ...] = ()  # candidates that the budget left no time for
    budget: str | None = None  # as it was given
    # candidates that were worse on fewer of the images, and were not tried on all that tune
    behind: tuple[Contender, ...] = ()

    def narrowed(self) -> tuple[tuple[str, ...], tuple[Contender, ...]]:
        """The names of the best, of those that were not clearly worse than the chosen one; and the others."""
        names = [each.name for each in self.contenders if not each.is_clear][:FINALISTS]
        return tuple(names), tuple(each for each in self.contenders if each.name not in names)

    def sentences(self) -> list[str]:
        """What was chosen, how sure that is, and what the others reached."""
        best, *others = _best_of_each(self.contenders)
        if not others:
            best, *others = self.contenders
        lines = [
            f"Chose {best.name} by cross-fitting on {plural(self.images, 'image')} that tune: {best.nll:.3f} nats per "
            f"image, {100 * best.accuracy:.1f} % right."
        ]
        if others:
            second = others[0]
            sure = "clearly" if second.is_clear else "not clearly"
            lines.append(
                f"It is {sure} better than the next, {second.name}, by {second.difference:.3f} ± {second.error:.3f} "
                "nats (standard error)."
            )
            reached = [f"{each.name} {each.nll:.3f} ({100 * each.accuracy:.1f} %)" for each in others]
            lines.append(f"The others reached {'; '.join(reached)}.")
        shown = {each.tuner for each in self.contenders}
        behind = [each.name for each in _best_of_each(self.behind) if each.tuner not in shown]
        if behind:
            lines.append(f"Worse on fewer of the images, and not tried on all: {'; '.join(behind)}.")
        if self.untried:
            lines.append(f"Not tried within the budget of {self.budget}: {'; '.join(self.untried)}.")
        return lines


def _best_of_each(contenders: Sequence[Contender]) -> list[Contender]:
    found: dict[str, Contender] = {}
    for each in contenders:
        found.setdefault(each.tuner, each)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Crossed:
    """A candidate's predictions of images that it did not learn from."""

    candidate: Candidate
    probabilities: NDArray[np.float64]  # [n, C], calibrated on the other folds
    labels: NDArray[np.int64]
    predicted: Predicted | None = None  # the same before calibration, and images that were added

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        own = self.probabilities[np.arange(len(self.labels)), self.labels]
        return np.asarray(-np.log(np.clip(own, 1e-300, None)))

    @property
    def nll(self) -> float:
        return float(self.losses.mean())

    @property
    def accuracy(self) -> float:
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())


def rank(crossed: Sequence[Crossed], groups: Sequence[Any]) -> list[tuple[Crossed, Contender]]:
    """The candidates with what they reached, the best first; of equal ones, the earlier."""
    ordered = sorted(crossed, key=lambda each: each.nll)
    _, number = np.unique([str(group) for group in groups], return_inverse=True)
    found = []
    for each in ordered:
        apart = each.losses - ordered[0].losses
        mean = float(apart.mean())
        sums = np.bincount(number, weights=apart - mean)  # of each group
        error = float(np.sqrt((sums**2).sum() * len(sums) / max(1, len(sums) - 1)) / len(apart))
        candidate = each.candidate
        row = Contender(candidate.name, candidate.tuner, each.nll, each.accuracy, mean, error)
        found.append((each, row))
    return found
