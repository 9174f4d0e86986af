"""What a calibrator is: a map of logits, fitted on held-out ones and applied to stored ones, without the model.

    StoredLogits(val)  ── fit ──▶  calibrator          StoredLogits(test)  ── calibrator ──▶  logits [n, C], float64

A subclass says what it promises, what it needs and what it learns, and writes `learn` and either `as_step`, one of the
steps that `calprompt.kernel` and every exported model can compute, or `apply`. The checks are here, and chains of
calibrators, such as `temperature -> dac`: each is fitted on the logits that the previous one returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.kernel import apply_step, keep_argmax
from calprompt.metrics.inputs import ArrayLike, as_array, check_labels
from calprompt.registry import Registry

MEANING = {
    "labels": "the true classes",
    "text": "tuned text features of the classes",
    "frozen_text": "untuned text features of the classes",
    "base_text": "tuned text features of the base classes",
    "base_frozen_text": "untuned text features of the base classes",
    "zero_shot_logits": "logits of the untuned model",
    "logit_scale": "the number that cosines were multiplied by",
}


@dataclass(frozen=True, eq=False)
class StoredLogits:
    """Logits of n images over C classes, and what else is known; checked when it is made.

    Arrays and nested lists of numbers are accepted too, and become tensors in float64.

    Attributes:
        logits: [n, C], scaled.
        labels: [n], needed to fit.
        text: [C, D] tuned text features, or [n, C, D] if they depend on the image.
        frozen_text: [C, D] of the untuned model.
        base_text: [C', D] tuned, of the base classes, or [n, C', D].
        base_frozen_text: [C', D] of the untuned model.
        zero_shot_logits: [n, C] of the untuned model.
        logit_scale: What cosines were multiplied by to give the logits.

    >>> StoredLogits(torch.zeros(2, 3)).require("the calibrator 'dac'", ("text",))
    Traceback (most recent call last):
    calprompt.errors.SettingError: the calibrator 'dac' needs text (tuned text features of the classes), ...
    """

    logits: Tensor
    labels: Tensor | None = None
    text: Tensor | None = None
    frozen_text: Tensor | None = None
    base_text: Tensor | None = None
    base_frozen_text: Tensor | None = None
    zero_shot_logits: Tensor | None = None
    logit_scale: float | None = None

    def __post_init__(self) -> None:
        for name in MEANING.keys() - {"logit_scale"} | {"logits"}:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_tensor(getattr(self, name), name))
        if self.logits.ndim != 2 or self.logits.shape[1] == 0 or not self.logits.is_floating_point():
            raise SettingError(
                f"must be floating-point numbers [images, classes], got {_shown(self.logits)} of {self.logits.dtype}",
                parameter="logits",
            )
        n, C = self.logits.shape
        self._expect("labels", [n])
        self._expect("text", [C, None], [n, C, None])
        self._expect("frozen_text", [C, None])
        self._expect("base_text", [None, None], [n, None, None])
        self._expect("base_frozen_text", [None, None])
        self._expect("zero_shot_logits", [n, C])
        for name in ("logits", "text", "frozen_text", "base_text", "base_frozen_text", "zero_shot_logits"):
            given = getattr(self, name)
            if given is not None and not bool(torch.isfinite(given).all()):
                raise SettingError(
                    f"must be finite, got {int((~torch.isfinite(given)).sum())} that are not", parameter=name
                )
        if self.labels is not None and n:
            checked = check_labels(self.labels, n, C)
            object.__setattr__(self, "labels", torch.from_numpy(checked).to(self.labels.device))
        if self.logit_scale is not None and not 0 < self.logit_scale < float("inf"):
            raise SettingError(f"must be a positive number, got {self.logit_scale}", parameter="logit_scale")

    def require(self, who: str, names: tuple[str, ...]) -> None:
        """Raise for the first of these fields that is missing."""
        for name in names:
            if getattr(self, name) is None:
                raise SettingError(
                    f"{who} needs {name} ({MEANING[name]}), which the record does not have: "
                    f"StoredLogits(..., {name}=...)"
                )

    def given(self, name: str) -> Tensor:
        """A tensor of the record that has to be there."""
        self.require("this", (name,))
        tensor: Tensor = getattr(self, name)
        return tensor

    def _expect(self, name: str, *shapes: list[int | None]) -> None:
        given = getattr(self, name)
        if given is None:
            return
        for shape in shapes:
            if len(shape) == given.ndim and all(
                wanted in (None, got) for wanted, got in zip(shape, given.shape, strict=True)
            ):
                return
        wanted = " or ".join(_shown(shape) for shape in shapes)
        raise SettingError(
            f"must have the shape {wanted} beside logits {_shown(self.logits)}, got {_shown(given)}", parameter=name
        )


def _as_tensor(values: Any, name: str) -> Tensor:
    """A tensor as it is; arrays and nested lists of numbers as one, in float64 if they are no labels."""
    if isinstance(values, Tensor):
        return values
    array, dtype = as_array(values, name)
    if array.dtype.kind not in "iuf":
        raise SettingError(f"must be a tensor, an array or nested lists of numbers, got {dtype} values", parameter=name)
    whole = name == "labels" and array.dtype.kind != "f"
    return torch.from_numpy(array.astype(np.int64 if whole else np.float64))


def as_stored_logits(record: StoredLogits | ArrayLike, labels: ArrayLike | None = None) -> StoredLogits:
    """A record as it is, or made of logits and perhaps labels."""
    if isinstance(record, StoredLogits):
        if labels is not None:
            raise SettingError("the record has a field for labels: give StoredLogits(logits, labels), or two tensors")
        return record
    return StoredLogits(_as_tensor(record, "logits").detach(), None if labels is None else _as_tensor(labels, "labels"))


def _shown(shape: Tensor | list[int | None]) -> str:
    sizes = list(shape.shape) if isinstance(shape, Tensor) else shape
    return "[" + ", ".join("any" if size is None else str(size) for size in sizes) + "]"


calibrators: Registry[type[Calibrator]] = Registry("calibrator")

Own = TypeVar("Own", bound="Calibrator")
ROUNDING = 1e-12  # a difference of logits that is a tie
ARROW = "->"  # between the steps of a chain


class Calibrator:
    """Fit on validation results of the base classes, apply to any.

    keeps_argmax  predictions, and so accuracy, stay as they are
    novel         it may be applied to classes it was not fitted on
    needs         fields of `StoredLogits` that it uses beside the logits (and, to fit, the labels)
    learns        attributes that `learn` sets, plain numbers or lists of them; none: closed form, nothing to fit
    """

    keeps_argmax: bool = False
    novel: bool = False
    needs: tuple[str, ...] = ()
    learns: tuple[str, ...] = ()

    @torch.no_grad()
    def fit(self: Own, record: StoredLogits | ArrayLike, labels: ArrayLike | None = None) -> Own:
        """Learn from a record with labels, or from logits [n, C] and labels [n]; returns itself."""
        record = as_stored_logits(record, labels)
        if not self.learns:
            return self
        self.forget()
        record.require(f"fitting the calibrator {self.name!r}", ("labels", *self.fit_needs))
        n, C = record.logits.shape
        if n == 0 or C < 2:
            raise SettingError(
                f"the calibrator {self.name!r} needs validation logits [images, classes] with at least one image and "
                f"two classes, got {(n, C)}"
            )
        if torch.equal(record.logits.amin(dim=1), record.logits.amax(dim=1)):
            raise SettingError(
                f"the calibrator {self.name!r} has nothing to fit: every validation image has the same logit for all "
                "classes"
            )
        self.learn(record)
        return self

    @torch.no_grad()
    def __call__(self, record: StoredLogits | ArrayLike) -> Tensor:
        """Calibrated logits [n, C] in float64. Those of calibrators of probabilities are log-probabilities."""
        record = as_stored_logits(record)
        self._check(record, "applying it")
        calibrated = self.apply(record)
        if not isinstance(calibrated, Tensor) or calibrated.shape != record.logits.shape:
            got = tuple(calibrated.shape) if isinstance(calibrated, Tensor) else repr(calibrated)
            raise SettingError(
                f"the calibrator {self.name!r} must give logits {tuple(record.logits.shape)} as it was given, got {got}"
            )
        if not bool(torch.isfinite(calibrated).all()):
            raise SettingError(
                f"the calibrator {self.name!r} gave values that are not finite; its fit is of no use here"
            )
        return self._keeping_argmax(calibrated, record.logits) if self.keeps_argmax else calibrated

    def learn(self, record: StoredLogits) -> None:
        """Set what `learns` names, from logits of two classes or more and their labels."""
        raise TypeError(f"{type(self).__name__} learns {', '.join(self.learns)} and has to say how")

    def apply(self, record: StoredLogits) -> Tensor:
        """Calibrated logits [n, C] in float64, as `as_step` says, unless a subclass computes them itself."""
        if type(self).as_step is Calibrator.as_step:
            raise TypeError(f"{type(self).__name__} has neither a method apply nor as_step")
        z0 = record.zero_shot_logits
        z0_numbers = None if z0 is None else z0.double().cpu().numpy()
        found = apply_step(record.logits.double().cpu().numpy(), self.as_step(record), z0_numbers)
        return torch.from_numpy(found).to(record.logits.device)

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        """What it does to logits, as steps of plain data that an exported model repeats without torch."""
        self._check(record, "exporting it")
        return [{**self.as_step(record), "keeps_argmax": self.keeps_argmax}]

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        """One of the steps that `calprompt.kernel` can compute: its name and its numbers."""
        raise SettingError(
            f"the calibrator {self.name!r} cannot be exported: it has no method as_step that writes it as one of the "
            "steps of calprompt/kernel.py"
        )

    @property
    def fit_needs(self) -> tuple[str, ...]:
        """Fields of `StoredLogits` that `fit` uses beside logits and labels."""
        return self.needs

    def forget(self) -> None:
        """As before the fit."""
        for name in self.learns:
            setattr(self, name, None)

    @property
    def name(self) -> str:
        """As it is registered."""
        names = (name for name in calibrators.available() if calibrators.get(name) is type(self))
        return next(names, type(self).__name__)

    def state(self) -> dict[str, Any]:
        """What was learned, as plain data: `restore` takes it."""
        return {name: getattr(self, name) for name in self.learns}

    def restore(self: Own, state: Mapping[str, Any]) -> Own:
        """Take what another one of the same kind learned; returns itself."""
        if set(state) != set(self.learns):
            raise SettingError(f"the calibrator {self.name!r} learns {list(self.learns)}, got {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, value)
        return self

    def _check(self, record: StoredLogits, what: str) -> None:
        """Raise unless it is fitted and has what it needs."""
        if any(getattr(self, name) is None for name in self.learns):
            raise SettingError(f"fit the {self.name} calibrator on validation logits before {what}")
        record.require(f"the calibrator {self.name!r}", self.needs)

    def _keeping_argmax(self, calibrated: Tensor, logits: Tensor) -> Tensor:
        """Give ties that rounding made back to the predicted class, and refuse a broken promise."""
        own = calibrated.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
        highest = calibrated.amax(dim=1)
        if bool((highest - own > ROUNDING * highest.abs().clamp(min=1)).any()):
            raise SettingError(
                f"the calibrator {self.name!r} declares that it keeps predictions but changed some: "
                "it has to say keeps_argmax = False"
            )
        kept = keep_argmax(calibrated.cpu().numpy(), logits.cpu().numpy())
        return torch.from_numpy(kept).to(calibrated.device)


class Uncalibrated(Calibrator):
    """Logits as they are, in the precision they were stored in; what others are compared with."""

    keeps_argmax = True
    novel = True

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        return []


def refuse_one_outcome(record: StoredLogits, name: str) -> None:
    """Raise if all predictions are right, or all wrong: frequencies of such data would be certainties."""
    right = record.logits.argmax(dim=1) == record.given("labels").to(record.logits.device)
    if bool(right.all()) or not bool(right.any()):
        outcome, advice = (
            ("right", "Use more validation images.") if bool(right.all()) else ("wrong", "Check the labels.")
        )
        raise SettingError(
            f"the calibrator {name!r} cannot be fitted: all {len(right)} validation images are classified {outcome}, "
            f"which says nothing about how often to be unsure. {advice}"
        )


class Chain(Calibrator):
    """Calibrators one after another. A chain promises what all of them promise and needs what any of them needs.

    Args:
        steps: The calibrators, in the order they are applied.

    >>> chain = parse("temperature -> dac(k=3)")
    >>> chain.keeps_argmax, chain.novel, chain.needs
    (True, True, ('text', 'frozen_text', 'base_text', 'base_frozen_text'))
    """

    def __init__(self, steps: Sequence[Calibrator]) -> None:
        if not steps:
            raise SettingError("a chain needs at least one calibrator")
        self.steps = tuple(steps)
        self.keeps_argmax = all(step.keeps_argmax for step in steps)
        self.novel = all(step.novel for step in steps)
        self.needs = tuple(dict.fromkeys(field for step in steps for field in step.needs))
        learners = [n for n, step in enumerate(steps, start=1) if step.learns]
        self.fitted = max(learners, default=0)  # how many steps the fit goes through: up to the last learner
        self.learns = ("states",) if learners else ()

    @property
    def name(self) -> str:
        return f" {ARROW} ".join(step.name for step in self.steps)

    @property
    def states(self) -> list[dict[str, Any]] | None:
        """What each step learned; None before the fit."""
        states = [step.state() for step in self.steps]
        return None if any(value is None for state in states for value in state.values()) else states

    @property
    def fit_needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for step in self.steps[: self.fitted] for field in step.needs))

    def forget(self) -> None:
        for step in self.steps:
            step.forget()

    def learn(self, record: StoredLogits) -> None:
        *before, last = self.steps[: self.fitted]
        for step in before:
            record = replace(record, logits=step.fit(record)(record))
        last.fit(record)

    def apply(self, record: StoredLogits) -> Tensor:
        for step in self.steps:
            record = replace(record, logits=step(record))
        return record.logits

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        return [exported for step in self.steps for exported in step.export(record)]

    def restore(self, state: Mapping[str, Any]) -> Chain:
        self.forget()
        states = state.get("states") or []
        if states and len(states) != len(self.steps):
            raise SettingError(f"the chain {self.name!r} has {len(self.steps)} steps, got the states of {len(states)}")
        for step, step_state in zip(self.steps, states, strict=False):
            step.restore(step_state)
        return self


def parse(spec: str | Calibrator | Sequence[str | Calibrator]) -> Calibrator:
    """A calibrator from its name, or a chain from several.

    Args:
        spec: A name, with options in parentheses if needed; several with "->" between them; or a list of these.

    Raises:
        UnknownNameError: if there is no such calibrator or option.
        SettingError: if the text cannot be read, or an option has a wrong value.

    >>> parse("dac(k=3)"), parse("temperature").name, parse(["temperature", "dac"]).name
    (DistanceAware(k=3, threshold=0.05, divisor='neighbours'), 'temperature', 'temperature -> dac')
    """
    if isinstance(spec, Calibrator):
        return spec
    if isinstance(spec, str):
        parts = spec.split(ARROW)
        return calibrators.create(spec) if len(parts) == 1 else Chain([calibrators.create(part) for part in parts])
    return Chain([parse(step) for step in spec])
