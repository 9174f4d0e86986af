"""What calibrators work on: the stored results of a model on a set of images, as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.metrics.inputs import ArrayLike

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
            if self.labels.is_floating_point() or self.labels.dtype == torch.bool:
                raise SettingError(f"must be whole numbers, got {self.labels.dtype}", parameter="labels")
            lowest, highest = int(self.labels.min()), int(self.labels.max())
            if lowest < 0 or highest >= C:
                raise SettingError(
                    f"must lie in 0..{C - 1} for {C} classes, got {lowest}..{highest}", parameter="labels"
                )
            object.__setattr__(self, "labels", self.labels.long())
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
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise SettingError(f"must be a tensor, an array or nested lists of numbers: {error}", parameter=name) from None
    if array.dtype.kind not in "iuf":
        raise SettingError(
            f"must be a tensor, an array or nested lists of numbers: they hold {array.dtype.name} values",
            parameter=name,
        )
    if name == "labels":
        return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    return torch.from_numpy(array.astype(np.float64))


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
