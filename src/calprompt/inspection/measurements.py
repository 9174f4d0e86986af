"""What features and pixels say of labelled images.

labels    Confident learning (Northcutt et al., 2021, arXiv 1911.00068). A logistic regression on the features predicts
          every image in a fold that it did not learn from, which gives p. A class k has the threshold
              t_k = mean of p_k over the images labelled k
          and an image labelled j probably is of class k ≠ j if k is its most probable class, p_k ≥ t_k, and the margin
              p_j − p_k
          is at most −MARGIN. Images of a group stay in one fold: a copy with the same wrong label would vouch for it.
classes   Two are too much alike if the same predictions confuse them; one is two if its features fall into two heaps.
pictures  Unlike all others is an outlier in the distance to the nearest ones. Sharpness is the variance of the
          Laplacian over that of the grey levels, so that a flat picture is not called blurred.
copies    have features with a cosine of at least 1 − distance, or sketches that correlate: 24 by 24 pixels in colour,
          centred and of unit length.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calprompt.data.images import Decodable, FileContent, Images
from calprompt.errors import ImageError
from calprompt.kernel import log_softmax, softmax
from calprompt.parallel import map_in_threads
from calprompt.progress import Progress, silent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOLDS = 5
STRENGTHS = (1.0, 10.0, 100.0)  # of the logistic regression, C in scikit-learn: the best on the first fold is taken
FEWEST_GROUPS = 3  # groups of a class below which its labels cannot be checked
MARGIN = 0.7  # by which another class has to be more probable than the label
LEAST_TOLD_APART = 0.7  # share of the images of two classes, below which the classes are too much alike
FEWEST_IMAGES = 10  # images of a class or a pair that a statement on classes takes
NEIGHBOURS = 5
OUTLIER = 5.0  # robust standard deviations
ROWS_AT_ONCE = 2048  # rows of cosines in memory at a time


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong."""

    index: int
    looks_like: int  # the class that it looks like
    margin: float  # probability of its label less that of this class: the smaller, the surer


def out_of_fold(
    features: Floats, labels: Ints, classes: int, *, groups: Sequence[Any] | None = None, seed: int = 0
) -> Floats:
    """Probabilities [n, C] of each image by a classifier that learned from other groups of images."""
    from sklearn.linear_model import LogisticRegression

    folds = deal(labels, groups, seed)
    n_folds = int(folds.max()) + 1
    logits = np.full((len(labels), classes), -np.inf)

    def fitted(fold: int, strength: float) -> Floats:
        train, test = folds != fold, folds == fold
        found = np.full((int(test.sum()), classes), -np.inf)
        present = np.unique(labels[train])
        if len(present) == 1:
            found[:, present] = 0.0
            return found
        probe = LogisticRegression(C=strength, max_iter=200, tol=1e-3).fit(features[train], labels[train])
        scores = probe.decision_function(features[test])
        found[:, present] = np.stack([-scores, scores], axis=1) / 2 if scores.ndim == 1 else scores
        return found

    first = [fitted(0, strength) for strength in STRENGTHS]
    losses = [best_temperature(each, labels[folds == 0])[1] for each in first]
    best = int(np.argmin(losses))
    logits[folds == 0] = first[best]
    for fold in range(1, n_folds):
        logits[folds == fold] = fitted(fold, STRENGTHS[best])
    temperature, _ = best_temperature(logits, labels)
    return softmax(logits / temperature)


def deal(labels: Ints, groups: Sequence[Any] | None, seed: int) -> Ints:
    """A fold for each image: groups are dealt out class by class, so that every fold has its share of each."""
    numbers = np.arange(len(labels)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    first = np.unique(numbers, return_index=True)[1]  # an image of each group
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(first))
    order = order[np.argsort(labels[first[order]], kind="stable")]
    place = np.empty(len(first), dtype=np.int64)
    place[order] = np.arange(len(first)) % min(FOLDS, len(first))
    return place[numbers]


def best_temperature(logits: Floats, labels: Ints) -> tuple[float, float]:
    """What logits are divided by for the largest likelihood, and the mean negative log-likelihood with it.

    Images of a class that was not learned have no probability and are left out.
    """
    known = np.isfinite(logits[np.arange(len(labels)), labels])
    z, y = logits[known], labels[known]
    if not len(y):
        return 1.0, 0.0
    finite = np.where(np.isfinite(z), z, -1e6)

    def loss(temperature: float) -> float:
        return float(-log_softmax(finite / temperature)[np.arange(len(y)), y].mean())

    candidates = np.geomspace(0.1, 10.0, 41).tolist()
    found = min(candidates, key=loss)
    return found, loss(found)


