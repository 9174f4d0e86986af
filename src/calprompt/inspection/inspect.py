"""From a folder of labelled images to what is probably wrong with it, one finding a line.

images ─┬─ pixels ──── blurred, dark, blank, tiny, turned by EXIF ──┐
        │      └─────┐                                              │
        └─ features ─┴─ copies, near-copies, here and elsewhere ────┼── findings ── table, CSV, page
               └─────── labels, unlike all others, classes ─────────┘
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calprompt.data.checks import UnreadableImages
from calprompt.data.dataset import Split
from calprompt.data.images import Decodable, GivenImages, Images
from calprompt.data.labelled import LabelledImages
from calprompt.errors import DataError
from calprompt.files import csv_text
from calprompt.inspection import measurements
from calprompt.inspection.measurements import (
    IF_CROPPED,
    SAME_PICTURE,
    Floats,
    Measured,
    measure_all,
    problems,
    sketches,
)
from calprompt.progress import Progress, silent
from calprompt.promises.division import connected
from calprompt.records import Record
from calprompt.text import plural, shorten

if TYPE_CHECKING:
    from calprompt.clip.backbone import Backbone
    from calprompt.features.store import FeatureStore

LABEL, COPY, TWO_CLASSES, TEST_COPY = "mislabelled", "copy", "copy in two classes", "copy of an image to evaluate on"
UNREADABLE, UNLIKE = "unreadable", "unlike all others"
SMALL, ALIKE, TWO = "class too small", "classes alike", "class of two"
LOOK, LEAVE_OUT, RELABEL = "look", "leave out", "relabel"  # actions; the last is for people to write


class Problem(NamedTuple):
    """What to call a kind of finding, and what to do about it."""

    one: str
    many: str
    title: str
    suggestion: str


PROBLEMS = {  # the most important first
    LABEL: Problem(
        *("possibly mislabelled", "possibly mislabelled", "Probably mislabelled"),
        "look at it; if it is wrong, write relabel as the action",
    ),
    TWO_CLASSES: Problem(
        *("copy in two classes", "copies in two classes", "The same picture in two classes"),
        "one of the labels is wrong: leave out or relabel one",
    ),
    TEST_COPY: Problem(
        *(TEST_COPY, "copies of images to evaluate on", "Copies of images to evaluate on"),
        "leave it out: what a model learned from cannot test it",
    ),
    COPY: Problem("copy", "copies", "Copies and near-copies", "leave it out: it says nothing new"),
    UNREADABLE: Problem(UNREADABLE, UNREADABLE, "Cannot be read", "replace it, or leave it out"),
    "blank": Problem("blank", "blank", "Blank", "leave it out: it shows nothing"),
    "blurred": Problem("blurred", "blurred", "Blurred", "look whether the class can be seen"),
    "dark": Problem("dark", "dark", "Dark", "look whether the class can be seen"),
    "tiny": Problem("tiny", "tiny", "Tiny", "replace it by a larger one if there is one"),
    UNLIKE: Problem(UNLIKE, UNLIKE, "Unlike all others", "look whether it belongs here"),
    "turned by EXIF": Problem(
        *("turned by EXIF", "turned by EXIF", "Turned by EXIF"),
        "nothing, if all programs that use it turn it; fit does",
    ),
    SMALL: Problem(
        *("class too small", "classes too small", "Classes with few images"),
        "add images: labels of so few cannot be checked",
    ),
    ALIKE: Problem(
        *("pair of classes alike", "pairs of classes alike", "Classes that are hardly told apart"),
        "put them together, or say how they differ in more images",
    ),
    TWO: Problem(
        *("class that looks like two", "classes that look like two", "Classes that look like two"),
        "look at both parts; two classes may be learned better",
    ),
}
FEWEST_IMAGES = 5  # images of a class below which it is too small
LEAST_GAP = 7.0  # between the parts of a class that is two, in standard deviations within them
ALTERED = 64  # images that are cropped and saved again, to know how near features of copies are
FILE = "findings.csv"


@dataclass(frozen=True)
class Finding(Record):
    """Something that is probably wrong."""

    file: str  # the image; empty if it is about a class
    label: str  # the class that it is in
    problem: str  # what is wrong, a key of `PROBLEMS`
    looks_like: str  # the class it looks like, or the image or class that it is like
    # how sure that is or how bad, the larger the more: of labels, by how much another class is more probable; of
    # copies, the correlation or the cosine; of others, how far beyond the limit, which is 1
    score: float
    action: str  # "look", or "leave out" where nobody has to look; `fit` with `fixes` follows "leave out" and "relabel"
    suggestion: str  # what to do


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was found in a folder."""

    name: str
    classes: dict[str, int]  # images of each class
    findings: tuple[Finding, ...]  # the most important kinds first, and of each the surest first
    read: int  # how many images could be read
    # how often the label of an image is predicted by what was learned from the others; the better, the more can be said
    # of labels. None if that was not tried
    accuracy: float | None
    sources: dict[str, Callable[[], Any]]  # where the image of a finding can be read from

    @property
    def sentences(self) -> list[str]:
        """What was looked at and what was found."""
        lines = [f"Checked {plural(self.read, 'image')} of {plural(len(self.classes), 'class')}."]
        if self.accuracy is not None:
            lines.append(
                f"A classifier that learned from the other images predicts {100 * self.accuracy:.0f} % of the labels; "
                "the lower this is, the less it can say about wrong ones."
            )
        return [*lines, f"Found: {listed(self.findings)}." if self.findings else "Nothing was found."]


