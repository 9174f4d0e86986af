"""Watching whether "at most 5 % of its answers are wrong" still holds, by an e-process that looks for a change.

People mark answers as right or wrong while a model is in use. Let x_t be 1 if the t-th marked answer is wrong, ε the
error rate that is promised. The promise holds if P(x_t = 1 | all marks before) ≤ ε for every t; nothing else is assumed
of how marks depend on each other. For a ratio r > 1, by which the odds of an error may have risen,

    L_t(r) = r^x_t / (1 + ε (r − 1))                how much likelier the mark is with odds r times those of ε
    S_t(r) = (S_{t−1}(r) + w_t / R) · L_t(r)        the change may have begun at any mark j ≤ t, with weight w_j
    K_t    = Σ_r S_t(r) + (w_{t+1} + w_{t+2} + …)   the evidence; R is the number of ratios, and Σ_j w_j = 1

so K_t = Σ_r Σ_{j≤t} w_j/R · L_j(r) … L_t(r) + Σ_{j>t} w_j: likelihood ratios averaged over sizes and times of a change.

If the promise holds, K is a nonnegative supermartingale with K_0 = 1: with q = P(x_t = 1 | marks before) ≤ ε,

    E[L_t(r) | marks before] = (1 + q (r − 1)) / (1 + ε (r − 1)) ≤ 1
    E[K_t | marks before]    ≤ Σ_r (S_{t−1}(r) + w_t / R) + Σ_{j>t} w_j = K_{t−1}

By Ville's inequality, P(K_t ≥ 1/α for any t) ≤ α. So the alarm at K_t ≥ 1/α is false for at most a share α of models,
however many answers are marked and however often one looks.

The weights are w_j = j^(−1/4) − (j+1)^(−1/4). They fall slowly, so that a change after 10,000 clean marks is found
nearly as soon as one after 1,000. Nothing can over- or underflow: every factor is between 1/r and r, no sum falls below
its newest weight, and after an alarm, before which K < 1/α, sums stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calprompt.errors import DamagedFileError, NewerFormatError, SettingError
from calprompt.promises.conformal import as_fraction
from calprompt.promises.requests import ERROR, Requests
from calprompt.promises.rule import DecisionRule
from calprompt.text import plural

RATIOS = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)  # of the odds of an error, after and before a change
RECENT = 100  # marks that are kept one by one, for the sentence
FORMAT = 1
SUSPICIOUS_EVIDENCE = 10.0  # from which on the sentence speaks of it; at most one in ten models that keep it reach it


@dataclass(frozen=True)
class Watch:
    """Marks of answers so far, and what they say of the promise that at most a share of answers is wrong.

    An alarm comes when the evidence against the promise reaches 1 / `false_alarms`; the top of this module says why it
    is false so rarely. A watch never changes: `mark` and `mark_all` give the next one.

    Attributes:
        target_error: The error rate among answers that is promised.
        false_alarms: Share of models that keep the promise and alarm all the same, at most; 0.5 or less.
        marked: Number of answers with feedback.
        wrong: Number of wrong answers among them.
        recent: The last 100 marks, or the last before and with the alarm, one digit each: 1 is wrong.
        sums: S_t of each ratio; zero before the first mark.
        broken_at: The mark with which the alarm came, counted from 1; it stays. None: there was none.
        missed: A class that must not be missed, if that is what is watched: then marks are of images of this class,
            whatever was answered, and those that were called something else count as wrong. None: marks are of answers.

    >>> watch = Watch(target_error=0.1).mark_all([False, True, False] + [False] * 57)
    >>> watch.sentence
    "Of 60 answers that were marked, 1 was wrong; nothing speaks against 'at most 10 % of its answers are wrong'."
    >>> watch.mark_all([True] * 10).broken_at
    67
    """

    target_error: float
    false_alarms: float = 0.01
    marked: int = 0
    wrong: int = 0
    recent: str = ""
    sums: tuple[float, ...] = (0.0,) * len(RATIOS)
    broken_at: int | None = None
    missed: str | None = None

    def __post_init__(self) -> None:
        as_fraction("target_error", self.target_error)
        object.__setattr__(self, "target_error", float(self.target_error))
        object.__setattr__(self, "false_alarms", checked_false_alarms(self.false_alarms))

    @classmethod
    def of(cls, rule: DecisionRule, false_alarms: float = 0.01) -> Watch:
        """A watch of what a fitted model promises, with nothing marked yet."""
        if rule.target_error is None or not rule.promised:
            why = f": {rule.withdrawn}" if rule.withdrawn else ""
            raise SettingError(f"there is nothing to watch, because the model promises no error rate{why}")
        return cls(rule.target_error, false_alarms)

    @classmethod
    def of_classes(cls, rule: DecisionRule, class_names: Sequence[str], false_alarms: float = 0.01) -> dict[str, Watch]:
        """A watch for each class that a fitted model promises not to miss, by its name, with nothing marked yet."""
        promised = [guard for guard in rule.guards if guard.promised and rule.withdrawn is None]
        return {class_names[g.label]: cls(g.share, false_alarms, missed=class_names[g.label]) for g in promised}

    def mark(self, wrong: bool) -> Watch:
        """With one more answer marked."""
        return self.mark_all((wrong,))

    def mark_all(self, wrong: Iterable[bool]) -> Watch:
        """With more answers marked; the same as `mark` for one after another."""
        marks = _checked(wrong)
        number, sums, broken_at = self.marked, self.sums, self.broken_at
        factors = tuple(_factors(self.target_error, wrong) for wrong in (False, True))
        for mark in marks if broken_at is None else ():
            number += 1
            stake = (weight_from(number) - weight_from(number + 1)) / len(RATIOS)
            sums = tuple([(each + stake) * factor for each, factor in zip(sums, factors[mark], strict=True)])
            if _evidence(sums, number) >= 1 / self.false_alarms:
                broken_at = number
                break
        return replace(
            self,
            marked=self.marked + len(marks),
            wrong=self.wrong + sum(marks),
            recent=(self.recent + "".join("01"[mark] for mark in marks[: number - self.marked]))[-RECENT:],
            sums=sums,
            broken_at=broken_at,
        )

    @property
    def evidence(self) -> float:
        """K_t, against the promise; 1 before the first mark, 1 / `false_alarms` or more from the alarm on."""
        return _evidence(self.sums, self.marked if self.broken_at is None else self.broken_at)

    @property
    def broken(self) -> bool:
        """Whether there was an alarm."""
        return self.broken_at is not None

    @property
    def sentence(self) -> str:
        """What was marked, and what follows for the promise."""
        promise, noun, which, kind = f"'{Requests(self.target_error).words(ERROR)}'", "answer", "", "wrong"
        if self.missed is not None:
            promise = f"'{Requests().missed_words(self.missed, self.target_error)}'"
            noun, which, kind = "image", f" of {self.missed!r}", "missed"
        if not self.marked:
            return f"No {noun}{which} was marked yet, so nothing is known about {promise}."
        marked = f"{plural(self.marked, noun)}{which} that {_were(self.marked)} marked"
        counts = f"Of {marked}, {self.wrong} {_were(self.wrong)} {kind}"
        wrong, length = telling_stretch(self.recent, self.target_error)
        if self.broken_at is not None:
            return (
                f"{counts}: the promise {promise} no longer holds (the alarm came with mark {self.broken_at}, when "
                f"{wrong} of the last {length} were {kind}; if the promise did hold, an alarm would come at most once "
                f"in {math.floor(1 / self.false_alarms)} models)."
            )
        if self.evidence >= SUSPICIOUS_EVIDENCE:
            return f"{counts}, {wrong} of the last {length}; that speaks against {promise}, but may still be chance."
        if self.wrong > as_fraction("target_error", self.target_error) * self.marked:
            return f"{counts}; that is more than {promise} allows on average, but may still be chance."
        if self.marked > len(self.recent):
            counts += f" ({self.recent.count('1')} of the last {len(self.recent)})"
        return f"{counts}; nothing speaks against {promise}."

    def to_dict(self) -> dict[str, Any]:
        """As plain data, which JSON keeps exactly."""
        return {"format": FORMAT, **asdict(self), "sums": list(self.sums)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Watch:
        """From what `to_dict` gave."""
        number = format_number(values, "the watch", FORMAT)
        try:
            known = {name: value for name, value in values.items() if name != "format"}
            watch = cls(**{**known, "sums": tuple(map(float, values["sums"]))})
            sound = number == FORMAT and watch._is_sound()
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(f"this is not the record of a watch ({error}); begin one from the marks") from error
        if not sound:
            raise DamagedFileError("the record of a watch contradicts itself; begin one from the marks")
        return watch

    def _is_sound(self) -> bool:
        last = self.marked if self.broken_at is None else self.broken_at
        return (
            all(type(count) is int for count in (self.marked, self.wrong, last))
            and 0 <= self.wrong <= self.marked
            and (self.broken_at is None or 1 <= last <= self.marked)
            and isinstance(self.recent, str)
            and set(self.recent) <= {"0", "1"}
            and len(self.recent) == min(last, RECENT)
            and 0 <= self.wrong - self.recent.count("1") <= self.marked - len(self.recent)
            and len(self.sums) == len(RATIOS)
            and all(math.isfinite(each) and each >= 0 for each in self.sums)
            and (self.evidence >= 1 / self.false_alarms) == self.broken
        )


def format_number(values: Any, what: str, known: int) -> Any:
    """The format of a record; raises if a newer version wrote it."""
    number = values.get("format") if isinstance(values, dict) else None
    if isinstance(number, int) and number > known:
        raise NewerFormatError(
            f"{what} has format {number}, and this version of calprompt reads up to {known}; update calprompt"
        )
    return number


def weight_from(number: int) -> float:
    """The weight of all changes that begin with mark `number` or later, number^(−1/4).

    Square roots are rounded in the same way everywhere, and neighbours are subtracted without rounding: weights are the
    same on every machine, and add up to one.

    >>> weight_from(1), weight_from(16)
    (1.0, 0.5)
    """
    return 1 / math.sqrt(math.sqrt(number))


def _factors(target_error: float, wrong: bool) -> tuple[float, ...]:
    """L_t of each ratio."""
    return tuple((ratio if wrong else 1.0) / (1 + target_error * (ratio - 1)) for ratio in RATIOS)


def _evidence(sums: tuple[float, ...], marked: int) -> float:
    return math.fsum((*sums, weight_from(marked + 1)))


def _checked(wrong: Iterable[bool]) -> list[bool]:
    if not isinstance(wrong, Iterable):
        raise SettingError(f"mark_all takes a list of marks, got {wrong!r}; use mark for one")
    marks = list(wrong.tolist() if hasattr(wrong, "tolist") else wrong)
    for mark in marks:
        if not isinstance(mark, bool | np.bool_ | int | np.integer) or mark not in (0, 1):
            raise SettingError(f"a mark must be True (the answer was wrong) or False (it was right), got {mark!r}")
    return [bool(mark) for mark in marks]


def checked_false_alarms(value: float) -> float:
    """A rate of false alarms that an alarm can have; raises for others."""
    as_fraction("false_alarms", value)
    if not 1e-100 <= value <= 0.5:
        raise SettingError(f"must be between 1e-100 and 0.5, such as 0.01, got {value}", parameter="false_alarms")
    return float(value)


def telling_stretch(recent: str, target_error: float) -> tuple[int, int]:
    """How many are wrong of how many of the latest marks, for as many as speak most against the promise.

    These are the marks with the largest likelihood ratio of their own error rate to the promised one. All of them, if
    no number of the latest marks has more errors than promised.

    >>> telling_stretch("0100000000000000101101", 0.1), telling_stretch("1000", 0.5)
    ((4, 6), (1, 4))
    """
    best, found = 0.0, (recent.count("1"), len(recent))
    wrong = 0
    for length, mark in enumerate(reversed(recent), start=1):
        wrong += mark == "1"
        rate = wrong / length
        if rate > target_error:
            gain = wrong * math.log(rate / target_error)
            if rate < 1:
                gain += (length - wrong) * (math.log1p(-rate) - math.log1p(-target_error))
            if gain > best:
                best, found = gain, (wrong, length)
    return found


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
