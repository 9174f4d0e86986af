"""Methods of a page: rows of results that differ only in data and seed are of one method, which has a name.

CoOp                          tuner coop with cross-entropy: the plain tuner
CoOp + TCPT                   with another loss
CoOp + TCPT, temperature      under a calibrator
CoOp (shots 4)                where methods differ in a setting too
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from calprompt.evaluation.models import ZERO_SHOT
from calprompt.evaluation.settings import NONE
from calprompt.results.names import loss_name, tuner_name
from calprompt.results.table import CLASSES_FILE, SETTINGS, cell

CE, TCPT = "ce", "tcpt"
ELSEWHERE = {"data", "root", "classes", "base", "template", "seed", "device", "chunk", "exif", "skip_bad"}
SAME = (*(name for name in SETTINGS if name not in {*ELSEWHERE, "diagnose_every", "tuner", "loss"}),)


@dataclass(frozen=True)
class Method:
    """What is compared on the same data and seeds.

    Attributes:
        tuner: Its name, or "zero-shot".
        loss: As it was given; empty for zero-shot.
        calibrator: Applied after it.
        settings: Everything else that is not of the data or the seed.
        detail: The settings in which it differs from methods of the same name.
    """

    tuner: str
    loss: str
    calibrator: str
    settings: tuple[str, ...]
    detail: str = ""

    @property
    def is_zero_shot(self) -> bool:
        return self.tuner == ZERO_SHOT

    @property
    def is_plain(self) -> bool:
        """Whether it is a tuner with cross-entropy and nothing else."""
        return self.loss == CE and self.calibrator == NONE

    @property
    def tuner_name(self) -> str:
        return tuner_name(self.tuner)

    @property
    def loss_name(self) -> str:
        """What people call its loss; empty for plain cross-entropy."""
        return "" if self.loss in ("", CE) else loss_name(self.loss).removeprefix("CE + ")

    @property
    def added(self) -> str:
        """What it has and the plain tuner has not."""
        return ", ".join(filter(None, (self.loss_name, "" if self.calibrator == NONE else self.calibrator)))

    @property
    def name(self) -> str:
        """What people call it.

        >>> Method("coop", "tcpt", "temperature", ()).name
        'CoOp + TCPT, temperature'
        """
        return f"{self.short_name}{self.detail}"

    @property
    def short_name(self) -> str:
        """The same without the settings in which methods differ."""
        loss = f" + {self.loss_name}" if self.loss_name else ""
        after = "" if self.calibrator == NONE else f", {self.calibrator}"
        return f"{self.tuner_name}{loss}{after}"


def methods_of(rows: Iterable[Mapping[str, Any]]) -> list[Method]:
    """The method of every row with results; methods of the same name are told apart by what they differ in."""
    found = [_method(row) for row in rows]
    alike: dict[str, dict[Method, None]] = {}
    for method in found:
        alike.setdefault(method.name, {})[method] = None
    details = {method: _detail(method, list(group)) for group in alike.values() for method in group}
    return [Method(*_fields(method), details[method]) for method in found]


def ordered(methods: Iterable[Method]) -> list[Method]:
    """Each method once: the untuned model, then by tuner the plain one and the others, in the order they come in."""
    every = list(dict.fromkeys(methods))
    tuners = list(dict.fromkeys(method.tuner for method in every))
    return sorted(
        every,
        key=lambda each: (not each.is_zero_shot, tuners.index(each.tuner), each.calibrator != NONE, not each.is_plain),
    )


def _method(row: Mapping[str, Any]) -> Method:
    calibrator = str(row.get("calibrator") or NONE)
    if row.get("model") == ZERO_SHOT:
        return Method(ZERO_SHOT, "", calibrator, (cell(row.get("backbone")),))
    return Method(str(row["tuner"]), str(row["loss"]), calibrator, tuple(cell(row.get(_column(name))) for name in SAME))


def _column(name: str) -> str:
    return CLASSES_FILE if name == "classes" else name


def _fields(method: Method) -> tuple[str, str, str, tuple[str, ...]]:
    return method.tuner, method.loss, method.calibrator, method.settings


def _detail(method: Method, group: list[Method]) -> str:
    """The settings that tell a method from others of the same name."""
    if len(group) == 1:
        return ""
    names = ("backbone",) if method.is_zero_shot else SAME
    differing = [i for i, name in enumerate(names) if len({each.settings[i] for each in group}) > 1]
    words = (f"{names[i].replace('_', ' ')} {method.settings[i] or 'usual'}" for i in differing)
    return f" ({', '.join(words)})"


def plain_of(method: Method, methods: Iterable[Method]) -> Method | None:
    """The plain tuner that a method is compared with: of all with this tuner, the one with the most equal settings."""
    if method.is_zero_shot or method.is_plain:
        return None
    candidates = [each for each in methods if each.is_plain and each.tuner == method.tuner]
    return max(
        candidates,
        key=lambda each: sum(a == b for a, b in zip(each.settings, method.settings, strict=True)),
        default=None,
    )


def headline_pairs(methods: Iterable[Method]) -> list[tuple[Method, Method]]:
    """What the headline compares: plain tuners and the same with TCPT, or with whatever else there is.

    Without a plain tuner it is the untuned model and what there is. The second of a pair is what the page looks at.
    """
    every = list(dict.fromkeys(methods))
    tuned = [each for each in every if not each.is_zero_shot]
    pairs = [(plain, each) for each in tuned if (plain := plain_of(each, every)) is not None]
    for wanted in (lambda each: each.loss == TCPT and each.calibrator == NONE, lambda each: each.calibrator == NONE):
        chosen = [pair for pair in pairs if wanted(pair[1])]
        if chosen:
            return [pair for pair in chosen if pair[1].added == chosen[0][1].added]
    if pairs:
        return [pair for pair in pairs if pair[1].added == pairs[0][1].added]
    untuned = next((each for each in every if each.is_zero_shot and each.calibrator == NONE), None)
    uncalibrated = [each for each in tuned if each.calibrator == NONE]
    return [(untuned, each) for each in uncalibrated[:1]] if untuned is not None else []
