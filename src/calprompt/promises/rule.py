"""What a model answers: a class with its probability, "unsure", or "none of these"; and the set of possible classes.

    logits ── may be a class that must not be missed ─────────▶ that class if it is chosen below, otherwise unsure
           ── open-set score below its threshold ─────────────▶ none of these
           ── calibrated probability below min_confidence ────▶ unsure
           ── otherwise ──────────────────────────────────────▶ the most probable class, or, with costs, the cheapest

Plain arithmetic on numpy arrays, which an exported model repeats without this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calprompt.kernel import choose_classes, guards_of
from calprompt.metrics.inputs import ArrayLike
from calprompt.notebook import card
from calprompt.promises.conformal import SetRule
from calprompt.promises.open_set import OpenSetRule

ANSWER, UNSURE, NONE_OF_THESE = "answer", "unsure", "none of these"
DECISIONS = (ANSWER, UNSURE, NONE_OF_THESE)


@dataclass(frozen=True)
class Guard:
    """A class that must not be missed: images that may be of it are never called anything else.

    Attributes:
        label: Number of the class.
        threshold: Calibrated probability of the class, from which on an image may be of it.
        share: Of the images of the class that may be missed.
        promised: Whether that is promised.
    """

    label: int
    threshold: float
    share: float
    promised: bool = False


@dataclass(frozen=True)
class DecisionRule:
    """Thresholds that turn logits and probabilities into decisions.

    Attributes:
        min_confidence: Probabilities below this are "unsure"; None: nothing is.
        target_error: The error rate among answered images that is promised; None: none is.
        open_set: When an image is none of the classes; None: never.
        sets: How prediction sets are made, by coverage and kind.
        withdrawn: Why the promises that go with these thresholds do not hold, if so.
        costs: What it costs to answer a class (column) where another is true (row); None: all errors cost the same.
        guards: Classes that must not be missed.
    """

    min_confidence: float | None = None
    target_error: float | None = None
    open_set: OpenSetRule | None = None
    sets: tuple[SetRule, ...] = ()
    withdrawn: str | None = None
    costs: tuple[tuple[float, ...], ...] | None = None
    guards: tuple[Guard, ...] = ()

    def chosen(self, probabilities: ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The class to answer for each image, [n]: the most probable, or the one with the smallest expected cost."""
        costs = None if self.costs is None else np.asarray(self.costs)
        return choose_classes(np.asarray(probabilities, dtype=np.float64), costs)

    def guarded(self, probabilities: ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each image, the class that must not be missed and that it may be, [n]; -1 if there is none."""
        labels = np.array([guard.label for guard in self.guards], dtype=np.int64)
        thresholds = np.array([guard.threshold for guard in self.guards])
        return guards_of(np.asarray(probabilities, dtype=np.float64), labels, thresholds)

    def decide(self, logits: ArrayLike, probabilities: ArrayLike) -> list[str]:
        """One of `DECISIONS` for each image.

        Args:
            logits: Before calibration, [n, C].
            probabilities: Calibrated, [n, C].
        """
        sure = self.answered(logits, probabilities)
        known = np.ones(len(sure), dtype=bool) if self.open_set is None else self.open_set.accepts(logits)
        known = known | (self.guarded(probabilities) >= 0)
        return [ANSWER if yes else UNSURE if own else NONE_OF_THESE for yes, own in zip(sure, known, strict=True)]

    def answered(self, logits: ArrayLike, probabilities: ArrayLike) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each image gets an answer, [n]; `logits` and `probabilities` as `decide` takes them."""
        p = np.asarray(probabilities, dtype=np.float64)
        chosen, guarded = self.chosen(p), self.guarded(p)
        sure = p[np.arange(len(p)), chosen] >= (0.0 if self.min_confidence is None else self.min_confidence)
        sure &= (guarded < 0) | (guarded == chosen)
        return np.asarray(sure if self.open_set is None else sure & self.open_set.accepts(logits))

    def set_rule(self, coverage: float | None = None, per_class: bool = False) -> SetRule | None:
        """The rule of sets of some coverage, or of the first one there is; None if there is none."""
        own = (rule for rule in self.sets if rule.per_class == per_class)
        return next((rule for rule in own if coverage in (None, rule.coverage)), None)

    @property
    def promised(self) -> bool:
        """Whether a promise on errors stands behind what is answered."""
        return self.withdrawn is None and self.target_error is not None

    def with_threshold(self, min_confidence: float) -> DecisionRule:
        """With a threshold of one's own, behind which no promise stands."""
        return replace(self, min_confidence=min_confidence, target_error=None)

    def without_promises(self, reason: str) -> DecisionRule:
        """The same thresholds with nothing promised any more."""
        return replace(self, withdrawn=reason)

    def with_classes(self, classes: int, keep: bool) -> DecisionRule:
        """For more classes, whose errors cost 1; or for other ones, with neither costs nor guards."""
        if not keep or self.costs is None:
            return replace(self, costs=None, guards=self.guards if keep else ())
        costs = 1 - np.eye(classes)
        costs[: len(self.costs), : len(self.costs)] = self.costs
        return replace(self, costs=tuple(map(tuple, costs.tolist())))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "min_confidence": self.min_confidence,
            "target_error": self.target_error,
            "open_set": None if self.open_set is None else self.open_set.to_dict(),
            "sets": [rule.to_dict() for rule in self.sets],
            "withdrawn": self.withdrawn,
            "costs": None if self.costs is None else [list(row) for row in self.costs],
            "guards": [asdict(guard) for guard in self.guards],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecisionRule:
        """From what `to_dict` gave."""
        open_set = values["open_set"]
        return cls(
            values["min_confidence"],
            values["target_error"],
            None if open_set is None else OpenSetRule.from_dict(open_set),
            tuple(SetRule.from_dict(each) for each in values["sets"]),
            values.get("withdrawn"),
            None if values.get("costs") is None else tuple(map(tuple, values["costs"])),
            tuple(Guard(**guard) for guard in values.get("guards", ())),
        )


@dataclass(frozen=True)
class Answer:
    """What a model says of one image.

    Attributes:
        name: Of the image.
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
    """The answers for some images.

    Args:
        names: Of the images.
        logits: Before calibration, [n, C].
        probabilities: Calibrated, [n, C].
        class_names: Of the columns.
        rule: Decides.
        set_rule: Makes prediction sets; None: there are none.
    """
    from calprompt.promises.conformal import names_in

    p = np.asarray(probabilities, dtype=np.float64)
    decisions = rule.decide(logits, p) if len(p) else []
    inside = None if set_rule is None or not len(p) else set_rule.sets(logits)
    chosen, guards = (rule.chosen(p).tolist(), rule.guarded(p).tolist()) if len(p) else ([], [])
    found = []
    for number, (name, decision, row) in enumerate(zip(names, decisions, p, strict=True)):
        first, guard = chosen[number], guards[number]
        second = next((each for each in np.argsort(-row, kind="stable").tolist() if each != first), None)
        found.append(
            Answer(
                name,
                decision,
                class_names[first],
                float(row[first]),
                None if second is None else class_names[second],
                None if second is None else float(row[second]),
                None if inside is None else names_in(inside[number], class_names, row),
                rule.promised and decision == ANSWER,
                class_names[guard] if guard >= 0 else None,
            )
        )
    return found
