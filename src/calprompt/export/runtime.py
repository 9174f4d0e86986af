"""Run an exported calprompt model: needs onnxruntime, numpy and Pillow, and nothing else.

    python predict.py cat.jpg dog.png                 one line per image
    python predict.py *.jpg --json --sets 0.9         one JSON object per line, with prediction sets

    from predict import Model
    model = Model("folder")                           the folder that this file was exported into
    model.predict_proba(["cat.jpg", "dog.png"])       calibrated probabilities [n, C]
    model.answers("cat.jpg")                          a class, "unsure" or "none of these"
    model.predict_set("cat.jpg", coverage=0.9)        the classes that it may be

    image ── RGB ── resize, crop, normalise ── model.onnx ── features ── logits ─┬─ calibrator ── probabilities
                                                                                 └─ rule ── answers, sets

Every file of the model is checked against its sha256 in model.json before it is used.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import math
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnxruntime
    from PIL import Image, ImageOps, UnidentifiedImageError, features
except ImportError as missing:
    if __name__ != "__main__":
        raise
    print(f"error: {missing}; install what is needed with: pip install onnxruntime numpy pillow", file=sys.stderr)
    sys.exit(2)

from calprompt.kernel import (
    choose_classes,
    class_scores,
    guards_of,
    log_softmax,
    open_set_scores,
    resize_and_crop,
    softmax,
)

FORMAT = 1  # of model.json
RECORD, TOWER, CONDITIONAL, WEIGHTS = "model.json", "model.onnx", "logits.onnx", "weights.npz"
ANSWER, UNSURE, NONE_OF_THESE = "answer", "unsure", "none of these"
FORMATS = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]
if features.check("avif"):
    FORMATS.append("AVIF")
try:
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # HEIC is read where its decoder is installed
    pass
else:
    pillow_heif.register_heif_opener()
    FORMATS.append("HEIF")
LONGEST = 200  # times the short side of an image
CHANNELS = (1, 3, 4)
TINY = float(np.finfo(np.float64).tiny)  # a probability of 0 is written as the logarithm of this

# Pillow warns of a decompression bomb at 89 million pixels and refuses at twice that: large photographs are wanted
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class ModelError(ValueError):
    """A mistake in what the user gave: a folder, an image or an option."""


class DamagedModelError(ModelError):
    """A folder that is not as it was exported."""


class NewerModelError(ModelError):
    """A folder that a newer version exported."""


class ImageError(ModelError):
    """An image that cannot be read.

    Attributes:
        reason: What is wrong with it.
        name: Which image it is, if that is known.
    """

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason if name is None else f"{name} ({reason})")
        self.reason, self.name = reason, name


@dataclass(frozen=True)
class Answer:
    """What the model says of one image.

    Attributes:
        name: Of the image.
        decision: "answer", "unsure" or "none of these".
        class_name: The class to answer, whatever the decision, its label as text, if it has one: the most probable, or,
            with costs of errors, the one with the smallest expected cost.
        label: What the class is called in data, text or a number; the class name, unless labels were given.
        probability: Its calibrated probability.
        runner_up: The second most probable class.
        runner_up_probability: Its probability.
        prediction_set: Classes that it may be, the most probable first; None if sets were not asked for.
        promised: Whether it is an answer behind which a promise on errors stands.
        withdrawn: Why the promises of the model do not hold, if so.
        guarded: A class that must not be missed and that it may be, so that it is not called anything else.
    """

    name: str
    decision: str
    class_name: str
    label: Any
    probability: float
    runner_up: str | None
    runner_up_probability: float | None
    prediction_set: tuple[str, ...] | None
    promised: bool
    withdrawn: str | None
    guarded: str | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Some images, and what the model computed of them.

    Attributes:
        names: Of the images: their paths, or "image 3" for the fourth that has none.
        features: [n, D] unit image features, in float32.
        logits: [n, C] in float32, before calibration.
        zero_shot: [n, C] logits of the untuned model; None if the calibrator does not need them.
        probabilities: [n, C] in float64, calibrated.
        unreadable: Images that could not be read, and why; they have no rows.
    """

    names: list[str]
    features: np.ndarray
    logits: np.ndarray
    zero_shot: np.ndarray | None
    probabilities: np.ndarray
    unreadable: dict[str, str]


