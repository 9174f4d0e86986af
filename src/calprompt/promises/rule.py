"""What a model answers: a class with its probability, "unsure", or "none of these"; and the set of possible classes.

    logits ── may be a class that must not be missed ─────────▶ that class if it is chosen below, otherwise unsure
           ── open-set score below its threshold ─────────────▶ none of these
           ── calibrated probability below min_confidence ────▶ unsure
           ── otherwise ──────────────────────────────────────▶ the most probable class, or, with costs, the cheapest

Plain arithmetic on numpy arrays. This file is copied into the script of every exported folder
(`calprompt.export.exporter`), which answers by the very same rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from calprompt.errors import Parameter, SettingError
from calprompt.kernel import class_scores, open_set_scores, softmax
from calprompt.notebook import card
from calprompt.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calprompt.metrics.inputs import ArrayLike

ANSWER, UNSURE, NONE_OF_THESE = "answer", "unsure", "none of these"
DECISIONS = (ANSWER, UNSURE, NONE_OF_THESE)


@dataclass(frozen=True)
class SetRule(Record):
    """How prediction sets are made."""

    coverage: float  # how often the true class is in the set
    per_class: bool  # whether that holds for each class by itself
    score: str  # "lac" or "aps"
    temperature: float  # what logits are divided by before the scores are computed; not the one of probabilities
    # one for all classes, or one per class; infinity where there are too few held-out images
    quantiles: tuple[float, ...]
    images: tuple[int, ...]  # how many held-out images each quantile comes from
    # how sure the coverage is for these very images; None: it holds on average over draws of them
    level: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantiles", tuple(math.inf if each is None else each for each in self.quantiles))

    @property
    def useful(self) -> bool:
        """Whether the sets can leave out any class at all."""
        return any(math.isfinite(q) for q in self.quantiles)

    def sets(self, logits: ArrayLike, *, allow_empty: bool = False) -> NDArray[np.bool_]:
        """Which classes are in the set of each image, [n, C]."""
        z = np.asarray(logits, dtype=np.float64)
        inside = np.asarray(self.scores(z) <= np.asarray(self.quantiles)[None, :])
        if not allow_empty:
            inside[np.arange(len(z)), z.argmax(axis=1)] = True
        return inside

    def scores(self, logits: ArrayLike) -> NDArray[np.float64]:
        """How badly each class suits each image, [n, C], at the temperature of sets."""
        return class_scores(softmax(np.asarray(logits, dtype=np.float64) / self.temperature), self.score)

    def with_classes(self, classes: int, keep: bool) -> SetRule:
        """For more or other classes; a quantile per class means nothing for these, so that they are in every set."""
        if not self.per_class:
            return self
        kept = len(self.quantiles) if keep else 0
        added = classes - kept
        quantiles = (*self.quantiles[:kept], *[math.inf] * added)
        return replace(self, quantiles=quantiles, images=(*self.images[:kept], *[0] * added))


@dataclass(frozen=True)
class OpenSetRule(Record):
    """When an image is none of the known classes."""

    # how sure it is one of them: the "max_logit", the "energy" (log-sum-exp of logits), the "probability" of the most
    # probable class, or its "contrast", the largest logit above the mean one
    score: str
    temperature: float  # what logits are divided by for the energy and the probability
    threshold: float  # scores below this one are none of the known classes
    false_rejects: tuple[float, float, float]  # share of images of known classes that are rejected, and its interval
    # share of images of left-out classes that are accepted, and its interval; None if no class could be left out
    false_accepts: tuple[float, float, float] | None
    level: float = 0.95  # of the intervals
    images: int = 0  # how many images of known classes `false_rejects` was measured on
    classes: int = 0  # how many classes were left out in turn

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", -math.inf if self.threshold is None else self.threshold)

    def accepts(self, logits: ArrayLike) -> NDArray[np.bool_]:
        """Whether each image is taken for one of the known classes, [n]."""
        return np.asarray(open_set_scores(np.asarray(logits), self.score, self.temperature) >= self.threshold)


@dataclass(frozen=True)
class Guard:
    """A class that must not be missed: images that may be of it are never called anything else."""

    label: int  # number of the class
    threshold: float  # calibrated probability of the class, from which on an image may be of it
    share: float  # share of its images that may be missed
    promised: bool = False  # whether that is promised


@dataclass(frozen=True)
class DecisionRule(Record):
    """Thresholds that turn logits and probabilities into decisions.

    Attributes:
        min_confidence: Probabilities below this are "unsure"; None: nothing is.
        target_error: The error rate among answered images that is promised; None: none is.
        open_set: When an image is none of the classes; None: never.
        sets: Rules for prediction sets, by coverage and kind.
        withdrawn: Why the promises that go with these thresholds do not hold, if so.
        costs: Cost of answering a class (column) when another is true (row); None if all errors cost the same.
        guards: Classes that must not be missed.
    """

    min_confidence: float | None = None
    target_error: float | None = None
    open_set: OpenSetRule | None = None
    sets: tuple[SetRule, ...] = ()
    withdrawn: str | None = None
    costs: tuple[tuple[float, ...], ...] | None = None
    guards: tuple[Guard, ...] = ()

    def chosen(self, probabilities: ArrayLike) -> NDArray[np.int64]:
        """The class to answer for each image, [n]: the most probable, or the one with the smallest expected cost.

        >>> DecisionRule(costs=((0.0, 1.0), (20.0, 0.0))).chosen([[0.9, 0.1], [0.97, 0.03]]).tolist()
        [1, 0]
        """
        p = np.asarray(probabilities, dtype=np.float64)
        if self.costs is None:
            return np.asarray(p.argmax(axis=1))
        return np.asarray((p @ np.asarray(self.costs, dtype=np.float64)).argmin(axis=1))

    def guarded(self, probabilities: ArrayLike) -> NDArray[np.int64]:
        """The class that must not be missed and that each image may be, the likeliest of several, [n]; -1 if none."""
        p = np.asarray(probabilities, dtype=np.float64)
        if not self.guards:
            return np.full(len(p), -1)
        labels = np.array([guard.label for guard in self.guards], dtype=np.int64)
        own = p[:, labels]
        own = np.where(own >= np.array([guard.threshold for guard in self.guards]), own, -1.0)
        return np.where(own.max(axis=1) >= 0, labels[own.argmax(axis=1)], -1)

    def decide(self, logits: ArrayLike, probabilities: ArrayLike) -> list[str]:
        """One of `DECISIONS` for each image."""
        sure = self.answered(logits, probabilities)
        known = np.ones(len(sure), dtype=bool) if self.open_set is None else self.open_set.accepts(logits)
        known = known | (self.guarded(probabilities) >= 0)
        return [ANSWER if yes else UNSURE if own else NONE_OF_THESE for yes, own in zip(sure, known, strict=True)]

    def answered(self, logits: ArrayLike, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """Whether each image gets an answer, [n]; `logits` and `probabilities` as `decide` takes them."""
        p = np.asarray(probabilities, dtype=np.float64)
        chosen, guarded = self.chosen(p), self.guarded(p)
        sure = p[np.arange(len(p)), chosen] >= (0.0 if self.min_confidence is None else self.min_confidence)
        sure &= (guarded < 0) | (guarded == chosen)
        return np.asarray(sure if self.open_set is None else sure & self.open_set.accepts(logits))

    def set_rule(self, coverage: float | None = None, per_class: bool = False) -> SetRule:
        """The rule of sets of some coverage, or of the first one there is; raises a `SettingError` if there is none."""
        for rule in self.sets:
            if rule.per_class == per_class and coverage in (None, rule.coverage):
                return rule
        wanted = ("" if coverage is None else f" of coverage {coverage}") + " per class" * per_class
        known = ", ".join(f"{rule.coverage}{' per class' * rule.per_class}" for rule in self.sets)
        raise SettingError(
            f"this model has no prediction sets{wanted}{f'; it has {known}' if known else ''}; fit it with ",
            Parameter("coverage", "X", command="fit"),
            *((" and ", Parameter("per_class", True, command="fit")) if per_class else ()),
        )

    @property
    def promised(self) -> bool:
        """Whether a promise on errors stands behind what is answered."""
        return self.withdrawn is None and self.target_error is not None

    def with_threshold(self, min_confidence: float | None) -> DecisionRule:
        """With a threshold of one's own, behind which no promise stands; None: as it is."""
        if min_confidence in (None, self.min_confidence):
            return self
        return replace(self, min_confidence=min_confidence, target_error=None)

    def without_promises(self, reason: str) -> DecisionRule:
        """The same thresholds with nothing promised any more."""
        return replace(self, withdrawn=reason)

    def with_classes(self, classes: int, keep: bool) -> DecisionRule:
        """For more classes, whose errors cost 1; or for other ones, with neither costs nor guards."""
        costs = None
        if keep and self.costs is not None:
            table = 1 - np.eye(classes)
            table[: len(self.costs), : len(self.costs)] = self.costs
            costs = tuple(map(tuple, table.tolist()))
        sets = tuple(each.with_classes(classes, keep) for each in self.sets)
        return replace(self, sets=sets, costs=costs, guards=self.guards if keep else ())


