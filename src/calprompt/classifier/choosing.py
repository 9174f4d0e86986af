"""Which learner suits the images: candidates compared by the likelihood of images that they did not learn from.

    candidates ── each fold by a run without it, then calibrated on the other folds ── nats per image ── the lowest

All candidates share the features and the folds of the images that tune. Those held out for promises take no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt import tuners
from calprompt.errors import SettingError
from calprompt.text import plural

AUTO = "auto"
FINALISTS = 4  # candidates that are compared again when more images tune, at most
CANDIDATES = ("zero-shot", "linear-probe", "tip-adapter-f", "clip-adapter", "kgcoop")  # what takes long comes last


@dataclass(frozen=True)
class Candidate:
    """A learner with its options.

    Attributes:
        tuner: Its name.
        options: Of the tuner.
        chosen: Those of them that cross-fitting chooses.
    """

    tuner: str
    options: dict[str, Any]
    chosen: tuple[str, ...] = ()

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
class Contender:
    """What a candidate reached on images that it did not learn from.

    Attributes:
        name: With the options that were compared.
        tuner: Its name.
        nll: Mean negative log likelihood, in nats, after calibration.
        accuracy: Share of right predictions.
        difference: Of its nll to that of the chosen one, image by image; 0 for the chosen one itself.
        error: Standard error of that difference; images of one group count as one.
    """

    name: str
    tuner: str
    nll: float
    accuracy: float
    difference: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than chance would make it."""
        return self.difference > 2 * self.error


@dataclass(frozen=True)
class Choice:
    """What was compared and chosen.

    Attributes:
        tuner: As it was asked for, such as "auto".
        options: As they were asked for.
        contenders: The best first.
        images: How many they were compared on.
        untried: Candidates that the budget left no time for.
        budget: As it was given.
        behind: Candidates that were worse on fewer of the images, and were not tried on all that tune.
    """

    tuner: str
    options: dict[str, Any]
    contenders: tuple[Contender, ...]
    images: int
    untried: tuple[str, ...] = ()
    budget: str | None = None
    behind: tuple[Contender, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Choice:
        """What `to_dict` wrote."""
        rows = {name: tuple(Contender(**each) for each in record[name]) for name in ("contenders", "behind")}
        return cls(**{**record, **rows, "untried": tuple(record["untried"])})

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
    """The best of each tuner."""
    found: dict[str, Contender] = {}
    for each in contenders:
        found.setdefault(each.tuner, each)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Crossed:
    """A candidate's predictions of images that it did not learn from.

    Attributes:
        candidate: Which one.
        losses: Negative log likelihood of each image, after calibration on the other folds.
        right: Whether each prediction was right.
    """

    candidate: Candidate
    losses: NDArray[np.float64]
    right: NDArray[np.bool_]

    @classmethod
    def of(cls, candidate: Candidate, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Crossed:
        """From calibrated probabilities [n, C]."""
        own = probabilities[np.arange(len(labels)), labels]
        return cls(candidate, -np.log(np.clip(own, 1e-300, None)), probabilities.argmax(axis=1) == labels)

    @property
    def nll(self) -> float:
        """The mean loss."""
        return float(self.losses.mean())


def rank(crossed: Sequence[Crossed], groups: Sequence[Any]) -> list[tuple[Crossed, Contender]]:
    """The candidates with what they reached, the best first; of equal ones, the earlier.

    Args:
        crossed: Predictions of the same images by all candidates.
        groups: Which group each image is in.
    """
    ordered = sorted(crossed, key=lambda each: each.nll)
    _, number = np.unique([str(group) for group in groups], return_inverse=True)
    found = []
    for each in ordered:
        apart = each.losses - ordered[0].losses
        mean = float(apart.mean())
        sums = np.bincount(number, weights=apart - mean)  # of each group
        error = float(np.sqrt((sums**2).sum() * len(sums) / max(1, len(sums) - 1)) / len(apart))
        candidate = each.candidate
        row = Contender(candidate.name, candidate.tuner, each.nll, float(each.right.mean()), mean, error)
        found.append((each, row))
    return found