class Graphs:
    """The ONNX files and the text features of a model: from pixels to logits.

    Args:
        folder: With model.onnx, weights.npz and, if text depends on the image, logits.onnx.
        record: What model.json says.
        threads: Of onnxruntime; as many as it likes, unless given.
        providers: Of onnxruntime.
    """

    def __init__(
        self,
        folder: Path,
        record: dict[str, Any],
        *,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        self.record = record
        with np.load(folder / WEIGHTS, allow_pickle=False) as weights:
            self.weights: dict[str, np.ndarray] = {name: weights[name] for name in weights.files}
        self.tower = open_graph(folder / TOWER, threads, providers)
        self.conditional = None
        if record["conditional"] is not None:
            self.conditional = open_graph(folder / CONDITIONAL, threads, providers)

    def __call__(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Features [n, D], logits [n, C] and, if the calibrator needs them, zero-shot logits of pixels [n, 3, s, s]."""
        if not len(pixels):
            none = np.empty((0, len(self.record["class_names"])), dtype=np.float32)
            return np.empty((0, self.record["dimensions"]), dtype=np.float32), none, none
        features = self.tower.run(None, {"pixels": pixels})[0]
        scale = np.float32(self.record["logit_scale"])
        if self.conditional is None:
            logits = scale * (features @ self.weights["text"].T)
        else:
            few = self.record["conditional"]["batch"]
            parts = (features[start : start + few] for start in range(0, len(features), few))
            logits = np.concatenate([self.conditional.run(None, {"features": part})[0] for part in parts])
        zero_shot = scale * (features @ self.weights["frozen_text"].T) if "frozen_text" in self.weights else None
        return features, logits, zero_shot


class Model:
    """An exported model.

    Images are paths, bytes of image files, PIL images or uint8 arrays [height, width(, 3)]; one or many. Many are taken
    a batch at a time, so that a generator of any length fits in memory.

    Args:
        folder: That it was exported into.
        threads: Of onnxruntime; as many as it likes, unless given.
        providers: Of onnxruntime, such as "CUDAExecutionProvider".

    Attributes:
        class_names: In the order of the columns of logits and probabilities.
        labels: What these classes are called in data, and, as text, in answers; the class names, unless given.
        promises: What is promised of the answers.
        withdrawn: Why these promises do not hold, if so.
        record: Everything in model.json.
    """

    def __init__(
        self, folder: str | Path, *, threads: int | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        self.folder = Path(folder)
        self.record = read_record(self.folder)
        check_files(self.folder, self.record["files"])
        self.class_names: tuple[str, ...] = tuple(self.record["class_names"])
        self.labels: tuple[Any, ...] = tuple(self.record["labels"] or self.class_names)
        self.promises: tuple[str, ...] = tuple(self.record["promises"])
        self.rule: dict[str, Any] = self.record["rule"]
        self.withdrawn: str | None = self.rule["withdrawn"]
        self.batch: int = self.record["batch"]
        self.steps: list[dict[str, Any]] = self.record["calibrator"]["steps"]
        for step in self.steps:
            if step["step"] not in STEPS:
                raise NewerModelError(
                    f"{self.folder / RECORD}: its calibrator has the step {step['step']!r}, which is not among "
                    f"{', '.join(STEPS)}; use the predict.py that was exported with it"
                )
        self.graphs = Graphs(self.folder, self.record, threads=threads, providers=providers)

    def __repr__(self) -> str:
        return f"Model({str(self.folder)!r}, {len(self.class_names)} classes)"

    def predict_proba(self, images: Any) -> np.ndarray:
        """Calibrated probabilities [n, C] in float64.

        Raises:
            ImageError: for an image that cannot be read.
        """
        rows = [batch.probabilities for batch in self.stream(images)]
        return np.concatenate(rows) if rows else np.empty((0, len(self.class_names)))

    def answers(
        self,
        images: Any,
        *,
        coverage: float | None = None,
        per_class: bool = False,
        min_confidence: float | None = None,
    ) -> list[Answer]:
        """A class, "unsure" or "none of these" for each image.

        Args:
            images: One or many.
            coverage: Of prediction sets, such as 0.9; None: no sets.
            per_class: The coverage holds for each class by itself.
            min_confidence: Instead of the model's own threshold; no promise on errors stands behind it.

        Raises:
            ImageError: for an image that cannot be read.
            ModelError: if there are no sets of this coverage.
        """
        options: dict[str, Any] = {"coverage": coverage, "per_class": per_class, "min_confidence": min_confidence}
        self.check_options(**options)
        return [answer for batch in self.stream(images) for answer in self.batch_answers(batch, **options)]

    def predict_set(self, images: Any, coverage: float, *, per_class: bool = False) -> list[tuple[str, ...]]:
        """The classes that each image may be, the most probable first; arguments as `answers` takes them."""
        answers = self.answers(images, coverage=coverage, per_class=per_class)
        return [answer.prediction_set or () for answer in answers]

    def stream(self, images: Any, *, skip_unreadable: bool = False) -> Iterator[Batch]:
        """Batches of images with their logits and probabilities, in constant memory.

        Args:
            images: One or many; a generator is read as batches are taken.
            skip_unreadable: Go on past images that cannot be read, which the batch then names.
        """
        numbered = enumerate(iterate_images(images))
        while batch := list(itertools.islice(numbered, self.batch)):
            names, pixels, unreadable = self.load(batch, skip_unreadable=skip_unreadable)
            features, logits, zero_shot = self.graphs(pixels)
            probabilities = softmax(calibrated_logits(self.steps, logits, zero_shot))
            yield Batch(names, features, logits, zero_shot, probabilities, unreadable)

    def load(
        self, batch: Sequence[tuple[int, Any]], *, skip_unreadable: bool = False
    ) -> tuple[list[str], np.ndarray, dict[str, str]]:
        """Names and pixels [n, 3, size, size] of numbered images, and those that cannot be read."""
        names, pixels, unreadable = [], [], {}
        for number, image in batch:
            name = str(image) if isinstance(image, (str, Path)) else f"image {number}"
            try:
                picture = open_image(image, upright=self.record["upright"])
                pixels.append(levels(picture, self.record["preprocessing"]))
                names.append(name)
            except ImageError as error:
                if not skip_unreadable:
                    raise ImageError(error.reason, name) from error
                unreadable[name] = error.reason
        return names, normalise(pixels, self.record["preprocessing"]), unreadable

    def batch_answers(
        self,
        batch: Batch,
        *,
        coverage: float | None = None,
        per_class: bool = False,
        min_confidence: float | None = None,
    ) -> list[Answer]:
        """The answers for a batch of `stream`; options as `answers` takes them."""
        threshold = self.rule["min_confidence"] if min_confidence is None else min_confidence
        promised = self.promises_errors(min_confidence)
        names = tuple(map(str, self.labels))
        chosen, guarded = chosen_classes(batch.probabilities, self.rule)
        decisions = decide(batch.logits, batch.probabilities, threshold, self.rule["open_set"], chosen, guarded)
        set_rule = None if coverage is None else self.set_rule(coverage, per_class)
        inside = None if set_rule is None else prediction_sets(batch.logits, set_rule)
        found = []
        for number, (name, decision, row) in enumerate(zip(batch.names, decisions, batch.probabilities, strict=True)):
            order = np.argsort(-row, kind="stable").tolist()
            first, guard = int(chosen[number]), int(guarded[number])
            second = next((label for label in order if label != first), None)
            members = None if inside is None else tuple(names[c] for c in order if inside[number, c])
            found.append(
                Answer(
                    name,
                    decision,
                    names[first],
                    self.labels[first],
                    float(row[first]),
                    None if second is None else names[second],
                    None if second is None else float(row[second]),
                    members,
                    promised and decision == ANSWER,
                    self.withdrawn,
                    names[guard] if guard >= 0 else None,
                )
            )
        return found

    def promises_errors(self, min_confidence: float | None = None) -> bool:
        """Whether a promise on errors stands behind what is answered, at a threshold of one's own or the model's."""
        own = min_confidence is None or min_confidence == self.rule["min_confidence"]
        return own and self.rule["target_error"] is not None and self.withdrawn is None

    def check_options(
        self, *, coverage: float | None = None, per_class: bool = False, min_confidence: float | None = None
    ) -> None:
        """Raise a `ModelError` for options that `answers` cannot follow."""
        if coverage is not None:
            self.set_rule(coverage, per_class)
        elif per_class:
            raise ModelError("per_class is about sets of classes; give their coverage too")
        if min_confidence is not None and not 0 <= min_confidence <= 1:
            raise ModelError(f"min_confidence must be a probability, from 0 to 1, got {min_confidence}")

    def set_rule(self, coverage: float, per_class: bool = False) -> dict[str, Any]:
        """How sets of some coverage are made."""
        for rule in self.rule["sets"]:
            if (rule["coverage"], rule["per_class"]) == (coverage, per_class):
                return dict(rule)
        known = [f"{rule['coverage']}{' per class' * rule['per_class']}" for rule in self.rule["sets"]]
        wanted = f"{coverage}{' per class' * per_class}"
        raise ModelError(
            f"this model has no prediction sets of coverage {wanted}; "
            + (f"it has {', '.join(known)}" if known else "it was exported without any")
        )


# Calibrators: each step turns logits [n, C] in float64 into others.


def calibrated_logits(
    steps: Sequence[dict[str, Any]], logits: np.ndarray, zero_shot: np.ndarray | None = None
) -> np.ndarray:
    """Logits [n, C] in float64 after all steps of a calibrator."""
    z = np.asarray(logits, dtype=np.float64)
    for step in steps:
        before = z
        z = STEPS[step["step"]](z, step, zero_shot) if len(z) else z
        z = keep_argmax(z, before) if step["keeps_argmax"] else z
    return z


def divide(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """By a temperature."""
    return np.asarray(z / step["by"])


def multiply(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """By a scale."""
    return np.asarray(z * step["by"])


def affine(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """A scale and a bias for each class."""
    return np.asarray(np.asarray(step["scale"]) * z + np.asarray(step["bias"]))


def by_predicted_class(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """Each image's logits times the factor of its predicted class."""
    return np.asarray(z * np.asarray(step["factors"])[z.argmax(axis=1)][:, None])


def bins(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """The confidence of the predicted class replaced by the accuracy of its bin; the others keep their proportions."""
    accuracy = np.array([math.nan if share is None else share for share in step["accuracy"]])
    inner = (np.arange(1, len(accuracy)) / len(accuracy)).astype(np.float32)
    rows, top = np.arange(len(z)), z.argmax(axis=1)
    confidence = softmax(z).max(axis=1)
    q = accuracy[np.searchsorted(inner, confidence.astype(np.float32), side="left")][:, None]
    others = z.copy()
    others[rows, top] = -math.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        binned = np.log(np.maximum(1 - q, TINY)) + log_softmax(others)
        binned[rows, top] = np.log(np.maximum(q, TINY))[:, 0]
    return np.where(np.isnan(q), log_softmax(z), binned)


def monotone(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """Every probability through a map that is linear between corners, then normalised."""
    p = softmax(z)
    q = np.interp(p, step["scores"], step["frequencies"]) + step["tie_break"] * p
    return np.asarray(np.log(np.maximum(q / q.sum(axis=1, keepdims=True), TINY)))


def zero_shot_range(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None) -> np.ndarray:
    """The range of each image's logits made that of its zero-shot ones."""
    if zero_shot is None:
        raise DamagedModelError(f"the calibrator needs zero-shot logits, and {WEIGHTS} has no frozen_text")
    z0 = np.asarray(zero_shot, dtype=np.float64)
    low, high = z.min(axis=1, keepdims=True), z.max(axis=1, keepdims=True)
    bottom, top = z0.min(axis=1, keepdims=True), z0.max(axis=1, keepdims=True)
    if (low == high).any() or (bottom == top).any():
        raise ModelError("an image has the same logit for every class, so that its logits have no range to rescale")
    share = (z - low) / (high - low)
    return np.where(share < 0.5, bottom + share * (top - bottom), top - (top - bottom) * (1 - share))


STEPS: dict[str, Callable[[np.ndarray, dict[str, Any], np.ndarray | None], np.ndarray]] = {
    "divide": divide,
    "multiply": multiply,
    "affine": affine,
    "by predicted class": by_predicted_class,
    "bins": bins,
    "monotone": monotone,
    "zero-shot range": zero_shot_range,
}


def keep_argmax(calibrated: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Ties that rounding made are given back to the class that was predicted before."""
    if not len(logits):
        return calibrated
    rows, top = np.arange(len(logits)), logits.argmax(axis=1)
    moved = calibrated.argmax(axis=1) != top
    kept = calibrated.copy()
    kept[rows[moved], top[moved]] = np.nextafter(calibrated.max(axis=1), math.inf)[moved]
    return kept


# The decision rule: everything is computed from logits before calibration, but for the confidence.


def chosen_classes(probabilities: np.ndarray, rule: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The class to answer for each image, and one that must not be missed and that it may be; -1 if there is none."""
    costs, guards = rule.get("costs"), rule.get("guards", [])
    chosen = choose_classes(probabilities, None if costs is None else np.array(costs))
    labels = np.array([guard["label"] for guard in guards], dtype=np.int64)
    return chosen, guards_of(probabilities, labels, np.array([guard["threshold"] for guard in guards]))


def decide(
    logits: np.ndarray,
    probabilities: np.ndarray,
    min_confidence: float | None,
    open_set: dict[str, Any] | None,
    chosen: np.ndarray,
    guarded: np.ndarray,
) -> list[str]:
    """ "answer", "unsure" or "none of these" for each image."""
    sure = probabilities[np.arange(len(chosen)), chosen] >= (min_confidence or 0.0)
    sure &= (guarded < 0) | (guarded == chosen)
    known = np.ones(len(sure), dtype=bool)
    if open_set is not None and len(sure) and open_set["threshold"] is not None:
        with known_names():
            known = open_set_scores(logits, open_set["score"], open_set["temperature"]) >= open_set["threshold"]
    held = guarded >= 0
    return [
        ANSWER if own and yes else UNSURE if own or kept else NONE_OF_THESE
        for yes, own, kept in zip(sure, known, held, strict=True)
    ]


def prediction_sets(logits: np.ndarray, rule: dict[str, Any]) -> np.ndarray:
    """Which classes are in the set of each image, [n, C]; the most probable one is in any case."""
    z = np.asarray(logits, dtype=np.float64)
    if not len(z):
        return np.empty(z.shape, dtype=bool)
    with known_names():
        scores = class_scores(softmax(z / rule["temperature"]), rule["score"])
    inside = scores <= np.array([math.inf if q is None else q for q in rule["quantiles"]])[None, :]
    inside[np.arange(len(z)), z.argmax(axis=1)] = True
    return np.asarray(inside)


@contextmanager
def known_names() -> Iterator[None]:
    """Raise a `NewerModelError` for a name of a score that is not known here."""
    try:
        yield
    except ValueError as error:
        raise NewerModelError(f"{error}; use the predict.py that was exported with the model") from error


# Images: from whatever the user has to 8-bit RGB levels [size, size, 3].


def iterate_images(images: Any) -> Iterable[Any]:
    """What to iterate over: one image or many."""
    if isinstance(images, (str, bytes, bytearray, memoryview, Path)) or is_pillow(images):
        return [images]
    if is_array(images):
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in CHANNELS)
        if not single and images.ndim == 3 and images.shape[0] == 3:
            raise ModelError(
                f"an array of shape {list(images.shape)} may be one image with its channels first or three grey ones; "
                "put the channels last, or give a list of images"
            )
        return [images] if single else images
    if not isinstance(images, Iterable):
        raise ModelError(f"images must be paths, bytes, PIL images or arrays, one or many; got {type(images).__name__}")
    return images


def open_image(image: Any, *, upright: bool) -> Image.Image:
    """One image of whatever kind, in RGB; `upright` turns it as its EXIF tag says."""
    if isinstance(image, (str, Path)):
        return decode(read_file(os.fspath(Path(image).expanduser())), upright)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return decode(bytes(image), upright)
    if is_pillow(image):
        return as_rgb(ImageOps.exif_transpose(image) if upright else image)
    if is_array(image):
        return as_rgb(from_array(np.asarray(image)))
    raise ModelError(f"an image must be a path, bytes, a PIL image or an array; got {type(image).__name__}")


def read_file(path: str) -> bytes:
    """What is in the file."""
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise ImageError("a folder, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise ImageError("not an ordinary file")
        if found.st_size == 0:
            raise ImageError("an empty file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(error.strerror or str(error)) from error


def decode(data: bytes, upright: bool) -> Image.Image:
    """The picture in a file's bytes, in RGB."""
    with opened(data) as image:
        image.load()
        return as_rgb(ImageOps.exif_transpose(image) if upright else image)


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """The bytes as Pillow opens them; whatever goes wrong, here or with them, is an `ImageError`."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_shape(image)
            yield image
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(f"no image in any format that is read ({', '.join(FORMATS)})") from error
    except Image.DecompressionBombError as error:
        limit = round(2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6)
        raise ImageError(f"more than {limit} million pixels; make it smaller") from error
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        reason = str(error).splitlines()
        raise ImageError(f"damaged: {reason[0] if reason else type(error).__name__}") from error


def from_array(array: np.ndarray) -> Image.Image:
    """From 8-bit levels [height, width] or [height, width, 1, 3 or 4 channels]."""
    if array.dtype.name != "uint8":
        raise ImageError(
            f"an array of {array.dtype.name}; expected uint8 levels 0 to 255 (for floats in [0, 1]: "
            "(255 * x).round().astype('uint8'))"
        )
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or 0 in array.shape:
        raise ImageError(f"an array of shape {list(array.shape)}; expected [height, width] or [height, width, 3]")
    return Image.fromarray(array)


def as_rgb(image: Image.Image) -> Image.Image:
    """A decoded picture in RGB: of 16 bits the upper 8, transparency dropped."""
    check_shape(image)
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ImageError("more than 16 bits a pixel; save it with 8")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ImageError("floating-point pixels; save it with 8 bits")
    try:
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise ImageError(f"its colours ({image.mode}) cannot be converted to RGB") from error


def check_shape(image: Image.Image) -> None:
    """Raise for an image so long and thin that resizing its short side makes it too large to hold."""
    width, height = image.size
    if min(width, height) < 1 or max(width, height) > LONGEST * min(width, height):
        raise ImageError(f"{width} by {height} pixels; one side may be {LONGEST} times the other at most")


def levels(image: Image.Image, preprocessing: dict[str, Any]) -> np.ndarray:
    """8-bit levels [size, size, 3]."""
    size, interpolation, mode = (preprocessing[name] for name in ("size", "interpolation", "resize_mode"))
    return np.asarray(resize_and_crop(image, size, interpolation, mode))


def normalise(images: Sequence[np.ndarray], preprocessing: dict[str, Any]) -> np.ndarray:
    """Input of model.onnx, [n, 3, size, size], from the 8-bit levels of each image."""
    size = preprocessing["size"]
    stacked = np.stack(images) if images else np.empty((0, size, size, 3), dtype=np.uint8)
    mean, std = (np.asarray(preprocessing[name], dtype=np.float32)[:, None, None] for name in ("mean", "std"))
    values = np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)).astype(np.float32)
    return np.asarray((values / np.float32(255) - mean) / std)


def is_pillow(image: Any) -> bool:
    """Whether it is a picture of Pillow's, or behaves like one."""
    return hasattr(image, "convert") and hasattr(image, "getbands")


def is_array(image: Any) -> bool:
    """Whether it is an array of numpy's or of another library."""
    return hasattr(image, "ndim") and hasattr(image, "shape") and hasattr(image, "dtype")


# The folder: read, and checked to be as it was exported.


def read_record(folder: Path) -> dict[str, Any]:
    """What model.json says, if it is whole and of a format that is known here."""
    path = folder / RECORD
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no {RECORD}: it is no exported model") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedModelError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    number = record.get("format") if isinstance(record, dict) else None
    if not isinstance(number, int):
        raise DamagedModelError(f"{path} is damaged: it has no format number")
    if number > FORMAT:
        raise NewerModelError(
            f"{path} has format {number}, and formats up to {FORMAT} are known here; use the predict.py that was "
            "exported with it"
        )
    if record.get("checksum") != checksum(record):
        raise DamagedModelError(f"{path} is damaged or was edited: its checksum does not fit; export the model again")
    return dict(record)


def checksum(record: dict[str, Any]) -> str:
    """sha256 of a record without its checksum, independent of blanks and order."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def check_files(folder: Path, digests: dict[str, str]) -> None:
    """Raise for a file that is missing or not as it was exported."""
    for name, wanted in digests.items():
        digest = hashlib.sha256()
        try:
            with open(folder / name, "rb") as file:
                while part := file.read(2**20):
                    digest.update(part)
        except OSError as error:
            raise DamagedModelError(f"cannot read {folder / name}: {error.strerror or error}") from error
        if digest.hexdigest() != wanted:
            raise DamagedModelError(
                f"{folder / name} is damaged or was edited: its sha256 is not that in {RECORD}; copy or export the "
                "folder again"
            )


def open_graph(path: Path, threads: int | None, providers: Sequence[str]) -> Any:
    """An ONNX file, ready to be run."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # onnxruntime has no base class of errors
        reason = " ".join(str(error).split())
        raise ModelError(f"onnxruntime {onnxruntime.__version__} cannot run {path}: {reason}") from error


# The command line.


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer for each image; returns the exit code, 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="The class of images, with calibrated probabilities.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--sets", type=float, metavar="COVERAGE", help="also print prediction sets, such as of 0.9")
    parser.add_argument("--per-class", action="store_true", help="sets whose coverage holds for each class by itself")
    parser.add_argument("--min-confidence", type=float, metavar="P", help="instead of the model's own threshold")
    parser.add_argument("--threads", type=int, metavar="N", help="of onnxruntime (default: its own choice)")
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent, metavar="FOLDER", help="default: where this file is"
    )
    args = parser.parse_args(arguments)
    options = {"coverage": args.sets, "per_class": args.per_class, "min_confidence": args.min_confidence}
    failed = False
    try:
        model = Model(args.model, threads=args.threads)
        model.check_options(**options)
        width = max(map(len, args.images))
        for batch in model.stream(args.images, skip_unreadable=True):
            for answer in model.batch_answers(batch, **options):
                print(json.dumps(asdict(answer)) if args.json else text_line(answer, width))
            for name, reason in batch.unreadable.items():
                failed = True
                print(f"error: {printable(name)} ({reason})", file=sys.stderr)
        if not args.json:
            for note in notes(model, model.promises_errors(args.min_confidence)):
                print(printable(note))
    except ModelError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    return 2 if failed else 0


def notes(model: Model, promised: bool) -> list[str]:
    """What to know of the answers above."""
    if model.withdrawn is not None:
        return [f"promises withdrawn: {model.withdrawn}"]
    return [] if promised else ["no promise on errors stands behind these answers"]


def text_line(answer: Answer, width: int) -> str:
    """An answer for people."""
    shown = answer.decision if answer.decision != ANSWER else answer.class_name
    guesses = [(answer.class_name, answer.probability)] * (answer.decision != ANSWER)
    if answer.runner_up is not None and answer.runner_up_probability is not None:
        guesses.append((answer.runner_up, answer.runner_up_probability))
    others = ", ".join(f"{name} {100 * share:.1f} %" for name, share in guesses)
    line = f"{answer.name:<{width}}  {shown}"
    if answer.decision == ANSWER:
        line += f" {100 * answer.probability:.1f} %"
    line += f"  ({'then ' if answer.decision == ANSWER else ''}{others})" if others else ""
    if answer.prediction_set is not None:
        line += f"  set: {', '.join(answer.prediction_set)}"
    return printable(line)


def printable(text: str) -> str:
    """Text that standard output can encode."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="backslashreplace").decode(encoding)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # such as of "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