@dataclass(frozen=True)
class Answer:
    """What a model says of one image.

    Attributes:
        name: Name of the image.
        decision: "answer", "unsure" or "none of these".
        class_name: The class to answer, whatever the decision: the most probable, or, with costs, the cheapest.
        probability: Its calibrated probability.
        runner_up: The second most probable class.
        runner_up_probability: Its probability.
        prediction_set: Classes that it may be, the most probable first; None if sets were not asked for.
        promised: Whether it is an answer behind which a promise on errors stands.
        guarded: A class that must not be missed and that it may be, so that it is not called anything else; None if
            there is none.
    """

    name: str
    decision: str
    class_name: str
    probability: float
    runner_up: str | None = None
    runner_up_probability: float | None = None
    prediction_set: tuple[str, ...] | None = None
    promised: bool = False
    guarded: str | None = None

    def _repr_html_(self) -> str:
        rows: list[tuple[str, float | str]] = [(self.class_name, self.probability)]
        if self.runner_up is not None and self.runner_up_probability is not None:
            rows.append((self.runner_up, self.runner_up_probability))
        if self.prediction_set is not None:
            rows.append(("may be", ", ".join(self.prediction_set)))
        promised = ["The promise on errors stands behind this answer."] if self.promised else []
        return card(f"{self.name}: {self.class_name if self.decision == ANSWER else self.decision}", rows, promised)


def make_answers(
    names: Sequence[str],
    logits: ArrayLike,
    probabilities: ArrayLike,
    class_names: Sequence[str],
    rule: DecisionRule,
    *,
    set_rule: SetRule | None = None,
) -> list[Answer]:
    """The answers for some images."""
    p = np.asarray(probabilities, dtype=np.float64)
    decisions = rule.decide(logits, p) if len(p) else []
    inside = None if set_rule is None or not len(p) else set_rule.sets(logits)
    chosen, guards = (rule.chosen(p).tolist(), rule.guarded(p).tolist()) if len(p) else ([], [])
    found = []
    for number, (name, decision, row) in enumerate(zip(names, decisions, p, strict=True)):
        first, guard = chosen[number], guards[number]
        order = np.argsort(-row, kind="stable").tolist()
        second = next((each for each in order if each != first), None)
        found.append(
            Answer(
                name,
                decision,
                class_names[first],
                float(row[first]),
                None if second is None else class_names[second],
                None if second is None else float(row[second]),
                None if inside is None else tuple(class_names[c] for c in order if inside[number, c]),
                rule.promised and decision == ANSWER,
                class_names[guard] if guard >= 0 else None,
            )
        )
    return found
