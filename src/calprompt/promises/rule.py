"""What a model answers: a class with its probability, "unsure", or "none of these"; and the set of possible classes.

    logits ── open-set score below its threshold ─────────────▶ none of these
           ── calibrated probability below min_confidence ────▶ unsure
           ── otherwise ──────────────────────────────────────▶ the most probable class

Plain arithmetic on numpy arrays, which an exported model repeats without this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calprompt.metrics.inputs import ArrayLike
from calprompt.notebook import card
from calprompt.promises.conformal import SetRule
from calprompt.promises.open_set import OpenSetRule

ANSWER, UNSURE, NONE_OF_THESE = "answer", "unsure", "none of these"
DECISIONS = (ANSWER, UNSURE, NONE_OF_THESE)


@dataclass(frozen=True)
class DecisionRule:
    """Thresholds that turn logits and probabilities into decisions.

    Attributes:
        min_confidence: Probabilities below this are "unsure"; None: nothing is.
        target_error: The error rate among answered images that is promised; None: none is.
        open_set: When an image is none of the classes; None: never.
        sets: How prediction sets are made, by coverage and kind.
        withdrawn: Why the promises that go with these thresholds do not hold, if so.
    """

    min_confidence: float | None = None
    target_error: float | None = None
    open_set: OpenSetRule | None = None
    sets: tuple[SetRule, ...] = ()
    withdrawn: str | None = None

    def decide(self, logits: ArrayLike, probabilities: ArrayLike) -> list[str]:
        """One of `DECISIONS` for each image.

        Args:
            logits: Before calibration, [n, C].
            probabilities: Calibrated, [n, C].
        """
        sure = self.answered(logits, probabilities)
        known = np.ones(len(sure), dtype=bool) if self.open_set is None else self.open_set.accepts(logits)
        return [ANSWER if yes else UNSURE if own else NONE_OF_THESE for yes, own in zip(sure, known, strict=True)]

    def answered(self, logits: ArrayLike, probabilities: ArrayLike) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each image gets an answer, [n]; `logits` and `probabilities` as `decide` takes them."""
        p = np.asarray(probabilities, dtype=np.float64)
        sure = p.max(axis=1) >= (0.0 if self.min_confidence is None else self.min_confidence)
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

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "min_confidence": self.min_confidence,
            "target_error": self.target_error,
            "open_set": None if self.open_set is None else self.open_set.to_dict(),
            "sets": [rule.to_dict() for rule in self.sets],
            "withdrawn": self.withdrawn,
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
        )


@dataclass(frozen=True)
class Answer:
    """What a model says of one image.

    Attributes:
        name: Of the image.
        decision: "answer", "unsure" or "none of these".
        class_name: The most probable class, whatever the decision.
        probability: Its calibrated probability.
        runner_up: The second most probable class.
        runner_up_probability: Its probability.
        prediction_set: Classes that it may be, the most probable first; None if sets were not asked for.
        promised: Whether it is an answer behind which a promise on errors stands.
    """

    name: str
    decision: str
    class_name: str
    probability: float
    runner_up: str | None = None
    runner_up_probability: float | None = None
    prediction_set: tuple[str, ...] | None = None
    promised: bool = False

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
    found = []
    for number, (name, decision, row) in enumerate(zip(names, decisions, p, strict=True)):
        first, *others = np.argsort(-row, kind="stable")[:2].tolist()
        second = others[0] if others else None
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
            )
        )
    return found
