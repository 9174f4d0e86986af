"""Arithmetic that the library and an exported model share: softmax, calibrators, scores and resizing.

This file is copied into the script of every exported folder (`calprompt.export.exporter`): it needs numpy and Pillow
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calprompt.errors import DamagedFileError, SettingError, UnknownNameError

if TYPE_CHECKING:
    from PIL import Image

SET_SCORES = ("lac", "aps")
OPEN_SET_SCORES = ("max_logit", "energy", "probability", "contrast")
TINY = float(np.finfo(np.float64).tiny)  # a probability of 0 is written as the logarithm of this


def softmax(z: np.ndarray) -> np.ndarray:
    """Over the last dimension, in float64.

    >>> softmax(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """
    shifted = np.exp(z - z.max(axis=-1, keepdims=True)) if z.size else z
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Over the last dimension, in float64."""
    shifted = z - z.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def calibrated_logits(
    steps: Sequence[dict[str, Any]], logits: np.ndarray, zero_shot: np.ndarray | None = None
) -> np.ndarray:
    """Logits [n, C] in float64 after all steps of a calibrator.

    >>> calibrated_logits([{"step": "divide", "by": 2.0, "keeps_argmax": True}], np.array([[4.0, 0.0]]))
    array([[2., 0.]])
    """
    z = np.asarray(logits, dtype=np.float64)
    for step in steps:
        before = z
        z = apply_step(z, step, zero_shot)
        z = keep_argmax(z, before) if step["keeps_argmax"] else z
    return z


def apply_step(z: np.ndarray, step: dict[str, Any], zero_shot: np.ndarray | None = None) -> np.ndarray:
    """Logits [n, C] in float64 after one step, before ties are given back."""
    return STEPS[step["step"]](z, step, zero_shot) if len(z) else z


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
        raise DamagedFileError("the calibrator needs zero-shot logits, and there are none")
    z0 = np.asarray(zero_shot, dtype=np.float64)
    low, high = z.min(axis=1, keepdims=True), z.max(axis=1, keepdims=True)
    bottom, top = z0.min(axis=1, keepdims=True), z0.max(axis=1, keepdims=True)
    flat = np.flatnonzero(((low == high) | (bottom == top))[:, 0])
    if len(flat):
        which = "zero-shot logit" if bottom[flat[0]] == top[flat[0]] else "logit"
        raise SettingError(
            f"image {flat[0]} has the same {which} for every class, so there is no range to rescale "
            f"(this is so for {len(flat)} of {len(z)} images)"
        )
    share = (z - low) / (high - low)
    return np.where(share < 0.5, bottom + share * (top - bottom), top - (top - bottom) * (1 - share))


STEPS: dict[str, Callable[[np.ndarray, dict[str, Any], np.ndarray | None], np.ndarray]] = {
    "divide": lambda z, step, _: np.asarray(z / step["by"]),  # by a temperature
    "multiply": lambda z, step, _: np.asarray(z * step["by"]),  # by a scale
    "affine": lambda z, step, _: np.asarray(step["scale"]) * z + np.asarray(step["bias"]),  # of each class
    "by predicted class": lambda z, step, _: z * np.asarray(step["factors"])[z.argmax(axis=1)][:, None],
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


def open_set_scores(logits: np.ndarray, score: str, temperature: float = 1.0) -> np.ndarray:
    """How sure it is that each image is of a known class, [n], from logits before calibration, [n, C].

    >>> [round(float(open_set_scores(np.array([[3.0, 1.0]]), score)[0]), 3) for score in OPEN_SET_SCORES]
    [3.0, 3.127, 0.881, 1.0]
    """
    if score not in OPEN_SET_SCORES:
        raise UnknownNameError(f"unknown open-set score {score!r}; known: {', '.join(OPEN_SET_SCORES)}")
    z = np.asarray(logits, dtype=np.float64)
    top = z.max(axis=1)
    if score == "max_logit":
        return np.asarray(top)
    if score == "contrast":
        return np.asarray(top - z.mean(axis=1))
    if score == "energy":
        return np.asarray(top + temperature * np.log(np.exp((z - top[:, None]) / temperature).sum(axis=1)))
    return np.asarray(softmax(z / temperature).max(axis=1))


def class_scores(probabilities: np.ndarray, score: str) -> np.ndarray:
    """How badly each class suits each image, [n, C]: 1 - p, or the probability of all classes at least as probable.

    >>> p = np.array([[0.7, 0.2, 0.1]])
    >>> class_scores(p, "lac").round(3).tolist(), class_scores(p, "aps").round(3).tolist()
    ([[0.3, 0.8, 0.9]], [[0.7, 0.9, 1.0]])
    """
    if score not in SET_SCORES:
        raise UnknownNameError(f"unknown score of sets {score!r}; known: {', '.join(SET_SCORES)}")
    p = np.asarray(probabilities, dtype=np.float64)
    if score == "lac":
        return np.asarray(1 - p)
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    total = np.cumsum(ranked, axis=1)
    for column in range(p.shape[1] - 2, -1, -1):  # equally probable classes share the larger sum
        tied = ranked[:, column] == ranked[:, column + 1]
        total[tied, column] = total[tied, column + 1]
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, total, axis=1)
    return scores


def resize_and_crop(
    image: Image.Image, size: int, interpolation: str = "bicubic", mode: str = "shortest"
) -> Image.Image:
    """The evaluation view, a square of `size` pixels a side, its sizes and borders rounded as torchvision does.

    "shortest" resizes the short side to `size` and crops the centre, "squash" resizes both sides.

    >>> from PIL import Image
    >>> resize_and_crop(Image.new("RGB", (40, 30)), 15).size
    (15, 15)
    """
    from PIL import Image

    short = min(image.size)
    width, height = (int(size * side / short) for side in image.size) if mode == "shortest" else (size, size)
    resized = image.resize((width, height), Image.Resampling[interpolation.upper()])
    if width == height:
        return resized
    left, top = round((width - size) / 2), round((height - size) / 2)
    return resized.crop((left, top, left + size, top + size))
