"""The most confident mistakes, with their pictures where the data are still there."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence

import numpy as np

from calprompt.data import Dataset
from calprompt.data.images import FileContent, PillowPicture
from calprompt.errors import CalpromptError
from calprompt.report.page.document import Mistake, Number
from calprompt.report.page.settings import ReportSettings
from calprompt.report.page.subjects import Subject
from calprompt.runs.resources import Resources
from calprompt.text import os_problem, shorten, visible

SIDE = 160  # pixels of a thumbnail's longer side


def find_mistakes(
    chosen: Sequence[Subject], settings: ReportSettings, resources: Resources | None = None
) -> tuple[list[Mistake], list[str]]:
    """The most confident mistakes of each subject and split, and notes on pictures that are not there.

    Args:
        chosen: Runs to look at.
        settings: Of the report.
        resources: Gets the datasets; None: without pictures.
    """
    found: list[Mistake] = []
    notes: list[str] = []
    for subject in chosen:
        class_names, image_names = subject.stored.names
        of_subject: list[Mistake] = []
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            wrong = np.flatnonzero(~sample.correct)
            order = wrong[np.argsort(-sample.confidence[wrong], kind="stable")][: settings.mistakes]
            names = image_names.get(split) or [f"image {i}" for i in range(len(sample.labels))]
            of_subject += [
                Mistake(
                    image=names[i],
                    said=class_names[split][int(sample.predicted[i])],
                    confidence=Number(float(sample.confidence[i])),
                    true=class_names[split][int(sample.labels[i])],
                    true_probability=Number(float(np.exp(sample.log_likelihood[i]))),
                    run=subject.place,
                    group=f"{subject.dataset}, {split} classes: {subject.method.name}"
                    + ("" if subject.seed is None else f", seed {subject.seed}"),
                )
                for i in map(int, order)
            ]
        if resources is not None and of_subject:
            of_subject, problem = _with_pictures(of_subject, subject, resources)
            notes += [problem] if problem else []
        found += of_subject
    return found, notes


def _with_pictures(found: list[Mistake], subject: Subject, resources: Resources) -> tuple[list[Mistake], str | None]:
    """The same mistakes with their pictures, and what to say if some are not there."""
    config = subject.stored.run.record["config"]
    try:
        dataset = resources.dataset(
            config["data"],
            root=config.get("root"),
            classes=config.get("classes"),
            base=config.get("base"),
            upright=bool(config.get("exif")),
        )
    except (CalpromptError, OSError) as error:
        reason = os_problem(error) if isinstance(error, OSError) else str(error)
        return found, f"{subject.dataset}: pictures of mistakes are left out, because the data are not there ({reason})"
    pictures = _pictures(dataset, {each.image for each in found})
    lacking = [each.image for each in found if each.image not in pictures]
    shown = [Mistake(**{**vars(each), "picture": pictures.get(each.image)}) for each in found]
    note = f"{subject.dataset}: no picture could be read of {visible(shorten(lacking))}" if lacking else None
    return shown, note


def _pictures(dataset: Dataset, names: Iterable[str]) -> dict[str, str]:
    """Thumbnails of test images by their names."""
    wanted, found = set(names), {}
    images = dataset.test.images
    for index in range(len(images)):
        name = images.name(index)
        if name not in wanted:
            continue
        try:
            picture = images.read(index)
            if isinstance(picture, FileContent | PillowPicture):
                found[name] = _thumbnail(picture)
        except (CalpromptError, OSError):
            continue  # named in the note
    return found


def _thumbnail(picture: FileContent | PillowPicture) -> str:
    """A small picture as a data URI."""
    image = picture.decode()
    image.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    image.save(data, "WEBP", quality=75, method=4)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
