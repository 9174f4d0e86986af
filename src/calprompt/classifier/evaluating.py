"""A fitted classifier measured on labelled images that it did not learn from."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from calprompt.classifier.checks import Check, check, outcomes
from calprompt.data.dataset import Split
from calprompt.data.labelled import LabelledImages
from calprompt.data.unreadable import find_unreadable
from calprompt.errors import DataError
from calprompt.progress import Progress, silent
from calprompt.promises import Evidence
from calprompt.text import bullets, plural, shorten

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier


def evaluate_images(classifier: Classifier, data: LabelledImages, *, progress: Progress = silent) -> Check:
    """Measure a classifier."""
    names = [str(label) for label in classifier.classes_.tolist()]
    split, labels = images_to_measure(classifier, data, names)
    predictor = classifier.predictor_
    batches = list(predictor.stream(split.images, progress=progress))
    evidence = Evidence.of(
        np.concatenate([batch.logits.numpy() for batch in batches]),
        np.concatenate([batch.probabilities for batch in batches]),
        labels,
    )
    zero_shot = None
    if not predictor.tuner.needs_pixels:  # otherwise these are not the features of the untuned model
        zero_shot = predictor.zero_shot_logits(torch.cat([batch.features for batch in batches])).numpy()
    model = classifier.model_
    totals = {str(label): total for label, total in zip(model.labels, model.totals, strict=True)}
    known = [totals.get(name, 0) for name in names]
    majority = int(np.argmax(known if any(known) else np.bincount(labels, minlength=len(names))))
    found = check(data.name, evidence, names, majority=majority, zero_shot_logits=zero_shot)
    return replace(found, outcomes=outcomes(classifier.rule_, classifier.promises_, evidence, names))


def images_to_measure(
    classifier: Classifier, data: LabelledImages, names: list[str]
) -> tuple[Split, NDArray[np.int64]]:
    """The images to measure on, with labels as numbers of the classifier's classes."""
    split = data.test if data.test is not None else data.train
    if classifier.skip_bad:
        bad = find_unreadable([split])
        split = split.take([index for index in range(len(split)) if split.images.name(index) not in bad])
        if bad:
            lines = bullets([f"{name} ({reason})" for name, reason in sorted(bad.items())])
            warnings.warn(f"left out, {plural(len(bad), 'image')} that cannot be read:{lines}", stacklevel=4)
    if not len(split):
        raise DataError(f"{data.name} has no images to measure on")
    place = {name: number for number, name in enumerate(names)}
    used = [str(data.labels[label]) for label in split.labels]
    strange = [name for name in dict.fromkeys(used) if name not in place]
    if strange:
        raise DataError(
            f"{data.name} has classes that the model does not know: {shorten(strange)}; it knows {shorten(place)}"
        )
    seen = set(classifier.model_.predicted.digests)
    again = sum(split.images.digest(index) in seen for index in range(len(split)))
    if again:
        raise DataError(
            f"{plural(again, 'image')} of {data.name} {'was' if again == 1 else 'were'} used to fit the model, so "
            "nothing could be learned from measuring on them; what it says of them is in images.csv of its folder"
        )
    return split, np.array([place[name] for name in used], dtype=np.int64)
