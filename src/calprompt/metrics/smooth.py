"""SmoothECE: the calibration error without bins (Błasiok and Nakkiran, Smooth ECE, 2023).

    r(t)        residuals y_i − c_i of all images, each at its confidence c_i and divided by N
    smECE_σ     ∫ |K_σ r|(t) dt over [0, 1], where K_σ smooths by a Gaussian of width σ that is reflected at both ends
    SmoothECE   smECE_σ at the one width σ with smECE_σ = σ: as blurred as the error is large

Bins make the ECE jump when a confidence crosses an edge; this one moves a little if every confidence moves a little.

A Gaussian that is reflected at 0 and 1 is a product in the basis of cosines, cos(πkt) by exp(−(πkσ)²/2). So residuals
are put onto a grid, transformed once, and every further width costs one inverse transform.
"""

from __future__ import annotations

import numpy as np

from calprompt.errors import SettingError
from calprompt.metrics.evaluation import metrics
from calprompt.metrics.inputs import ArrayLike, Floats, Ints, Predictions, checked_outcomes

CELLS = 500  # of the grid over [0, 1]
MAX_STEPS, WIDTH_TOLERANCE = 60, 1e-12  # of the search for the width


def smooth_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, width: float | None = None) -> float:
    """SmoothECE of confidences, or the smoothed error at a given width.

    Args:
        confidence: Confidences [N] in [0, 1].
        correct: Whether each prediction is right, [N].
        width: Standard deviation of the kernel; the one that equals the error, unless given.

    Raises:
        SettingError: if the vectors do not fit, or the width is not above 0.

    >>> round(smooth_calibration_error([0.9] * 10, [True] * 7 + [False] * 3), 3)  # 0.9 − 0.7
    0.2
    """
    confidence, right = checked_outcomes(confidence, correct)
    spectrum = _spectrum(grid_residuals(confidence, right - confidence)[None] / len(confidence))
    if width is None:
        return float(_fixed_point(spectrum)[0])
    if not width > 0:
        raise SettingError(f"must be above 0, got {width}", parameter="width")
    return float(_smoothed(spectrum, np.array([width]))[0])


@metrics.register("smooth_ece", label="SmoothECE", shown=())
def smooth_ece(sample: Predictions) -> float:
    """SmoothECE of the largest probability, see `smooth_calibration_error`. It has no bins.

    >>> round(smooth_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
    0.3
    """
    return smooth_calibration_error(sample.confidence, sample.correct)


def resampled_smooth_ece(confidence: Floats, correct: Floats, weights: Floats) -> Floats:
    """SmoothECE of resamples that have image i weights[r, i] times, [R]."""
    cell, share = _place(confidence)
    residual = weights * (correct - confidence)
    masses = np.zeros((len(weights), CELLS + 1))
    for index, part in ((cell, 1 - share), (cell + 1, share)):
        order = np.argsort(index, kind="stable")
        filled, first = np.unique(index[order], return_index=True)
        masses[:, filled] += np.add.reduceat((residual * part)[:, order], first, axis=1)
    return _fixed_point(_spectrum(masses / weights.sum(axis=1, keepdims=True)))


def grid_residuals(confidence: Floats, residual: Floats) -> Floats:
    """Residuals on the grid, each divided between its two neighbours so that sum and mean place are kept."""
    cell, share = _place(confidence)
    size = CELLS + 1
    below, above = np.bincount(cell, (1 - share) * residual, size), np.bincount(cell + 1, share * residual, size)
    return np.asarray(below + above, dtype=np.float64)


def _place(confidence: Floats) -> tuple[Ints, Floats]:
    """The grid point below each confidence, and how far it is from there to the next."""
    cell = np.minimum((confidence * CELLS).astype(np.int64), CELLS - 1)
    return cell, confidence * CELLS - cell


def _spectrum(masses: Floats) -> Floats:
    """Coefficients of cosines of masses [R, grid]; the outermost points have half a cell each."""
    from scipy.fft import dct

    density = masses * CELLS
    density[:, [0, -1]] *= 2
    return np.asarray(dct(density, type=1, axis=1))


def _smoothed(spectrum: Floats, width: Floats) -> Floats:
    """smECE at a width per row, by the trapezoid rule on the grid."""
    from scipy.fft import idct

    damping = np.exp(-0.5 * (np.pi * np.arange(CELLS + 1) * width[:, None]) ** 2)
    absolute = np.abs(idct(spectrum * damping, type=1, axis=1))
    ends = absolute[:, [0, -1]].sum(axis=1) / 2
    return np.asarray((absolute[:, 1:-1].sum(axis=1) + ends) / CELLS)


def _fixed_point(spectrum: Floats) -> Floats:
    """The width that equals the smoothed error, row by row: where `excess`, error minus width, is 0.

    It falls when the width grows. So it is found by secants, or in the middle of its bracket where a secant leaves it.
    """
    low = np.zeros(len(spectrum))
    excess_before = _smoothed(spectrum, low)
    high = excess_before.copy()
    before, width = low.copy(), high.copy()
    excess = _smoothed(spectrum, width) - width
    for _ in range(MAX_STEPS):
        rows = np.flatnonzero(np.abs(excess) > WIDTH_TOLERANCE)
        if not len(rows):
            break
        step = excess[rows] - excess_before[rows]
        slope = np.divide(width[rows] - before[rows], step, out=np.full(len(rows), np.inf), where=step != 0)
        new = width[rows] - excess[rows] * slope
        new = np.where((new > low[rows]) & (new < high[rows]), new, (low[rows] + high[rows]) / 2)
        before[rows], excess_before[rows] = width[rows], excess[rows]
        width[rows], excess[rows] = new, _smoothed(spectrum[rows], new) - new
        above = excess[rows] > 0
        low[rows], high[rows] = np.where(above, new, low[rows]), np.where(above, high[rows], new)
    return width + excess
