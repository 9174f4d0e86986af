"""What a calibration error would be with very many images: an estimate, an interval that covers it, and a test.

The error of bins, T = Σ_b |d_b| with d_b = n_b/N · (acc_b − conf_b), is too large on few images: chance makes gaps, and
absolute values add them up. A perfectly calibrated model shows about 2 % on 1,000 images. Drawing the images again adds
the same once more, so that a percentile bootstrap misses the error δ = Σ_b |δ_b| that is really there.

Here values e of the error are tested instead, and the interval is what is not refused (Neyman; for nuisance parameters
Chuang and Lai, Hybrid resampling methods for confidence intervals, 2000). With n_b and conf_b as they are, accuracies
conf_b + δ_b·N/n_b give binomial numbers of right predictions and so a distribution of T, which depends on how e is
divided among the bins. Of all divisions two are taken, that from which T is largest and that from which it is smallest:

    lower end   e is refused if T is too large, P(T* ≥ T) ≤ 2.5 %. Chance adds most where bins are calibrated, so e is
                in the fewest bins that can hold it: the measured gaps, the clearest first, until they sum to e.
    estimate    e at which T is the median of T*, divided in the same way; 0 if a calibrated model is as far off.
    upper end   e is refused if T is too small, P(T* ≤ T) ≤ 2.5 %. Chance adds least if all bins are equally off, so e
                is in all of them in proportion to their standard errors, towards the side that leaves more room. It is
                never below T itself.
    p           P(T* ≥ T) for e = 0: the test of calibration. It is 5 % or less for at most 5 % of calibrated models.

The distribution of T is the convolution of those of the bins, computed on a grid without drawing anything. Predictions
of one bin differ in how often they are right, which makes their number vary less than a binomial one, in convex order
(Hoeffding, 1956), so that the test errs on the safe side. The interval is of the error over these bins, which is that
of the confidences themselves if the gap has one sign within a bin, and a lower bound of it otherwise.

Neither division is proven to be the worst, so `experiments/intervals.py` counts how often the interval covers, for gaps
of many shapes; docs/evaluate.md has the table. For the l2 error see Sun et al., arXiv 2408.08998. Of the largest gap
(MCE) and of SmoothECE no such interval is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calprompt.metrics.binning import DEFAULT, BinTable, Convention
from calprompt.metrics.binomial import log_factorials
from calprompt.metrics.calibration import reliability_table
from calprompt.metrics.inputs import Floats, Ints, Predictions

CELLS_PER_ERROR = 24  # cells of the grid in a standard error of T
MAX_CELLS = 2**14  # of the grid from 0 to 1
END_TOLERANCE = 1e-4  # how near the ends of an interval are to where they belong
MIN_ACCURACY = 1e-9  # accuracy of a bin that is never, or always, right


@dataclass(frozen=True)
class DebiasedError:
    """A calibration error without what chance adds to it.

    Attributes:
        measured: The error of these images.
        value: Estimate of the error that very many images would show.
        low: Lower end of its interval.
        high: Upper end of its interval.
        p_value: Probability that a calibrated model shows at least this error on as many images.
    """

    measured: float
    value: float
    low: float
    high: float
    p_value: float


def debiased_errors(
    sample: Predictions, *, n_bins: int = 10, convention: Convention | str = DEFAULT
) -> dict[str, DebiasedError]:
    """ECE and ACE without what chance adds to them, with 95 % intervals.

    Args:
        sample: Checked probabilities and labels.
        n_bins: Number of bins.
        convention: Binning convention.
    """
    return {
        name: debiased_error(reliability_table(sample, n_bins=n_bins, equal_mass=name == "ace", convention=convention))
        for name in ("ece", "ace")
    }


def debiased_error(table: BinTable, *, level: float = 0.95) -> DebiasedError:
    """The mean gap of a reliability table without what chance adds to it.

    Args:
        table: Bins, such as those of `reliability_table`.
        level: Coverage of the interval for the error in the limit of many images.

    >>> from calprompt.metrics import equal_width_table
    >>> found = debiased_error(equal_width_table([0.8] * 100, [True] * 70 + [False] * 30))
    >>> [round(number, 3) for number in (found.value, found.low, found.high, found.p_value)]
    [0.096, 0.01, 0.2, 0.017]
    """
    filled = np.flatnonzero(np.isfinite(table.accuracy) & (table.count > 0))
    bins = _Bins(table.count[filled], table.confidence[filled], table.accuracy[filled], table.total)
    tail = (1 - level) / 2
    value = _zero(lambda error: bins.at_least(bins.fewest(error)) - 0.5, bins.error)
    low = _zero(lambda error: bins.at_least(bins.fewest(error)) - tail, bins.error)
    high = _zero(lambda error: tail - bins.at_most(bins.evenly(error)), float(bins.room.sum()))
    return DebiasedError(bins.error, value, low, max(high, bins.error), bins.at_least(np.zeros(len(filled))))


def _zero(rising: Callable[[float], float], end: float) -> float:
    """Where a function is 0 between 0 and `end`; if nowhere, at the end that is nearer to it."""
    from scipy.optimize import brentq

    if rising(0.0) >= 0:
        return 0.0
    if rising(end) <= 0:
        return end
    return float(brentq(rising, 0.0, end, xtol=END_TOLERANCE, rtol=END_TOLERANCE))


class _Bins:
    """Bins that have images, and how T is distributed if their accuracies are off by some errors."""

    def __init__(self, count: Ints, confidence: Floats, accuracy: Floats, total: int) -> None:
        self.count, self.share = count.astype(np.int64), count / total
        self.confidence = confidence.clip(MIN_ACCURACY, 1 - MIN_ACCURACY)
        self.gap = self.share * (accuracy - confidence)
        self.error = float(np.abs(self.gap).sum())
        self.scale = np.sqrt(self.share * self.confidence * (1 - self.confidence) / total)  # standard errors
        self.towards = np.where(confidence < 0.5, 1.0, -1.0)
        self.room = self.share * np.maximum(self.confidence, 1 - self.confidence)
        self.order = np.argsort(-np.abs(self.gap) / self.scale, kind="stable")
        start = np.cumsum(self.count + 1) - (self.count + 1)
        self.owner = np.repeat(np.arange(len(count)), self.count + 1)  # of every number of right predictions
        self.right = np.arange(len(self.owner)) - start[self.owner]
        self.wrong = self.count[self.owner] - self.right
        factorial = log_factorials(int(self.count.max()))
        self.ways = factorial[self.count[self.owner]] - factorial[self.right] - factorial[self.wrong]
        wanted = CELLS_PER_ERROR / np.sqrt((self.scale**2).sum())
        self.cells = MAX_CELLS if wanted > MAX_CELLS else 2 ** math.ceil(math.log2(wanted))
        cell = np.rint(self.cells / total * np.abs(self.right - (self.count * confidence)[self.owner])).astype(np.int64)
        self.cell = self.owner * self.cells + np.minimum(cell, self.cells - 1)
        self.here = int(np.rint(self.cells * np.abs(self.gap)).sum())

    def fewest(self, error: float) -> Floats:
        """An error in the fewest bins, signed: the measured gaps, the clearest first."""
        gaps = np.abs(self.gap)[self.order]
        held = np.empty_like(gaps)
        held[self.order] = np.clip(error - (np.cumsum(gaps) - gaps), 0, gaps)
        return np.sign(self.gap) * held

    def evenly(self, error: float) -> Floats:
        """An error in all bins, signed, in proportion to their standard errors as far as there is room."""
        ends = np.sort(np.append(self.room / self.scale, 0.0))
        sums = np.minimum(ends[:, None] * self.scale, self.room).sum(axis=1)
        return self.towards * np.minimum(np.interp(error, sums, ends) * self.scale, self.room)

    def at_least(self, errors: Floats) -> float:
        """P(T* ≥ T) if the bins are off by these errors."""
        return min(1.0, max(0.0, float(self._distribution(errors)[self.here :].sum())))

    def at_most(self, errors: Floats) -> float:
        """P(T* ≤ T) if the bins are off by these errors."""
        return float(self._distribution(errors)[: self.here + 1].sum())

    def _distribution(self, errors: Floats) -> Floats:
        accuracy = (self.confidence + errors / self.share).clip(MIN_ACCURACY, 1 - MIN_ACCURACY)
        log_yes, log_no = np.log(accuracy)[self.owner], np.log1p(-accuracy)[self.owner]
        chance = np.exp(self.ways + self.right * log_yes + self.wrong * log_no)
        each = np.bincount(self.cell, chance, minlength=len(accuracy) * self.cells).reshape(-1, self.cells)
        return np.asarray(np.fft.irfft(np.fft.rfft(each, axis=1).prod(axis=0), self.cells))
