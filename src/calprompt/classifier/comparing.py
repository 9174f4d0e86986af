"""Fitted classifiers as contenders of a comparison: on images that they stored predictions of, or on others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.classifier.estimator import Classifier
from calprompt.classifier.evaluating import images_to_measure
from calprompt.classifier.model_folder import read_model
from calprompt.data.labelled import labelled_images
from calprompt.errors import SettingError
from calprompt.progress import Progress, silent
from calprompt.results.compare import Answers, Contender
from calprompt.runs.resources import Resources

SPLIT = "all"
STORED = "images that all models stored predictions of"


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
