"""The runs that a page looks at closely: their classes, what is taken for what, thresholds, and mistakes with pictures.

They are on each dataset the first seed of the methods that the headline compares.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calprompt.data.dataset import Dataset
from calprompt.data.images import FileContent, PillowPicture
from calprompt.errors import CalpromptError
from calprompt.metrics.binomial import share_interval
from calprompt.report.page.document import Mistake, ReportSettings
from calprompt.report.page.measured import Measurements, Result
from calprompt.report.table import COUNT, PERCENT, Cell, Column, Number, Row, Table
from calprompt.results.methods import Method, headline_pairs
from calprompt.results.selection import StoredRun
from calprompt.results.table import PARTS, TUNED, ZERO_SHOT
from calprompt.text import os_problem, shorten, visible

if TYPE_CHECKING:
    from calprompt.evaluation.run_evaluation import Accepted, Selection
    from calprompt.runs.resources import Resources

MOST = 4  # datasets that are looked at closely
MOST_CONFUSED = 15  # pairs of classes of a split
SPLITS = ("base", "novel", "all")
SIDE = 160  # pixels of a thumbnail's longer side


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to look at.

    Attributes:
        dataset: Its data.
        method: Which.
        seed: Of the run; None for the untuned model.
        place: Of the run in `Report.runs`.
        stored: Its logits.
        results: By split.
    """

    dataset: str
    method: Method
    seed: int | None
    place: int
    stored: StoredRun
    results: dict[str, Result]

    @property
    def model(self) -> str:
        return ZERO_SHOT if self.method.is_zero_shot else TUNED

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.method.name}" + ("" if self.seed is None else f", seed {self.seed}")


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
    shown = list(dict.fromkeys(subject.dataset for subject in found))[:MOST]
    return [subject for subject in found if subject.dataset in shown]


def class_table(chosen: Sequence[Subject]) -> Table | None:
    """A row per class of every subject and split."""
    rows = []
    for subject in chosen:
        names, _ = subject.stored.names
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            for label, name in enumerate(names[split]):
                true, said = sample.labels == label, sample.predicted == label
                hits = int((true & said).sum())
                cells = (
                    *(subject.dataset, split, subject.method.name, name),
                    Number(int(true.sum())),
                    _share(hits, int(true.sum())),
                    Number(int(said.sum())),
                    Number(float(sample.confidence[said].mean())) if said.any() else Number(None),
                    _share(hits, int(said.sum())),
                    _gap(float(sample.confidence[said].mean()), hits, int(said.sum())) if said.any() else Number(None),
                )
                rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(
            Column("dataset", "dataset"),
            Column("split", "classes"),
            Column("method", "method"),
            Column("class", "class"),
        ),
        Column("images", "images", COUNT, "test images of the class"),
        Column("found", "found", PERCENT, "share of its images that were classified as it (recall), percent"),
        Column("said", "times said", COUNT, "how often it was predicted"),
        Column("confidence", "says", PERCENT, "mean confidence when it is predicted, percent"),
        Column("right", "is right", PERCENT, "share of these predictions that is right (precision), percent"),
        Column("gap", "gap", PERCENT, "what it says minus how often it is right; above 0: over-confident", signed=True),
    )
    caption = (
        "One run of each dataset. When it says a class, how sure is it, and how often is it right? Below a share is "
        "Wilson's 95 % interval; the gap has the interval of the share that is right. A gap whose interval contains 0 "
        "may be chance."
    )
    return Table("classes", "Each class", caption, columns, tuple(rows), ("dataset", "split"))


def confusion_table(chosen: Sequence[Subject]) -> Table | None:
    """The classes that are most often taken for another."""
    rows = []
    for subject in chosen:
        names, _ = subject.stored.names
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            wrong = np.flatnonzero(~sample.correct)
            pairs, first, counts = np.unique(
                np.stack([sample.labels[wrong], sample.predicted[wrong]], axis=1),
                axis=0,
                return_inverse=True,
                return_counts=True,
            )
            order = sorted(range(len(pairs)), key=lambda i: (-counts[i], *pairs[i]))[:MOST_CONFUSED]
            for i in order:
                true, said = (int(label) for label in pairs[i])
                images = int((sample.labels == true).sum())
                sure = float(sample.confidence[wrong[first.reshape(-1) == i]].mean())
                cells = (
                    *(subject.dataset, split, subject.method.name, names[split][true], names[split][said]),
                    Number(int(counts[i])),
                    Number(images),
                    _share(int(counts[i]), images),
                    Number(sure),
                )
                rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        *(Column("true", "is"), Column("said", "was taken for")),
        Column("times", "times", COUNT, "how many images"),
        Column("images", "of images", COUNT, "test images of the class"),
        Column("share", "share", PERCENT, "of the images of the class, percent"),
        Column("confidence", "says", PERCENT, "mean confidence of these mistakes, percent"),
    )
    caption = (
        f"The {MOST_CONFUSED} most frequent mistakes of each split, in the same runs. Below a share is Wilson's 95 % "
        "interval."
    )
    return Table("confusions", "Classes most confused", caption, columns, tuple(rows), ("dataset", "split"))


