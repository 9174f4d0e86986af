"""A fitted classifier as a folder that needs no torch; in int8, with promises made again on its held-out images."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calprompt.classifier.card import export_card
from calprompt.classifier.fitted_model import FittedModel, Predicted, measured_open_set, temperature_of
from calprompt.classifier.settings import requests_of
from calprompt.data.images import FileContent, Images, PillowPicture
from calprompt.data.labelled import LabelledImages
from calprompt.errors import ImageError, SettingError
from calprompt.progress import Progress, silent
from calprompt.promises import DecisionRule, Evidence, make_promises
from calprompt.promises.requests import NEVER_MISS
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier
    from calprompt.predictor import Predictor


INT8 = "the image tower was rounded to int8, and its images were not looked at again"


def export_classifier(classifier: Classifier, out: str | Path, *, progress: Progress = silent) -> Path:
    """Write a fitted classifier into a folder that runs with onnxruntime, numpy and Pillow alone."""
    from calprompt.export.exporter import export_predictor

    rule, promises, labels = classifier.rule_, classifier.promises_, classifier.classes_.tolist()
    return export_predictor(
        classifier.predictor_,
        out,
        rule=rule,
        labels=labels,
        promises=[promise.sentence for promise in promises],
        card=export_card(replace(classifier.model_, rule=rule, promises=promises), labels),
        **(_measured(classifier.model_) if rule.withdrawn is None else {}),
        progress=progress,
    )


def _measured(model: FittedModel) -> dict[str, Any]:
    """What held-out images said of the classes that a model was fitted on."""
    return {
        "track_record": model.track_record,
        "weak_classes": model.checks[0].weak_classes,
        "image_watch": model.image_watch(),
    }


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

    The calibrator stays: it was fitted on other images, and so were the ranges of activations. Thresholds and quantiles
    are found anew on the int8 model's logits of the held-out images, so that its promises are worth as much, and the
    rates of none of these are measured anew. These images also decide whether int8 is good enough to be written at all.
    """
    from calprompt.export.exporter import calibrator_steps, export_predictor
    from calprompt.export.quantization import quantize_folder

    held = model.predicted.held_out
    crossed = model.predicted.crossed
    images = images_of(held, data)
    pilot = Evidence.of(crossed.logits, model.probabilities(crossed), crossed.labels)
    steps = calibrator_steps(predictor)
    wanted = replace(requests_of(model.requests), never_miss=())
    known = model.rule.open_set

    def refit(
        logits: NDArray[np.float32], zero_shot: NDArray[np.float32] | None
    ) -> tuple[list[dict[str, Any]], DecisionRule, list[str]]:
        part = replace(held, logits=logits, zero_shot_logits=held.zero_shot_logits if zero_shot is None else zero_shot)
        probabilities = model.probabilities(part)
        rule, promises = make_promises(
            wanted,
            pilot,
            Evidence.of(logits, probabilities, held.labels),
            open_set=None if known is None else measured_open_set(known, ~known.accepts(logits), part),
            temperature=temperature_of(model.calibrator),
            unseen=model.unseen,
            total=len(model.predicted),
            costs=model.rule.costs,
        )
        untested = [promise.withdrawn(INT8) for promise in model.promises if promise.kind == NEVER_MISS]
        rule = replace(rule, guards=tuple(replace(each, promised=False) for each in model.rule.guards))
        return steps, rule, [promise.sentence for promise in (*promises, *untested)]

    with tempfile.TemporaryDirectory(prefix="calprompt-export-") as place:
        whole = export_predictor(
            predictor,
            Path(place) / "float",
            rule=model.rule,
            labels=list(model.labels),
            **_measured(model),
            progress=progress,
        )
        return quantize_folder(
            whole,
            out,
            images,
            held.labels,
            refit=refit,
            max_accuracy_drop=max_accuracy_drop,
            max_ece_rise=max_ece_rise,
            range_images=images_of(crossed, data),
            progress=progress,
        )


def images_of(predicted: Predicted, data: LabelledImages) -> list[Any]:
    """Images of a model, found among its data by their content."""
    if not len(predicted):
        raise SettingError(
            "int8 is measured on images that were held out for promises, and this model has none; fit it on more "
            "images, or export it without int8=True"
        )
    images = data.train.images
    found: dict[str, int] = {}
    for index in range(len(images)):
        with suppress(ImageError):  # one that cannot be read had no part in the fit
            found[images.digest(index)] = index
    missing = sum(digest not in found for digest in predicted.digests)
    if missing:
        raise SettingError(
            f"of the {plural(len(predicted), 'image')} that the model needs for that, {missing} cannot be found in "
            f"{data.name}; give the data that it was fitted on"
        )
    return [_as_input(images, found[digest]) for digest in predicted.digests]


def _as_input(images: Images, index: int) -> Any:
    picture = images.read(index)
    if isinstance(picture, FileContent):
        return picture.data
    if isinstance(picture, PillowPicture):
        return picture.image
    raise SettingError("int8 needs image files, and these data hold tensors")
