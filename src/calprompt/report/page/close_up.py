"""The runs that a page looks at closely: their classes, what is taken for what, thresholds, and mistakes with pictures.

They are on each dataset the first seed of the methods that the headline compares.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calprompt.data.images import FileContent, PillowPicture
from calprompt.errors import CalpromptError
from calprompt.evaluation.models import StoredRun
from calprompt.evaluation.settings import NONE, PARTS, TUNED, ZERO_SHOT, create_calibrator
from calprompt.metrics import Predictions
from calprompt.metrics.binomial import share_interval
from calprompt.report.page.document import Mistake, ReportSettings
from calprompt.report.page.measured import Measurements, Result
from calprompt.report.table import COUNT, PERCENT, Cell, Column, Number, Row, Table
from calprompt.results.methods import Method, headline_pairs
from calprompt.text import os_problem, shorten, visible

if TYPE_CHECKING:
    from calprompt.evaluation.run_evaluation import Selection
    from calprompt.runs.resources import Resources

MAX_DATASETS = 4  # datasets that are looked at closely
MAX_CONFUSIONS = 15  # pairs of classes of a split
SPLITS = ("base", "novel", "all")
THUMBNAIL_SIZE = 160  # pixels of a thumbnail's longer side


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to look at."""

    dataset: str  # its data
    method: Method  # which
    seed: int | None  # of the run; None for the untuned model
    place: int  # of the run in `Report.runs`
    stored: StoredRun  # its logits
    results: dict[str, Result]  # by split

    @property
    def model(self) -> str:
        return ZERO_SHOT if self.method.is_zero_shot else TUNED


def subjects(measured: Measurements, *, plain: bool = False) -> list[Subject]:
    """The first seed of the headline's method on each dataset, of a few datasets; none without stored logits."""
    pairs = headline_pairs(measured.methods)
    wanted = list(pairs[0] if plain else pairs[0][1:]) if pairs else measured.methods[:1]
    found: list[Subject] = []
    for dataset in measured.datasets:
        for method in wanted:
            results = [each for each in measured.where(dataset=dataset, method=method) if each.sample is not None]
            own = [each for each in results if each.split in PARTS]
            if own:
                place = own[0].runs[0]
                of_run = {each.split: each for each in own if place in each.runs}
                found.append(Subject(dataset, method, own[0].seed, place, measured.stored[place], of_run))
    shown = list(dict.fromkeys(subject.dataset for subject in found))[:MAX_DATASETS]
    return [subject for subject in found if subject.dataset in shown]


def _samples(chosen: Sequence[Subject]) -> Iterator[tuple[Subject, str, list[str], Predictions]]:
    """Every subject and split, with its class names and what was predicted."""
    for subject in chosen:
        for split, result in subject.results.items():
            assert result.sample is not None
            yield subject, split, subject.stored.names[0][split], result.sample


def class_table(chosen: Sequence[Subject]) -> Table | None:
    """A row per class of every subject and split."""
    rows = []
    for subject, split, names, sample in _samples(chosen):
        for label, name in enumerate(names):
            true, said = sample.labels == label, sample.predicted == label
            hits, images, predicted = (int(which.sum()) for which in (true & said, true, said))
            confidence = float(sample.confidence[said].mean()) if predicted else None
            gap = Number(None)
            if confidence is not None:
                low, high = share_interval(hits, predicted)
                gap = Number(confidence - hits / predicted, confidence - high, confidence - low)
            cells = (
                *(subject.dataset, split, subject.method.name, name),
                *(Number(images), _share(hits, images), Number(predicted), Number(confidence)),
                *(_share(hits, predicted), gap),
            )
            rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        Column("class", "class"),
        Column("images", "images", COUNT, "test images of the class"),
        Column("found", "recall", PERCENT, "share of its images that were classified as it, percent"),
        Column("said", "predicted", COUNT, "how often it was predicted"),
        Column("confidence", "confidence", PERCENT, "mean confidence when it is predicted, percent"),
        Column("right", "precision", PERCENT, "share of these predictions that is right, percent"),
        Column("gap", "gap", PERCENT, "mean confidence minus precision; above 0 is over-confident", signed=True),
    )
    caption = (
        "One run of each dataset: how confident are predictions of a class, and how often right? Below a share is "
        "Wilson's 95 % interval; the gap has the interval of the precision. A gap whose interval contains 0 "
        "may be chance."
    )
    return Table("classes", "Each class", caption, columns, tuple(rows), ("dataset", "split"))


