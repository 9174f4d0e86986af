"""A fitted classifier as a folder that needs no torch; in int8, with promises made again on its held-out images."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calprompt.classifier.card import model_card
from calprompt.classifier.fitting import FittedModel, calibrated, temperature_of
from calprompt.data.labelled import LabelledImages
from calprompt.errors import SettingError
from calprompt.progress import Progress, silent
from calprompt.promises import DecisionRule, Evidence, Promise, Requests, make_promises
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.predictor import Predictor


def export_model(
    model: FittedModel,
    predictor: Predictor,
    out: str | Path,
    *,
    rule: DecisionRule,
    promises: Sequence[Promise],
    labels: Sequence[Any],
    progress: Progress = silent,
) -> Path:
    """Write a fitted model into a folder that runs with onnxruntime, numpy and Pillow alone.

    Args:
        model: What was fitted.
        predictor: On the classes to export.
        out: The folder, which must not exist or be empty.
        rule: The thresholds of answers.
        promises: What is promised, refused or withdrawn.
        labels: What the user calls each class.
        progress: Shows how far it is.
    """
    from calprompt.export import export_predictor

    sentences = [promise.sentence for promise in promises]
    card = model_card(model).replace("![Reliability diagram before and after calibration](reliability.png)\n\n", "")
    return export_predictor(
        predictor, out, rule=rule, labels=list(labels), promises=sentences, card=card, progress=progress
    )


def export_int8(
    model: FittedModel,
    predictor: Predictor,
    out: str | Path,
    data: LabelledImages,
    *,
    max_accuracy_drop: float,
    max_ece_rise: float,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The same with an image tower in int8, measured on the held-out images, on which its promises are made again.

    The calibrator stays: it was fitted on other images. Thresholds and quantiles are found anew on the int8 model's
    logits of the held-out images, which had no part in anything else, so that its promises are worth as much.

    Args:
        model: What was fitted.
        predictor: On the classes it was fitted on.
        out: The folder, which must not exist or be empty.
        data: The images that it was fitted on.
        max_accuracy_drop: How much lower the accuracy may be, as a fraction.
        max_ece_rise: How much higher the calibration error may be, as a fraction.
        progress: Shows how far it is.

    Returns:
        What was measured before and after.

    Raises:
        CalpromptError: if accuracy or calibration suffers more than that; nothing is written then.
    """
    from calprompt.export import quantize_folder
    from calprompt.export.exporter import calibrator_steps

    images, rows = held_out_images(model, data)
    held = model.predicted.take(rows)
    crossed = model.predicted.take(model.predicted.fold >= 0)
    pilot = Evidence.of(
        crossed.logits, calibrated(model.calibrator, crossed, model.text, model.logit_scale), crossed.labels
    )
    steps = calibrator_steps(predictor)
    wanted = Requests(
        model.requests["target_error"] or None,
        model.requests["coverage"] or None,
        model.requests["per_class"],
        model.requests["level"],
    )

    def refit(logits: NDArray[np.float32]) -> tuple[list[dict[str, Any]], DecisionRule, list[str]]:
        part = replace(held, logits=logits)
        evidence = Evidence.of(logits, calibrated(model.calibrator, part, model.text, model.logit_scale), held.labels)
        rule, promises = make_promises(
            wanted,
            pilot,
            evidence,
            open_set=model.rule.open_set,
            temperature=temperature_of(model.calibrator),
            total=len(model.predicted),
        )
        return steps, rule, [promise.sentence for promise in promises]

    with tempfile.TemporaryDirectory(prefix="calprompt-export-") as place:
        whole = export_model(
            model, predictor, Path(place) / "float", rule=model.rule, promises=model.promises, labels=model.labels
        )
        return quantize_folder(
            whole,
            out,
            images,
            held.labels,
            refit=refit,
            max_accuracy_drop=max_accuracy_drop,
            max_ece_rise=max_ece_rise,
            progress=progress,
        )


def held_out_images(model: FittedModel, data: LabelledImages) -> tuple[list[Any], NDArray[np.bool_]]:
    """The images that the model kept for promises, found among its data by their content, and which of all they are."""
    rows = model.predicted.fold < 0
    wanted = [digest for digest, own in zip(model.predicted.digests, rows.tolist(), strict=True) if own]
    if not wanted:
        raise SettingError(
            "int8 is measured on images that were held out for promises, and this model has none; fit it on more "
            "images, or export it without int8=True"
        )
    images = data.train.images
    found = {images.digest(index): index for index in range(len(images))}
    missing = sum(digest not in found for digest in wanted)
    if missing:
        raise SettingError(
            f"of the {plural(len(wanted), 'image')} that the model kept for promises, {missing} cannot be found in "
            f"{data.name}; give the data that it was fitted on"
        )
    return [_as_input(images, found[digest]) for digest in wanted], rows


def _as_input(images: Any, index: int) -> Any:
    """An image as a list of images has it."""
    picture = images.read(index)
    return picture.data if hasattr(picture, "data") else picture.image
