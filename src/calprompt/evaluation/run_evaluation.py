"""A run evaluated from its stored logits: every metric with its interval, under every calibrator.

Calibrators are fitted once, on validation images of the base classes (or all), and are the same map in all resamples;
all of them are measured on the same resamples. Nothing is fitted or selected on test images, unless the run was made to
have them validate, which its tables say. A threshold with a guarantee needs images that had no part in the confidences.
The validation images had none in the prompts, but a fitted calibrator has seen them: for a threshold it is fitted again
on one half of them, and the threshold is selected on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calprompt.errors import CalpromptError, SettingError
from calprompt.evaluation.bootstrap import measured_numbers
from calprompt.evaluation.numbers import Number
from calprompt.evaluation.settings import TUNED, ZERO_SHOT, EvaluationSettings, create_calibrator
from calprompt.files import canonical_json
from calprompt.metrics import GuaranteedThreshold, conventions, guaranteed_threshold, predictions
from calprompt.metrics.selective import AcceptanceRates
from calprompt.progress import Progress, silent
from calprompt.runs.folder import Run, load_run

if TYPE_CHECKING:
    from torch import Tensor

    from calprompt.calibrators import Calibrator, StoredLogits
    from calprompt.evaluation.models import StoredModel

Outcomes = tuple[Any, Any]  # confidence of each image, and whether its prediction is right


@dataclass(frozen=True)
class Accepted(AcceptanceRates):
    """What a threshold accepts of some images."""

    images: int  # how many there are
    accepted: int  # how many of them are at or above the threshold
    wrong: int  # how many of the accepted predictions are wrong


@dataclass(frozen=True)
class Selection:
    """A threshold for one calibrator."""

    # the threshold and what it accepts of the validation images it was selected on
    chosen: GuaranteedThreshold | None = None
    # how many validation images the calibrator was fitted on; the threshold was selected on the others
    fitted_on: int = 0
    state: dict[str, Any] = field(default_factory=dict)  # what the calibrator learned from them
    # what the threshold accepts of the test images; the guarantee is only for classes that were trained on
    tests: dict[str, Accepted] = field(default_factory=dict)
    reason: str | None = None  # why there is no threshold

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
    """Select a threshold on validation results and apply it to test results."""
    fitted_on = 0
    if calibrator.learns:
        import torch

        order = np.random.default_rng(seed).permutation(len(val.logits))
        fitted_on = len(order) // 2
        calibrator.fit(subset(val, torch.from_numpy(order[:fitted_on])))
        val = subset(val, torch.from_numpy(order[fitted_on:]))
    tested = {name: outcomes(calibrator, record) for name, record in tests.items()}
    chosen = choose_threshold(outcomes(calibrator, val), tested, target_error, confidence_level)
    return replace(chosen, fitted_on=fitted_on, state=calibrator.state())


def choose_threshold(val: Outcomes, tests: Mapping[str, Outcomes], error: float, level: float = 0.95) -> Selection:
    """Select a threshold on outcomes of validation images, and apply it to those of test images."""
    guarantee = guaranteed_threshold(*val, error, level)
    applied = {}
    if guarantee.threshold is not None:
        for name, (confidence, correct) in tests.items():
            accepted = confidence >= guarantee.threshold
            applied[name] = Accepted(len(accepted), int(accepted.sum()), int((accepted & ~correct).sum()))
    return Selection(guarantee, tests=applied, reason=guarantee.reason)


def outcomes(calibrator: Calibrator, record: StoredLogits) -> Outcomes:
    """Calibrated confidence of each image, and whether its prediction is right."""
    sample = predictions(calibrator(record), record.given("labels"), from_logits=True)
    return sample.confidence, sample.correct


def subset(record: StoredLogits, indices: Tensor) -> StoredLogits:
    """Some images of a record."""
    from torch import Tensor

    shared = {"frozen_text", "base_frozen_text"} | {
        name for name in ("text", "base_text") if (text := getattr(record, name)) is not None and text.ndim == 2
    }
    rows: dict[str, Any] = {
        name: tensor[indices.to(tensor.device)]
        for name, tensor in vars(record).items()
        if isinstance(tensor, Tensor) and name not in shared
    }
    return replace(record, **rows)


VAL_ADVICE = "train it with the validation setting train:0.2, which keeps a fifth of the training images for that"


@dataclass(frozen=True)
class Calibrated:
    """One model under one calibrator."""

    model: str  # "tuned" or "zero-shot"
    calibrator: str  # its name, with options or as a chain
    keeps_argmax: bool  # whether the calibrator never changes a prediction
    novel: bool  # whether it applies to classes that it was not fitted on
    state: dict[str, Any] | None  # what it learned; None if it could not be fitted
    values: dict[str, dict[str, Number]] = field(default_factory=dict)  # split -> metric -> value
    reasons: dict[str, str] = field(default_factory=dict)  # split -> why there are no values
    selection: Selection | None = None  # the threshold with a guarantee, if one was asked for


@dataclass(frozen=True)
class Evaluation:
    """A run under all calibrators."""

    run: Run  # what was evaluated
    settings: EvaluationSettings  # how
    sizes: dict[str, tuple[int, int]]  # test split -> number of images and of classes
    val_images: int  # how many validation images there are
    calibrated: tuple[Calibrated, ...]  # the results, by model and calibrator


def evaluate_run(
    folder: str | Path, settings: EvaluationSettings | None = None, *, progress: Progress = silent
) -> Evaluation:
    """All metrics of a run's test splits under all calibrators, from its files of logits alone.

    Args:
        folder: Folder of the run.
        settings: Evaluation settings.
        progress: Callback for progress.

    Raises:
        NotFoundError: if it is no folder of a run, or the run is not finished.
        DamagedFileError: if a file of the run is damaged.
    """
    settings = settings or EvaluationSettings()
    from calprompt.evaluation.models import stored_models

    run = load_run(folder)
    models = stored_models(run)
    selected = [models[name] for name in ((TUNED, ZERO_SHOT) if settings.zero_shot else (TUNED,))]
    results: list[Calibrated] = []
    total = len(selected) * len(settings.specs)
    for model in selected:
        for spec in settings.specs:
            progress(f"evaluating {run.folder.name}", len(results), total, spec)
            results.append(_calibrated(model, spec, settings))
    progress(f"evaluating {run.folder.name}", total, total, "")
    sizes = {name: (len(record.logits), record.logits.shape[1]) for name, record in models[ZERO_SHOT].tests.items()}
    val = models[TUNED].val
    return Evaluation(run, settings, sizes, 0 if val is None else len(val.logits), tuple(results))


def _calibrated(model: StoredModel, spec: str, settings: EvaluationSettings) -> Calibrated:
    calibrator = create_calibrator(spec)
    unfit = _fit(calibrator, spec, model.val)
    values: dict[str, dict[str, Number]] = {}
    reasons = dict(model.missing)
    for split, record in model.tests.items():
        try:
            if split in model.others and not calibrator.novel:
                raise SettingError(f"{spec} is for the classes it was fitted on and does not apply to others")
            if unfit is not None:
                raise unfit
            values[split] = _measure(calibrator(record), record, split, settings)
        except CalpromptError as error:
            reasons[split] = str(error)
    selection = None
    if settings.target_error is not None:
        selection = _select(model, spec, {split: model.tests[split] for split in values}, settings)
    state = _plain(calibrator, spec) if unfit is None else None
    return Calibrated(model.name, spec, calibrator.keeps_argmax, calibrator.novel, state, values, reasons, selection)


def _fit(calibrator: Calibrator, spec: str, val: StoredLogits | None) -> CalpromptError | None:
    """Fit a calibrator; returns the error if that fails."""
    if not calibrator.learns:
        return None
    try:
        if val is None:
            raise SettingError(
                f"the run has no validation images, and {spec} has to be fitted on some; {VAL_ADVICE}; closed-form "
                "calibrators such as dac and sals need none"
            )
        calibrator.fit(val)
    except CalpromptError as error:
        return error
    return None


def _measure(logits: Tensor, record: StoredLogits, split: str, settings: EvaluationSettings) -> dict[str, Number]:
    softmax = conventions.get(settings.convention).softmax
    sample = predictions(logits, record.given("labels"), from_logits=True, softmax=softmax)
    return measured_numbers(
        sample,
        n_bins=settings.bins,
        convention=settings.convention,
        resamples=settings.bootstrap,
        seed=(settings.seed, *split.encode()),  # the same images for every calibrator
    )


def _select(model: StoredModel, spec: str, tests: dict[str, StoredLogits], settings: EvaluationSettings) -> Selection:
    if model.val is None:
        return Selection(reason=f"the run has no validation images to choose a threshold on; {VAL_ADVICE}")
    assert settings.target_error is not None
    try:
        return select(
            create_calibrator(spec),
            model.val,
            tests,
            target_error=settings.target_error,
            confidence_level=settings.confidence_level,
            seed=settings.seed,
        )
    except CalpromptError as error:
        return Selection(reason=str(error))


def _plain(calibrator: Calibrator, spec: str) -> dict[str, Any]:
    """What a calibrator learned, as plain data."""
    state = calibrator.state()
    try:
        canonical_json(state)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"state() of the calibrator {spec!r} must return plain numbers, text, lists and dictionaries: {error}"
        ) from error
    return state