def confusion_table(chosen: Sequence[Subject]) -> Table | None:
    """The classes that are most often taken for another."""
    rows = []
    for subject, split, names, sample in _samples(chosen):
        wrong = np.flatnonzero(~sample.correct)
        both = np.stack([sample.labels[wrong], sample.predicted[wrong]], axis=1)
        pairs, which, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
        for i in sorted(range(len(pairs)), key=lambda i: (-counts[i], *pairs[i]))[:MAX_CONFUSIONS]:
            true, said = (int(label) for label in pairs[i])
            count, images = int(counts[i]), int((sample.labels == true).sum())
            sure = float(sample.confidence[wrong[which.reshape(-1) == i]].mean())
            cells = (
                *(subject.dataset, split, subject.method.name, names[true], names[said]),
                *(Number(count), Number(images), _share(count, images), Number(sure)),
            )
            rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        *(Column("true", "true class"), Column("said", "predicted as")),
        Column("times", "images", COUNT, "how many images were confused"),
        Column("images", "of", COUNT, "test images of the true class"),
        Column("share", "share", PERCENT, "of the images of the class, percent"),
        Column("confidence", "confidence", PERCENT, "mean confidence of these mistakes, percent"),
    )
    caption = (
        f"The {MAX_CONFUSIONS} most frequent mistakes of each split, in the same runs. Below a share is Wilson's 95 % "
        "interval."
    )
    return Table("confusions", "Classes most confused", caption, columns, tuple(rows), ("dataset", "split"))


def _share(count: int, total: int, note: str | None = None) -> Number:
    return Number(count / total, *share_interval(count, total)) if total else Number(None, note=note)


def threshold_table(chosen: Sequence[Subject], settings: ReportSettings) -> Table | None:
    """A row per subject and error rate."""
    if not chosen:
        return None
    splits = [split for split in SPLITS if any(split in subject.results for subject in chosen)]
    rows = [
        Row(_cells(subject, error, _selection(subject, error, settings.seed), splits), (subject.place,))
        for subject in chosen
        for error in settings.errors
    ]
    columns = [
        *(Column("dataset", "dataset"), Column("method", "method"), Column("error", "target error")),
        Column("threshold", "threshold", PERCENT, "predictions with this confidence or more are accepted, percent"),
        Column("images", "chosen on", COUNT, "number of validation images that the threshold was chosen on"),
    ]
    for split in splits:
        columns += [
            Column(f"{split}_accepted", f"{split}: accepted", PERCENT, f"share of {split} test images, percent"),
            Column(f"{split}_wrong", f"{split}: wrong", PERCENT, "share of the accepted ones that is wrong, percent"),
        ]
    caption = (
        "The lowest confidence above which the error rate is at most the target, with 95 % certainty, chosen on "
        "validation images of the classes used for tuning. It is a promise for such images only: what happens on "
        "novel classes is shown beside it, and may be worse. Below a share is Wilson's 95 % interval. If there is no "
        "threshold, the reason is given instead."
    )
    command = "calprompt evaluate RUN --target-error 0.05"
    return Table("thresholds", "When to trust it", caption, tuple(columns), tuple(rows), ("dataset", "method"), command)


