"""A confidence threshold with a guarantee, selected on the validation images of a run and applied to its test images.

The guarantee needs images that had no part in the confidences. The validation images had none in the prompts, but a
fitted calibrator has seen them: it is fitted again on one half, and the threshold is selected on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.metrics import GuaranteedThreshold, guaranteed_threshold, predictions
from calprompt.metrics.selective import AcceptanceRates


@dataclass(frozen=True)
class Accepted(AcceptanceRates):
    """What a threshold accepts of some images.

    Attributes:
        images: How many there are.
        accepted: How many of them are at or above the threshold.
        wrong: How many of the accepted predictions are wrong.
    """

    images: int
    accepted: int
    wrong: int


@dataclass(frozen=True)
class Selection:
    """A threshold for one calibrator.

    Attributes:
        chosen: The threshold and what it accepts of the validation images it was selected on.
        fitted_on: How many validation images the calibrator was fitted on; the threshold was selected on the others.
        state: What the calibrator learned from them.
        tests: What the threshold accepts of the test images; the guarantee is only for classes that were trained on.
        reason: Why there is no threshold.
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
        """By split: "val" are the images it was selected on, then the test splits; empty if there is no threshold."""
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
    """Select a threshold on validation results and apply it to test results.

    Args:
        calibrator: Is fitted on half of the validation results, if it learns.
        val: Validation results.
        tests: Test results by split, those that the calibrator applies to.
        target_error: The largest error rate of accepted predictions.
        confidence_level: How sure the guarantee has to be.
        seed: Of halving the validation results.
    """
    fitted_on = 0
    if calibrator.learns:
        order = np.random.default_rng(seed).permutation(len(val.logits))
        fitted_on = len(order) // 2
        calibrator.fit(subset(val, torch.from_numpy(order[:fitted_on])))
        val = subset(val, torch.from_numpy(order[fitted_on:]))
    guarantee = guaranteed_threshold(*outcomes(calibrator, val), target_error, confidence_level)
    applied = {}
    if guarantee.threshold is not None:
        for name, record in tests.items():
            confidence, correct = outcomes(calibrator, record)
            accepted = confidence >= guarantee.threshold
            applied[name] = Accepted(len(accepted), int(accepted.sum()), int((accepted & ~correct).sum()))
    return Selection(guarantee, fitted_on, calibrator.state(), applied, guarantee.reason)


def outcomes(calibrator: Calibrator, record: StoredLogits) -> tuple[Any, Any]:
    """Calibrated confidence of each image, and whether its prediction is right."""
    sample = predictions(calibrator(record), record.given("labels"), from_logits=True)
    return sample.confidence, sample.correct


def subset(record: StoredLogits, indices: Tensor) -> StoredLogits:
    """Some images of a record."""
    shared = {"frozen_text", "base_frozen_text"} | {
        name for name in ("text", "base_text") if (text := getattr(record, name)) is not None and text.ndim == 2
    }
    rows: dict[str, Any] = {
        name: tensor[indices.to(tensor.device)]
        for name, tensor in vars(record).items()
        if isinstance(tensor, Tensor) and name not in shared
    }
    return replace(record, **rows)
