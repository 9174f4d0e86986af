"""A confidence threshold with a guarantee, chosen on the validation images of a run and looked at on its test images.

The guarantee needs images that had no part in the confidences. The validation images had none in the prompts, but a
fitted calibrator has seen them: it is fitted again on one half of them, and the threshold is chosen on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.metrics import GuaranteedThreshold, guaranteed_threshold, predictions


@dataclass(frozen=True)
class Accepted:
    """What a threshold accepts of some images."""

    images: int
    accepted: int
    wrong: int

    @property
    def coverage(self) -> float:
        return self.accepted / self.images

    @property
    def error(self) -> float | None:
        """Of the accepted ones, if there are any."""
        return self.wrong / self.accepted if self.accepted else None


@dataclass(frozen=True)
class Selection:
    """A threshold for one calibrator.

    fitted_on  validation images that the calibrator was fitted on for this; the threshold was chosen on the others
    state      what it learned from them
    tests      what the threshold accepts of the test images; the guarantee is for classes that were trained on only
    reason     why there is no threshold
    """

    chosen: GuaranteedThreshold | None = None
    fitted_on: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, Accepted] = field(default_factory=dict)
    reason: str | None = None

    @property
    def threshold(self) -> float | None:
        """The threshold, if there is one."""
        return None if self.chosen is None else self.chosen.threshold

    @property
    def accepted(self) -> dict[str, Accepted]:
        """Of the validation images it was chosen on (val) and of the test images; empty if there is no threshold."""
        if self.chosen is None or self.chosen.threshold is None:
            return {}
        return {"val": Accepted(self.chosen.images, self.chosen.accepted, self.chosen.wrong), **self.tests}


def select(
    calibrator: Calibrator,
    val: StoredLogits,
    tests: dict[str, StoredLogits],
    *,
    target_error: float,
    confidence_level: float = 0.95,
    seed: int = 0,
) -> Selection:
    """Choose a threshold on validation results and apply it to test results; the calibrator is fitted, if it has to be.

    tests  those that the calibrator may be applied to
    """
    fitted_on = 0
    if calibrator.learns:
        order = np.random.default_rng(seed).permutation(len(val.logits))
        fitted_on = len(order) // 2
        calibrator.fit(subset(val, torch.from_numpy(order[:fitted_on])))
        val = subset(val, torch.from_numpy(order[fitted_on:]))
    chosen = guaranteed_threshold(*outcomes(calibrator, val), target_error, confidence_level)
    found = {}
    if chosen.threshold is not None:
        for name, record in tests.items():
            confidence, correct = outcomes(calibrator, record)
            accepted = confidence >= chosen.threshold
            found[name] = Accepted(len(accepted), int(accepted.sum()), int((accepted & ~correct).sum()))
    return Selection(chosen, fitted_on, calibrator.state(), found, chosen.reason)


def outcomes(calibrator: Calibrator, record: StoredLogits) -> tuple[Any, Any]:
    """Calibrated confidence of each image, and whether its prediction is right."""
    given = predictions(calibrator(record), record.given("labels"), from_logits=True)
    return given.confidence, given.correct


def subset(record: StoredLogits, indices: Tensor) -> StoredLogits:
    """Some images of a record."""
    shared = {"frozen_text", "base_frozen_text"} | {
        name for name in ("text", "base_text") if (held := getattr(record, name)) is not None and held.ndim == 2
    }
    own: dict[str, Any] = {
        name: held[indices.to(held.device)]
        for name, held in vars(record).items()
        if isinstance(held, Tensor) and name not in shared
    }
    return replace(record, **own)
