"""Fitted classifiers on labelled images that they did not learn from: measured, and as contenders of a comparison."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calprompt.classifier.checks import Check, check, outcomes
from calprompt.classifier.model_folder import read_model
from calprompt.data.checks import find_unreadable
from calprompt.data.dataset import Split
from calprompt.data.labelled import LabelledImages, labelled_images
from calprompt.errors import DataError, SettingError
from calprompt.progress import Progress, silent
from calprompt.promises import Evidence
from calprompt.promises.track_record import DESCRIPTIONS
from calprompt.results.compare import Answers, Contender
from calprompt.runs.resources import Resources
from calprompt.text import bullets, plural, shorten

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier

SPLIT = "all"
STORED = "images that all models stored predictions of"


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
    source = f"the data called {data.name}" if data.name in DESCRIPTIONS else data.name
    found = check(source, evidence, names, majority=majority, zero_shot_logits=zero_shot)
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
            lines = bullets(dict(sorted(bad.items())))
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


def stored_contenders(folders: Sequence[str | Path]) -> list[Contender]:
    """Models with the predictions in their folders, each made by prompts that did not learn from the image."""
    found = []
    for name, folder in zip(model_names(folders), folders, strict=True):
        model = read_model(folder)
        part = model.predicted
        answers = Answers(model.probabilities(part), part.labels, part.digests, [str(label) for label in model.labels])
        found.append(Contender(name, STORED, 0, {SPLIT: answers}))
    return found


def measured_contenders(
    folders: Sequence[str | Path], data: Any, *, device: str | None = None, progress: Progress = silent
) -> list[Contender]:
    """Models with their answers to labelled images that none of them learned from."""
    from calprompt.classifier.estimator import Classifier

    found, resources = [], Resources()
    for name, folder in zip(model_names(folders), folders, strict=True):
        classifier = Classifier.load(folder, device=device, resources=resources)
        images = labelled_images(data, upright=not classifier.ignore_exif)
        classes = [str(label) for label in classifier.classes_.tolist()]
        split, labels = images_to_measure(classifier, images, classes)
        batches = classifier.predictor_.stream(split.images, progress=progress)
        probabilities = np.concatenate([np.asarray(batch.probabilities, dtype=np.float64) for batch in batches])
        digests = [split.images.digest(index) for index in range(len(split))]
        found.append(Contender(name, images.name, 0, {SPLIT: Answers(probabilities, labels, digests, classes)}))
    return found


def model_names(folders: Sequence[str | Path]) -> list[str]:
    """Names of the folders, with as much of the path as tells them apart.

    >>> model_names(["models/a", "models/b/"]), model_names(["one/model", "two/model"])
    (['a', 'b'], ['one/model', 'two/model'])
    """
    parts = [Path(folder).expanduser().resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise SettingError("a model stands twice in the comparison; give each of them once")
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names