def findings_table(findings: Sequence[Finding]) -> str:
    rows = ({**asdict(each), "score": f"{each.score:.4f}"} for each in findings)
    return csv_text([field.name for field in fields(Finding)], rows)


def counted(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings there are of each problem, the most important first."""
    counts = Counter(each.problem for each in findings)
    return {problem: counts[problem] for problem in PROBLEMS if counts[problem]}


def listed(findings: Sequence[Finding]) -> str:
    """How many findings there are of each problem, in words."""
    return ", ".join(
        f"{count} {PROBLEMS[problem].many if count > 1 else PROBLEMS[problem].one}"
        for problem, count in counted(findings).items()
    )


def inspect_images(
    data: LabelledImages,
    backbone: Backbone,
    *,
    against: LabelledImages | None = None,
    store: FeatureStore | None = None,
    progress: Progress = silent,
) -> Inspection:
    """Look for what is wrong with labelled images."""
    classes = tuple(str(label) for label in data.labels)
    own = _Pictures.of(data.train, classes, backbone, store, progress)
    if len(own.names) < 2:
        raise DataError(f"{data.name} has fewer than two images that can be read; there is nothing to compare")
    distance = _copy_distance(backbone, own)
    pairs = [(row, column, alike) for row, column, alike in own.same_as(own, distance) if row < column]
    groups = connected(len(own.names), [(row, column) for row, column, _ in pairs])
    named = ((data.train.images.name(row), label) for row, label in enumerate(data.train.labels))
    found = [
        _finding(name, classes[label], UNREADABLE, "", 1.0, own.unreadable[name])
        for name, label in named
        if name in own.unreadable
    ]
    found += _copies(own, pairs, groups)
    kept = against.test or against.train if against is not None else data.test
    if kept is not None and len(kept):
        other = _Pictures.of(kept, classes, backbone, store, progress)
        best: dict[int, tuple[float, int]] = {}
        for row, column, alike in own.same_as(other, distance) if other.names else ():
            best[row] = max(best.get(row, (0.0, 0)), (alike, column))
        found += [own.finding(row, TEST_COPY, alike, other.names[column]) for row, (alike, column) in best.items()]
    found += [own.finding(row, what, score) for row, what, score in problems(own.measured, backbone.preprocessing.size)]
    progress("comparing labels", 0, 1)
    more, accuracy = feature_findings(own.features, own.labels, own.names, classes, groups)
    progress("comparing labels", 1, 1)
    totals = Counter(own.labels.tolist())
    return Inspection(
        data.name,
        {name: totals[label] for label, name in enumerate(classes)},
        in_order([*found, *more]),
        len(own.names),
        accuracy,
        {name: partial(own.picture, row) for row, name in enumerate(own.names)},
    )


@dataclass(frozen=True, eq=False)
class _Pictures:
    """Labelled images that can be read, measured, with unit features; and why others cannot be read."""

    images: Images
    names: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    measured: list[Measured]
    features: Floats
    unreadable: dict[str, str]

    @classmethod
    def of(
        cls, split: Split, classes: tuple[str, ...], backbone: Backbone, store: FeatureStore | None, progress: Progress
    ) -> _Pictures:
        measured, reasons = measure_all(split.images, progress)
        kept = split.take([index for index, each in enumerate(measured) if each is not None])
        return cls(
            kept.images,
            [kept.images.name(index) for index in range(len(kept))],
            np.array(kept.labels, dtype=np.int64),
            classes,
            [each for each in measured if each is not None],
            _features(backbone, kept.images, store, progress) if len(kept) else np.empty((0, backbone.embed_dim)),
            reasons,
        )

    def finding(self, row: int, problem: str, score: float, looks_like: str = "") -> Finding:
        return _finding(self.names[row], self.classes[self.labels[row]], problem, looks_like, score)

    def picture(self, row: int) -> Image.Image:
        picture = self.images.read(row)
        assert isinstance(picture, Decodable)
        return picture.decode()

    def same_as(self, others: _Pictures, distance: float) -> list[tuple[int, int, float]]:
        """Pairs that show the same picture, with how alike they are: 1 for the same pixels."""
        plain, _ = sketches(self.measured)
        straight, mirrored = sketches(others.measured)
        found: dict[tuple[int, int], float] = {}
        for row, column, cosine in measurements.near_pairs(plain, straight, 1 - SAME_PICTURE):
            found[row, column] = cosine
        for row, column, cosine in measurements.near_pairs(self.features, others.features, distance):
            alike = max(plain[row] @ straight[column], plain[row] @ mirrored[column])
            if alike >= IF_CROPPED:
                found[row, column] = max(found.get((row, column), 0.0), cosine)
        place: dict[str, list[int]] = {}
        for column, each in enumerate(others.measured):
            place.setdefault(each.pixels, []).append(column)
        for row, each in enumerate(self.measured):
            for column in place.get(each.pixels, ()):
                found[row, column] = 1.0
        return [(row, column, score) for (row, column), score in sorted(found.items())]


def feature_findings(
    features: Floats,
    labels: Any,
    names: Sequence[str],
    classes: Sequence[str],
    groups: Sequence[Any] | None,
    *,
    most: float = math.inf,
) -> tuple[list[Finding], float | None]:
    """Findings on labels and classes from features [n, D] alone, and how often labels are predicted out of fold.

    Nothing is said of labels if images times classes times dimensions are above `most`, because it would take long.
    """
    y = np.asarray(labels, dtype=np.int64)
    counts = np.bincount(y, minlength=len(classes))
    found = [
        _finding("", classes[label], SMALL, plural(int(n), "image"), FEWEST_IMAGES / max(int(n), 1))
        for label, n in enumerate(counts)
        if 0 < n < FEWEST_IMAGES
    ]
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    if len(y) > measurements.NEIGHBOURS:
        away = measurements.outliers(measurements.neighbour_distances(unit), low=False)
        found += [_finding(names[i], classes[y[i]], UNLIKE, "", away[i]) for i in np.flatnonzero(away >= 1).tolist()]
    checked = measurements.checkable(y, groups)
    if not checked.any() or len(np.unique(y)) < 2 or features.size * len(classes) > most:
        return found, None
    p = measurements.out_of_fold(unit, y, len(classes), groups=groups)
    found += [
        _finding(names[each.index], classes[y[each.index]], LABEL, classes[each.looks_like], -each.margin)
        for each in measurements.suspects(p, y, checked=checked)
    ]
    found += [
        _finding("", classes[a], ALIKE, classes[b], 1 - share) for a, b, share in measurements.alike_classes(p, y)
    ]
    for label in np.flatnonzero(counts).tolist():
        parts = measurements.two_parts(unit[y == label])
        if parts is not None and parts[0] >= LEAST_GAP:
            own = [names[i] for i in np.flatnonzero(y == label).tolist()]
            halves = [shorten([own[i] for i in np.flatnonzero(side).tolist()], 1) for side in (parts[1], ~parts[1])]
            found.append(_finding("", classes[label], TWO, " | ".join(halves), parts[0] / LEAST_GAP))
    return found, float((p.argmax(axis=1) == y)[checked].mean())


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The most important kinds first, and of each the surest first."""
    place = list(PROBLEMS)
    return tuple(sorted(findings, key=lambda each: (place.index(each.problem), -each.score, each.file)))


def read_fixes(path: str | Path) -> tuple[set[str], dict[str, str]]:
    """Files to leave out, and new labels of others, from a CSV as `findings_table` makes it and people edit it."""
    place = Path(path).expanduser()
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {place}: {getattr(error, 'strerror', None) or error}") from error
    dropped: set[str] = set()
    labels: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        missing = [name for name in ("file", "action", "looks_like") if row.get(name) is None]
        if missing:
            raise DataError(f"{place}: row {number} has no {missing[0]}; expected the columns of 'data inspect --csv'")
        action, name = row["action"].strip().lower(), row["file"]
        if action not in ("", LOOK, LEAVE_OUT, RELABEL):
            raise DataError(
                f"{place}: row {number} has the action {row['action']!r}; expected {LOOK}, {LEAVE_OUT} or {RELABEL}"
            )
        if action == LEAVE_OUT and name:
            dropped.add(name)
        elif action == RELABEL and name and labels.setdefault(name, row["looks_like"]) != row["looks_like"]:
            raise DataError(f"{place}: {name} is relabelled twice, as {labels[name]} and {row['looks_like']}")
    return dropped, labels


def apply_fixes(data: LabelledImages, path: str | Path) -> LabelledImages:
    """The data without the images that a CSV of findings leaves out, and with the labels that it gives."""
    dropped, labels = read_fixes(path)
    place = {str(label): number for number, label in enumerate(data.labels)}
    strange = sorted({label for label in labels.values() if label not in place})
    if strange:
        raise DataError(f"{path}: there is no class {strange[0]!r} to relabel as; there are {shorten(place)}")
    names, *others = ([split.images.name(index) for index in range(len(split))] for split in data.splits.values())
    unknown = sorted((dropped | labels.keys()).difference(names, *others))
    if unknown:
        raise DataError(f"{path}: {data.name} has no image {shorten(unknown, 3)}; was the file made of other data?")
    fixed = [place[labels[name]] if name in labels else own for name, own in zip(names, data.train.labels, strict=True)]
    kept = [index for index, name in enumerate(names) if name not in dropped]
    train = Split(data.train.images, tuple(fixed)).take(kept)
    return replace(data, train=train)


def _finding(file: str, label: str, problem: str, looks_like: str, score: float, why: str = "") -> Finding:
    action = LEAVE_OUT if problem in (COPY, TEST_COPY, UNREADABLE, "blank") else LOOK
    suggestion = PROBLEMS[problem].suggestion
    suggestion = f"{why}; {suggestion}" if why else suggestion
    return Finding(file, label, problem, looks_like, float(score), action, suggestion)


def _features(backbone: Backbone, images: Images, store: FeatureStore | None, progress: Progress) -> Floats:
    """Unit features [n, D]."""
    from calprompt.features.frozen import frozen_features

    unreadable = UnreadableImages()
    found = frozen_features(backbone, images, unreadable=unreadable, store=store, progress=progress)[0]
    unreadable.report()
    rows = found.double().numpy()
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def _copy_distance(backbone: Backbone, pictures: _Pictures) -> float:
    """How far features of a picture are from those of the same one, cropped a little and saved as JPEG: the median."""
    rows = np.random.default_rng(0).permutation(len(pictures.names))[:ALTERED].tolist()
    altered = []
    for row in rows:
        image = pictures.picture(row)
        dx, dy = round(0.03 * image.width), round(0.03 * image.height)
        data = io.BytesIO()
        image.crop((dx, dy, image.width - dx, image.height - dy)).save(data, "JPEG", quality=80)
        altered.append(data.getvalue())
    others = _features(backbone, GivenImages(tuple(altered)), None, silent)
    return float(np.median(1 - (pictures.features[rows] * others).sum(axis=1)))


def _copies(pictures: _Pictures, pairs: Sequence[tuple[int, int, float]], groups: Sequence[int]) -> list[Finding]:
    """A finding for each image that repeats an earlier one of its class, and for each pair in two classes."""
    score: dict[int, float] = {}
    for row, column, alike in pairs:
        for each in (row, column):
            score[each] = max(score.get(each, 0.0), alike)
    first: dict[tuple[int, int], int] = {}
    found = []
    for index, group in enumerate(groups):
        own = first.setdefault((group, int(pictures.labels[index])), index)
        if own != index:
            found.append(pictures.finding(index, COPY, score[index], pictures.names[own]))
    for (group, label), index in first.items():
        for (other, its), there in first.items():
            if other == group and its != label:
                what = f"{pictures.names[there]} ({pictures.classes[its]})"
                found.append(pictures.finding(index, TWO_CLASSES, score[index], what))
    return found
