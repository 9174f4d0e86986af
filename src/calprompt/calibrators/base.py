"""What a calibrator is: a map of logits, fitted on held-out ones and applied to stored ones, without the model.

    StoredLogits(val)  ── fit ──▶  calibrator          StoredLogits(test)  ── calibrator ──▶  logits [n, C], float64

A subclass says what it promises, what it needs and what it learns, and writes `learn` and `apply`. The checks are here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from calprompt.calibrators.stored_logits import StoredLogits, as_stored_logits
from calprompt.errors import SettingError
from calprompt.metrics.inputs import ArrayLike
from calprompt.registry import Registry

calibrators: Registry[type[Calibrator]] = Registry("calibrator")

Own = TypeVar("Own", bound="Calibrator")
ROUNDING = 1e-12  # a difference of logits that is a tie


class Calibrator(ABC):
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

    @abstractmethod
    def apply(self, record: StoredLogits) -> Tensor:
        """Calibrated logits [n, C] in float64."""

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        """What it does to logits, as steps of plain data that an exported model repeats without torch.

        Args:
            record: The classes and what else it needs, such as text features, beside the logits of no image.

        Raises:
            SettingError: if it is not fitted, or there is no such step.
        """
        self._check(record, "exporting it")
        return [{**self.as_step(record), "keeps_argmax": self.keeps_argmax}]

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        """One of the steps that `calprompt.export.runtime` can compute: its name and its numbers."""
        raise SettingError(
            f"the calibrator {self.name!r} cannot be exported: it has no method as_step that writes it as one of the "
            "steps of calprompt/export/runtime.py"
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
        top = logits.argmax(dim=1, keepdim=True)
        highest = calibrated.max(dim=1, keepdim=True).values
        moved = calibrated.argmax(dim=1, keepdim=True) != top
        if not bool(moved.any()):
            return calibrated
        if bool((highest - calibrated.gather(1, top) > ROUNDING * highest.abs().clamp(min=1))[moved].any()):
            raise SettingError(
                f"the calibrator {self.name!r} declares that it keeps predictions but changed some: "
                "it has to say keeps_argmax = False"
            )
        above = torch.nextafter(highest, highest.new_tensor(float("inf")))
        return torch.where(moved, calibrated.scatter(1, top, above), calibrated)


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