def _share(count: int, total: int) -> Number:
    return Number(count / total, *share_interval(count, total)) if total else Number(None)


def _gap(confidence: float, hits: int, said: int) -> Number:
    low, high = share_interval(hits, said)
    return Number(confidence - hits / said, confidence - high, confidence - low)


def threshold_table(chosen: Sequence[Subject], settings: ReportSettings) -> Table | None:
    """A row per subject and error rate."""
    if not chosen:
        return None
    from calprompt.evaluation.run_evaluation import VAL_ADVICE, Selection, select
    from calprompt.evaluation.settings import create_calibrator

    splits = [split for split in SPLITS if any(split in subject.results for subject in chosen)]
    rows = []
    for subject in chosen:
        model = subject.stored.models[subject.model]
        tests = {split: model.tests[split] for split in subject.results}
        for error in settings.errors:
            found = Selection(reason=f"the run has no validation images to choose it on; {VAL_ADVICE}")
            if model.val is not None:
                calibrator = create_calibrator(subject.method.calibrator)
                found = select(calibrator, model.val, tests, target_error=error, seed=settings.seed)
            rows.append(Row(_cells(subject, error, found, splits), (subject.place,)))
    columns = [
        *(Column("dataset", "dataset"), Column("method", "method"), Column("error", "wrong at most")),
        Column("threshold", "trust it from", PERCENT, "predictions with this confidence or more are accepted, percent"),
        Column("images", "chosen on", COUNT, "validation images that the threshold was chosen on"),
    ]
    for split in splits:
        columns += [
            Column(f"{split}_accepted", f"{split}: accepted", PERCENT, f"share of {split} test images, percent"),
            Column(f"{split}_wrong", f"{split}: wrong", PERCENT, "share of the accepted ones that is wrong, percent"),
        ]
    caption = (
        "The lowest confidence from which on at most so many predictions are wrong, with 95 % certainty, chosen on "
        "validation images of the classes that were tuned on. It is a promise for such images only: what happens on "
        "novel classes is shown beside it, and may be worse. Below a share is Wilson's 95 % interval. Where there is "
        "no threshold, the reason stands in its place."
    )
    command = "calprompt evaluate RUN --target-error 0.05"
    return Table("thresholds", "When to trust it", caption, tuple(columns), tuple(rows), ("dataset", "method"), command)


def _cells(subject: Subject, error: float, found: Selection, splits: Sequence[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = [subject.dataset, subject.method.name, f"{100 * error:g} %"]
    chosen = found.chosen
    if found.threshold is None or chosen is None:
        images = Number(None) if chosen is None else Number(chosen.images)
        nothing = Number(None)
        return (*cells, Number(None, note=found.reason), images, *(nothing for _ in range(2 * len(splits))))
    cells += [Number(found.threshold), Number(chosen.images)]
    for split in splits:
        accepted = found.tests.get(split)
        cells += [_accepted_share(accepted, "accepted"), _accepted_share(accepted, "wrong")]
    return tuple(cells)


def _accepted_share(accepted: Accepted | None, which: str) -> Number:
    if accepted is None:
        return Number(None, note="it was not evaluated on such classes")
    count, total = (accepted.accepted, accepted.images) if which == "accepted" else (accepted.wrong, accepted.accepted)
    if not total:
        return Number(None, note="nothing is accepted")
    return Number(count / total, *share_interval(count, total))


def find_mistakes(
    chosen: Sequence[Subject], settings: ReportSettings, resources: Resources | None = None
) -> tuple[list[Mistake], list[str]]:
    """The most confident mistakes of each subject and split, and notes on pictures that are not there."""
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
