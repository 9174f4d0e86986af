"""What the server knows of a model, whatever it was made from: a fitted classifier, a run or an exported folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.class_names import check_class_names
from calprompt.errors import SettingError
from calprompt.promises import DecisionRule, SetRule, TrackRecord
from calprompt.promises.image_watch import NO_HELD_OUT
from calprompt.serve.decoder import View

Predict = Callable[[NDArray[np.uint8]], tuple[NDArray[Any], NDArray[np.float64]]]

MOST_CLASSES = 1000
MOST_CHARACTERS = 200  # of a class name


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that is served. Pickled, it is without what computes: another process only takes feedback on it.

    Attributes:
        name: What it is called.
        version: Of the model of this name.
        kind: "model", "run" or "onnx".
        fingerprint: Changes with whatever changes its answers.
        labels: Classes as people call them, in the order of the columns of logits.
        view: What an image goes through.
        predict: From 8-bit pixels [n, size, size, 3] to logits and calibrated probabilities, [n, C] each.
        rule: When it answers.
        promises: What is promised, refused or withdrawn: kind, text, status, detail and sentence of each.
        track_record: How often its answers were right on images it did not learn from.
        image_watch: What new images are compared with, as `ImageWatch.fresh_record` gives it; None if nothing is.
        not_watched: Why nothing is.
        calibrator: Its name.
        about: How it was made, in sentences.
        with_labels: Makes the same model with other classes; None if that cannot be.
        fixed: Why it cannot.
        fitted_labels: Classes that it was fitted on.
        weak: Classes most of whose images in the track record it is wrong on.
    """

    name: str
    kind: str
    fingerprint: str
    labels: tuple[str, ...]
    view: View
    predict: Predict
    rule: DecisionRule = field(default_factory=DecisionRule)
    promises: tuple[dict[str, Any], ...] = ()
    track_record: TrackRecord | None = None
    image_watch: dict[str, Any] | None = None
    not_watched: str = NO_HELD_OUT
    calibrator: str | None = None
    about: tuple[str, ...] = ()
    with_labels: Callable[[tuple[str, ...]], ServedModel] | None = None
    fixed: str | None = None
    fitted_labels: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    version: str = "1"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "predict": None, "with_labels": None, "track_record": None}

    def edited(self, names: Sequence[str]) -> ServedModel:
        """The same model with other classes; takes a while.

        Raises:
            SettingError: if the names make no sense, or its classes cannot be edited.
        """
        labels = check_labels(names)
        if labels == self.labels:
            return self
        if self.with_labels is None:
            raise SettingError(f"the classes of this model cannot be edited: {self.fixed}")
        return self.with_labels(labels)

    def set_rule(self, coverage: float | None, per_class: bool = False) -> SetRule | None:
        """How prediction sets of some coverage are made; None if none are asked for.

        Raises:
            SettingError: if there are no sets of this coverage.
        """
        if coverage is None:
            if per_class:
                raise SettingError("per_class is about prediction sets; give their coverage too")
            return None
        return self.rule.set_rule(coverage, per_class)


def check_labels(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as a client may give them."""
    if len(names) > MOST_CLASSES:
        raise SettingError(f"must be {MOST_CLASSES} names at most, got {len(names)}", parameter="classes")
    for name in names:
        if len(name) > MOST_CHARACTERS:
            raise SettingError(
                f"must be names of {MOST_CHARACTERS} characters at most, got {len(name)}", parameter="classes"
            )
        if not name.isprintable():
            raise SettingError(
                f"must be names without line breaks and control characters, got {name!r}", parameter="classes"
            )
    if not names:
        raise SettingError("must be one or more names, got none", parameter="classes")
    try:
        return check_class_names([name.strip() for name in names])
    except SettingError as error:
        error.rename(class_names="classes")
        raise
