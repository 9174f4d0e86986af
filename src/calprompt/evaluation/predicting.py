"""The predictor of a run: its prompts on some of its classes, under a calibrator that `evaluate` has fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calprompt.calibrators import Calibrator
from calprompt.class_names import check_class_names
from calprompt.errors import CalpromptError, DamagedFileError, Parameter, SettingError
from calprompt.evaluation.models import TUNED, stored_models
from calprompt.evaluation.run_evaluation import VAL_ADVICE
from calprompt.evaluation.settings import NONE, PARTS, create_calibrator, normalized_spec
from calprompt.predictor import Predictor
from calprompt.registry import unknown
from calprompt.runs.folder import EVALUATION, LOGITS, Run, load_run, read_evaluation, read_run_tensors
from calprompt.runs.preparation import tuner_for_classes
from calprompt.runs.restoring import Restored, restore


def run_predictor(
    run: str | Path | Run,
    *,
    calibrator: str | None,
    part: str | None,
    class_names: Sequence[str] | None,
    **loading: Any,
) -> Predictor:
    """The predictor of a finished run; see `Predictor.from_run`, and for `loading` `restore`."""
    run = run if isinstance(run, Run) else load_run(run)
    fitted = fitted_calibrator(run, calibrator) if calibrator not in (None, NONE) else None
    restored = restore(run, **loading)
    names = _class_names(restored, part, class_names)
    if fitted is not None and not fitted.novel and names != restored.tuner.class_names:
        raise SettingError(f"{calibrator} is for the classes it was fitted on and does not apply to others")
    with restored.backbone.limited_threads():
        tuner, reason = tuner_for_classes(restored.config, restored.tuner, names, restored.tuner.template)
    if tuner is None:
        raise SettingError(f"{run.folder}: {reason}")
    tensors, metadata = read_run_tensors(run.folder, LOGITS, run.record)
    base = next(iter(restored.class_names))
    return Predictor(
        tuner,
        calibrator=fitted,
        text=_stored_text(tensors, metadata["class_names"], names),
        base_text=tensors[f"{base}/text"],
        base_frozen_text=tensors[f"{base}/frozen_text"],
        upright=restored.config.exif,
    )


def fitted_calibrator(run: Run, spec: str) -> Calibrator:
    """A calibrator with what it learned on the validation images of a run.

    Its state is read from evaluation.json, if `evaluate` has fitted it; otherwise it is fitted on the stored logits in
    the same way.
    """
    spec = normalized_spec(spec)
    calibrator = create_calibrator(spec)
    if not calibrator.learns:
        return calibrator
    evaluation = read_evaluation(run.folder)
    entries = evaluation["runs"] if evaluation is not None else []
    for entry in entries:
        if entry.get("fingerprint") != run.record["fingerprint"]:
            raise DamagedFileError(
                f"{run.folder / EVALUATION} is of another run; delete it, and 'calprompt evaluate' writes it again"
            )
        for record in entry["calibrators"]:
            if (record["model"], record["calibrator"]) == (TUNED, spec) and record["state"] is not None:
                return calibrator.restore(record["state"])
    val = stored_models(run)[TUNED].val
    if val is None:
        raise SettingError(
            f"{run.folder} has no validation images to fit the calibrator {spec} on; {VAL_ADVICE}; closed-form "
            "calibrators such as dac and sals need none"
        )
    return calibrator.fit(val)


def default_calibrator(run: Run) -> str:
    """temperature, if there are validation images to fit it on and they are enough; else none."""
    if not run.record["data"].get("images", {}).get("val"):
        return NONE
    try:
        fitted_calibrator(run, "temperature")
    except CalpromptError:
        return NONE
    return "temperature"


def _class_names(restored: Restored, part: str | None, class_names: Sequence[str] | None) -> tuple[str, ...]:
    parts = restored.class_names
    if class_names is not None:
        if part is not None:
            raise SettingError("give ", Parameter("part"), " or ", Parameter("class_names"), ", not both")
        return check_class_names(class_names)
    if part is None:
        return next(iter(parts.values()))
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    if part in parts:
        return parts[part]
    if part != "all":
        raise SettingError(
            f"{restored.run.folder} has no {part} classes, it was tuned on all of them; give ", Parameter("part", "all")
        )
    return tuple(dict.fromkeys(name for names in parts.values() for name in names))


def _stored_text(tensors: dict[str, Tensor], parts: dict[str, list[str]], names: Sequence[str]) -> Tensor | None:
    """The text features [C, D] that the run stored, where each image has its own in truth; None if some are missing."""
    features: dict[str, Tensor] = {}
    for part, class_names in parts.items():
        if f"{part}/text" in tensors:
            features |= zip(class_names, tensors[f"{part}/text"], strict=True)
    return torch.stack([features[name] for name in names]) if all(name in features for name in names) else None
