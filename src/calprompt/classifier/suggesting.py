"""Which pictures to label next: those of which a label would teach a model most.

A model learns most from pictures that it is unsure of and that no label speaks for yet. So each candidate i has a
weight, the entropy H_i of its probabilities, and k centres are placed among the features of all by weighted k-means,

    minimise over centres c_1 … c_k    Σ_i H_i · min_j ‖v_i - c_j‖²        (Prabhu et al., ICCV 2021)

with the pictures that have a label as further centres, which do not move. The candidate nearest to each new centre is
suggested. Candidates that are alike are one group, of which one is suggested; an odd one has a cluster to itself only
if it is worth it. `experiments/suggest.py` measures this beside choosing at random.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calprompt.errors import SettingError

STEPS = 20  # of k-means
LEAST_WEIGHT = 1e-3  # so that candidates which a model is sure of still count a little


def suggest(
    features: ArrayLike, probabilities: ArrayLike, n: int, *, labelled: ArrayLike | None = None, seed: int = 0
) -> list[int]:
    """Indices of the n candidates to label next, the most useful first, from features [m, D] and probabilities [m, C].

    Example:
        >>> suggest([[1, 0], [1, 0.1], [0, 1]], [[0.6, 0.4], [0.5, 0.5], [0.9, 0.1]], 2)
        [1, 2]
    """
    x, p = _unit(features), np.asarray(probabilities, dtype=np.float64)
    if len(x) != len(p):
        raise SettingError(
            f"must have a row for each of the {len(x)} candidates, got {len(p)}", parameter="probabilities"
        )
    if n < 1:
        raise SettingError(f"must be 1 or more, got {n}", parameter="n")
    weight = np.maximum(entropy(p), LEAST_WEIGHT)
    known = np.empty((0, x.shape[1])) if labelled is None else _unit(labelled)
    if n >= len(x):
        return [int(place) for place in np.argsort(-weight, kind="stable")]
    centres = _placed(x, weight, n, known, np.random.default_rng(seed))
    chosen: list[int] = []
    gains: list[float] = []
    distance = _squared(x, centres)
    nearest = _nearest(distance, _to_known(x, known))
    for number in range(n):
        order = np.argsort(distance[:, number], kind="stable")
        place = int(next(each for each in order if each not in chosen))
        chosen.append(place)
        gains.append(float(weight[nearest == number].sum()))
    return [chosen[place] for place in np.argsort(-np.array(gains), kind="stable")]


def entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """How unsure each row of probabilities is: 0 if one class has all, 1 if all have the same.

    >>> entropy(np.array([[1.0, 0.0], [0.5, 0.5]])).tolist()
    [0.0, 1.0]
    """
    p = np.clip(probabilities, 1e-12, 1.0)
    return np.abs((probabilities * np.log(p)).sum(axis=1)) / np.log(max(2, p.shape[1]))


def _placed(
    x: NDArray[np.float64],
    weight: NDArray[np.float64],
    n: int,
    known: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Centres by weighted k-means++ and Lloyd's steps; the known ones stay where they are."""
    near = _to_known(x, known)
    far = np.minimum(near, 4.0)  # which is as far as unit vectors can be apart
    centres = np.empty((n, x.shape[1]))
    for number in range(n):
        worth = weight * far
        total = worth.sum()
        place = int(rng.choice(len(x), p=worth / total)) if total > 0 else int(rng.integers(len(x)))
        centres[number] = x[place]
        far = np.minimum(far, _squared(x, centres[number : number + 1])[:, 0])
    for _ in range(STEPS):
        nearest = _nearest(_squared(x, centres), near)
        before = centres.copy()
        for number in range(n):
            own = nearest == number
            if own.any():
                centres[number] = np.average(x[own], axis=0, weights=weight[own])
        if np.array_equal(before, centres):
            break
    return centres


def _to_known(x: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each row is from the nearest labelled one; infinitely, if there is none."""
    return _squared(x, known).min(axis=1) if len(known) else np.full(len(x), np.inf)


def _nearest(distance: NDArray[np.float64], near: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which centre each row belongs to; -1 if a labelled one is nearer."""
    return np.where(distance.min(axis=1) < near, distance.argmin(axis=1), -1)


def _squared(x: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    found = (x**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None] - 2 * x @ centres.T
    return np.asarray(np.maximum(found, 0.0))


def _unit(features: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(features, dtype=np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