def _selection(subject: Subject, error: float, seed: int) -> Selection:
    from calprompt.evaluation.run_evaluation import VAL_ADVICE, Selection, choose_threshold, select

    stored, calibrator = subject.stored, subject.method.calibrator
    if stored.array("val/logits") is None:
        return Selection(reason=f"the run has no validation images to choose it on; {VAL_ADVICE}")
    if calibrator == NONE:
        val, *tested = (stored.sample(subject.model, split) for split in ("val", *subject.results))
        outcomes = [(each.confidence, each.correct) for each in tested]
        return choose_threshold((val.confidence, val.correct), dict(zip(subject.results, outcomes, strict=True)), error)
    model = stored.models[subject.model]
    assert model.val is not None
    tests = {split: model.tests[split] for split in subject.results}
    return select(create_calibrator(calibrator), model.val, tests, target_error=error, seed=seed)


def _cells(subject: Subject, error: float, found: Selection, splits: Sequence[str]) -> tuple[Cell, ...]:
    images = None if found.chosen is None else found.chosen.images
    cells: list[Cell] = [subject.dataset, subject.method.name, f"{100 * error:g} %"]
    cells += [Number(found.threshold, note=found.reason), Number(images)]
    for split in splits:
        accepted = found.tests.get(split)
        if found.threshold is None:
            cells += [Number(None), Number(None)]
        elif accepted is None:
            cells += [Number(None, note="not evaluated on such classes")] * 2
        else:
            cells.append(_share(accepted.accepted, accepted.images, "nothing is accepted"))
            cells.append(_share(accepted.wrong, accepted.accepted, "nothing is accepted"))
    return tuple(cells)


def find_mistakes(
    chosen: Sequence[Subject], settings: ReportSettings, resources: Resources | None = None
) -> tuple[list[Mistake], list[str]]:
    """The most confident mistakes of each subject and split, and notes on pictures that are not there."""
    found: list[Mistake] = []
    notes: list[str] = []
    for subject in chosen:
        class_names, image_names = subject.stored.names
        shown: list[tuple[str, Predictions, str, int]] = []  # split, its predictions, and an image by name and place
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            wrong = np.flatnonzero(~sample.correct)
            order = wrong[np.argsort(-sample.confidence[wrong], kind="stable")][: settings.mistakes]
            names = image_names.get(split) or [f"image {i}" for i in range(len(sample.labels))]
            shown += [(split, sample, names[i], i) for i in map(int, order)]
        pictures: dict[str, str] = {}
        if resources is not None and shown:
            pictures, problem = _pictures(subject, list(dict.fromkeys(name for _, _, name, _ in shown)), resources)
            notes += [problem] if problem else []
        seed = "" if subject.seed is None else f", seed {subject.seed}"
        found += [
            Mistake(
                image=name,
                predicted=class_names[split][int(sample.predicted[i])],
                confidence=Number(float(sample.confidence[i])),
                true=class_names[split][int(sample.labels[i])],
                true_probability=Number(float(np.exp(sample.log_likelihood[i]))),
                run=subject.place,
                group=f"{subject.dataset}, {split} classes: {subject.method.name}{seed}",
                picture=pictures.get(name),
            )
            for split, sample, name, i in shown
        ]
    return found, notes


def _pictures(subject: Subject, names: Sequence[str], resources: Resources) -> tuple[dict[str, str], str | None]:
    """Thumbnails of test images by their names, and what to say if some are not there."""
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
        return {}, f"{subject.dataset}: pictures of mistakes are left out, because the data are not there ({reason})"
    found, images = {}, dataset.test.images
    for index in range(len(images)):
        if (name := images.name(index)) in names:
            with suppress(CalpromptError, OSError):  # named in the note
                picture = images.read(index)
                if isinstance(picture, FileContent | PillowPicture):
                    found[name] = _thumbnail(picture)
    lacking = [name for name in names if name not in found]
    return found, f"{subject.dataset}: no picture could be read of {visible(shorten(lacking))}" if lacking else None


def _thumbnail(picture: FileContent | PillowPicture) -> str:
    """A small picture as a data URI."""
    image = picture.decode()
    image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    data = io.BytesIO()
    image.save(data, "WEBP", quality=75, method=4)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