def suspects(probabilities: Floats, labels: Ints, *, checked: NDArray[np.bool_] | None = None) -> list[Suspect]:
    """Images whose labels are probably wrong, the surest first."""
    n, classes = probabilities.shape
    own = probabilities[np.arange(n), labels]
    thresholds = np.array([own[labels == k].mean() if (labels == k).any() else np.inf for k in range(classes)])
    best = probabilities.argmax(axis=1)
    sure = probabilities[np.arange(n), best] >= thresholds[best]
    rows = np.flatnonzero(sure & (best != labels) & (True if checked is None else checked))
    found = [Suspect(int(i), int(best[i]), float(own[i] - probabilities[i, best[i]])) for i in rows]
    return sorted((each for each in found if each.margin <= -MARGIN), key=lambda each: each.margin)


def checkable(labels: Ints, groups: Sequence[Any] | None) -> NDArray[np.bool_]:
    """Images of classes that have enough groups for their labels to be checked, [n]."""
    keys = np.arange(len(labels)) if groups is None else np.asarray(groups)
    counts = {int(label): len(np.unique(keys[labels == label])) for label in np.unique(labels)}
    return np.array([counts[int(label)] >= FEWEST_GROUPS for label in labels])


def alike_classes(probabilities: Floats, labels: Ints) -> list[tuple[int, int, float]]:
    """Pairs of classes that are hardly told apart, with the share of their images that is; the smallest first."""
    best, classes = probabilities.argmax(axis=1), probabilities.shape[1]
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (labels, best), 1)
    found = []
    for a in range(classes):
        for b in np.flatnonzero(counts[a, a + 1 :] + counts[a + 1 :, a]) + a + 1:
            pair = np.array([a, b])
            cell = counts[pair[:, None], pair]
            rows = cell.sum(axis=1)
            if rows.min() * 2 >= FEWEST_IMAGES and cell[0, 1] and cell[1, 0]:
                share = float((cell.diagonal() / rows).mean())
                if share < LEAST_TOLD_APART:
                    found.append((a, int(b), share))
    return sorted(found, key=lambda each: each[2])


def near_pairs(features: Floats, others: Floats, distance: float) -> Iterator[tuple[int, int, float]]:
    """Pairs of an image and one of the others whose cosine is at least 1 − distance, with the cosine."""
    for start in range(0, len(features), ROWS_AT_ONCE):
        cosines = features[start : start + ROWS_AT_ONCE] @ others.T
        for row, column in zip(*np.nonzero(cosines >= 1 - distance), strict=True):
            yield int(start + row), int(column), float(min(cosines[row, column], 1.0))


def neighbour_distances(features: Floats) -> Floats:
    """The logarithm of the mean distance, 1 − cosine, of each image to the five nearest others, [n]."""
    n = len(features)
    k = min(NEIGHBOURS, n - 1)
    found = np.empty(n)
    for start in range(0, n, ROWS_AT_ONCE):
        cosines = features[start : start + ROWS_AT_ONCE] @ features.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        found[start : start + ROWS_AT_ONCE] = np.partition(cosines, n - k, axis=1)[:, n - k :].mean(axis=1)
    return np.asarray(np.log(np.maximum(1 - found, 1e-6)))


def outliers(values: Floats, *, low: bool = True) -> Floats:
    """By how many robust standard deviations each value is below (or above) the median, over the limit of an outlier.

    The spread is that of the half on the other side of the median, so that outliers do not hide each other.
    """
    middle = float(np.median(values))
    away = (middle - values) if low else (values - middle)
    other = -away[away < 0]
    spread = float(np.median(other)) * 1.4826 if len(other) else 0.0
    return np.asarray(away / spread / OUTLIER if spread > 0 else np.zeros(len(values)))


