"""Arithmetic that the library and an exported model share, in numpy and Pillow alone.

The functions are copied into the script of every exported folder (`calprompt.export.folder`), so this file imports
nothing of calprompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


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


def open_set_scores(logits: np.ndarray, score: str, temperature: float = 1.0) -> np.ndarray:
    """How sure it is that each image is of a known class, [n], from logits before calibration, [n, C]."""
    z = np.asarray(logits, dtype=np.float64)
    top = z.max(axis=1)
    if score == "max_logit":
        return np.asarray(top)
    if score == "contrast":
        return np.asarray(top - z.mean(axis=1))
    if score == "energy":
        return np.asarray(top + temperature * np.log(np.exp((z - top[:, None]) / temperature).sum(axis=1)))
    if score == "probability":
        return np.asarray(softmax(z / temperature).max(axis=1))
    raise ValueError(f"unknown open-set score {score!r}")


def class_scores(probabilities: np.ndarray, score: str) -> np.ndarray:
    """How badly each class suits each image, [n, C]: 1 - p, or the probability of all classes at least as probable."""
    p = np.asarray(probabilities, dtype=np.float64)
    if score == "lac":
        return np.asarray(1 - p)
    if score != "aps":
        raise ValueError(f"unknown score of sets {score!r}")
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    total = np.cumsum(ranked, axis=1)
    for column in range(p.shape[1] - 2, -1, -1):  # equally probable classes share the larger sum
        tied = ranked[:, column] == ranked[:, column + 1]
        total[tied, column] = total[tied, column + 1]
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, total, axis=1)
    return scores


def choose_classes(probabilities: np.ndarray, costs: np.ndarray | None = None) -> np.ndarray:
    """The class to answer for each image, [n]: the most probable, or the one with the smallest expected cost.

    `costs` [C, C] has what it costs to answer a class (column) where another is true (row).

    >>> p = np.array([[0.9, 0.1], [0.97, 0.03]])
    >>> choose_classes(p).tolist(), choose_classes(p, np.array([[0.0, 1.0], [20.0, 0.0]])).tolist()
    ([0, 0], [1, 0])
    """
    p = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(p.argmax(axis=1) if costs is None else (p @ np.asarray(costs, dtype=np.float64)).argmin(axis=1))


def guards_of(probabilities: np.ndarray, labels: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """For each image, the class that must not be missed and that it may be, the likeliest of several; -1 if none."""
    p = np.asarray(probabilities, dtype=np.float64)
    if not len(labels):
        return np.full(len(p), -1)
    own = np.where(p[:, labels] >= thresholds, p[:, labels], -1.0)
    return np.where(own.max(axis=1) >= 0, np.asarray(labels)[own.argmax(axis=1)], -1)


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