def two_parts(features: Floats) -> tuple[float, NDArray[np.bool_]] | None:
    """Whether images of a class are two separate heaps: the gap between them and which half each image is in.

    The images are cut in two by 2-means among the first few principal axes, and looked at along the line between the
    two means. The gap is how far the means are apart in standard deviations within the parts. A bell is about 2.7 wide,
    however it is cut; parts that hardly touch are 6 or more apart. None if there are too few images, or if one part is
    so small that its images are outliers rather than a class.
    """
    n = len(features)
    if n < 2 * FEWEST_IMAGES:
        return None
    centred = features - features.mean(axis=0)
    axes = min(5, n // 4)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    z = u[:, :axes] * s[:axes]
    half = z[:, 0] > np.median(z[:, 0])
    for _ in range(50):
        means = np.stack([z[~half].mean(axis=0), z[half].mean(axis=0)])
        other = ((z[:, None] - means) ** 2).sum(axis=2).argmin(axis=1) == 1
        if other.all() or not other.any() or (other == half).all():
            break
        half = other
    line = means[1] - means[0]
    along = z @ line / np.linalg.norm(line)
    a, b = along[~half], along[half]
    within = np.sqrt((len(a) * a.var() + len(b) * b.var()) / n)
    gap = float((b.mean() - a.mean()) / within) if within > 0 else np.inf
    return None if min(len(a), len(b)) < max(FEWEST_IMAGES, 0.2 * n) else (gap, half)


SKETCH = 24
LOOKED_AT = 256  # pixels of the short side at which sharpness is measured, at most
ORIENTATION = 0x0112
BLANK = 4.0  # standard deviation of grey levels
DARK = (40.0, 100.0)  # mean and 95th percentile of grey levels
COMMON_SHARE = 0.2  # share of the folder from which on a property is that of the folder, not of a picture
SAME_PICTURE = 0.9985  # correlation of sketches of one picture saved twice, at least
IF_CROPPED = 0.9  # the same if it was also cropped a little, which features have to confirm


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of a picture."""

    width: int  # in pixels
    height: int  # in pixels
    turned: bool  # whether its EXIF data say that it has to be turned
    brightness: float  # mean grey level, 0 to 255
    bright: float  # 95th percentile of grey levels
    contrast: float  # standard deviation of grey levels
    sharpness: float  # logarithm of what the top of this module says
    pixels: str  # sha256 of its size and pixels in RGB
    sketch: NDArray[np.uint8]  # [24 · 24 · 3] in uint8


def measure(picture: Any) -> Measured:
    """Measure a picture; raises an `ImageError` for one that cannot be decoded."""
    image = picture.decode()
    grey = image.convert("L")
    short = min(grey.size)
    if short > LOOKED_AT:
        scale = LOOKED_AT / short
        grey = grey.resize(
            (max(1, round(grey.width * scale)), max(1, round(grey.height * scale))), Image.Resampling.BOX
        )
    levels = np.asarray(grey, dtype=np.float64)
    variance = float(levels.var())
    sharpness = 0.0
    if min(levels.shape) > 2 and variance > 0:
        inner = levels[1:-1, 1:-1]
        sums = levels[:-2, 1:-1] + levels[2:, 1:-1] + levels[1:-1, :-2] + levels[1:-1, 2:]
        sharpness = math.log(max(float((sums - 4 * inner).var()), 1e-12) / variance)
    small = image.resize((SKETCH, SKETCH), Image.Resampling.BOX)
    return Measured(
        image.width,
        image.height,
        _turned(picture),
        float(levels.mean()),
        float(np.percentile(levels, 95)),
        math.sqrt(variance),
        sharpness,
        hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest(),
        np.asarray(small).reshape(-1),
    )


def _turned(picture: Any) -> bool:
    if not isinstance(picture, FileContent):
        return False
    try:
        with Image.open(io.BytesIO(picture.data)) as image:
            return int(image.getexif().get(ORIENTATION, 1)) in range(2, 9)
    except Exception:  # the tag is damaged; the picture was decoded
        return False


def measure_all(images: Images, progress: Progress = silent) -> tuple[list[Measured | None], dict[str, str]]:
    """What was measured of each picture, None where it cannot be read, and what is wrong with these."""
    reasons: dict[str, str] = {}

    def one(index: int) -> Measured | None:
        try:
            picture = images.read(index)
            return measure(picture) if isinstance(picture, Decodable) else None
        except ImageError as error:
            reasons[images.name(index)] = error.reason
            return None

    found: list[Measured | None] = []
    for each in map_in_threads(one, range(len(images))):
        found.append(each)
        progress("looking at pictures", len(found), len(images))
    return found, reasons


def sketches(measured: list[Measured]) -> tuple[Floats, Floats]:
    """Sketches [n, 24 · 24 · 3], centred and of unit length, as they are and mirrored; zeros of blank pictures."""
    raw = np.stack([each.sketch for each in measured]).astype(np.float64)
    mirrored = raw.reshape(-1, SKETCH, SKETCH, 3)[:, :, ::-1].reshape(len(raw), -1)

    def unit(rows: Floats) -> Floats:
        centred = rows - rows.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        flat = np.array([each.contrast < BLANK for each in measured])[:, None]
        return np.where(flat | (length == 0), 0.0, centred / np.maximum(length, 1e-12))

    return unit(raw), unit(mirrored)


def problems(measured: list[Measured], size: int) -> list[tuple[int, str, float]]:
    """What is wrong with single pictures: number, problem and score, from 1 up the worse."""
    found: list[tuple[int, str, float]] = []
    blank = np.array([each.contrast < BLANK for each in measured])
    dark = np.array([each.brightness < DARK[0] and each.bright < DARK[1] for each in measured]) & ~blank
    short = np.array([min(each.width, each.height) for each in measured], dtype=np.float64)
    tiny = short < min(size / 2, float(np.median(short)) / 2)
    turned = np.array([each.turned for each in measured])
    for rows, problem, score in (
        (blank, "blank", lambda i: BLANK / max(measured[i].contrast, 0.1)),
        (dark, "dark", lambda i: DARK[0] / max(measured[i].brightness, 1.0)),
        (tiny, "tiny", lambda i: size / short[i]),
        (turned, "turned by EXIF", lambda i: 1.0),
    ):
        if rows.mean() <= COMMON_SHARE:
            found += [(int(i), problem, float(score(i))) for i in np.flatnonzero(rows)]
    blurred = outliers(np.array([each.sharpness for each in measured])) * ~(blank | dark | tiny)
    return found + [(int(i), "blurred", float(blurred[i])) for i in np.flatnonzero(blurred >= 1)]
