"""Counts of successes: intervals of a share, P(Bin(n, p) ≤ k) in logarithms, and what chance alone does.

P(Bin(n, p) ≤ k) = Σ_{i≤k} C(n,i) pⁱ (1−p)ⁿ⁻ⁱ
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calprompt.metrics.binning import EqualWidth, equal_width_table, width_index
from calprompt.metrics.inputs import Floats, Ints

Z = 1.959963984540054  # of a 95 % interval


def share_interval(count: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in share_interval(9, 10)]
    [0.596, 0.982]
    """
    if not n:
        return 0.0, 1.0
    low, high = wilson_ends(np.array([count / n]), np.array([n]))
    return float(low[0]), float(high[0])


def wilson_ends(share: Floats, n: Floats | Ints) -> tuple[Floats, Floats]:
    """The ends of Wilson's 95 % intervals of many shares of n."""
    spread = Z * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    middle, scale = share + Z**2 / (2 * n), 1 + Z**2 / n
    return np.maximum(0.0, (middle - spread) / scale), np.minimum(1.0, (middle + spread) / scale)


def lower_bound(count: int, n: int, tail: float) -> float:
    """Clopper and Pearson's lower bound of a share, which is above the true one in at most `tail` of samples.

    >>> round(lower_bound(10, 10, 0.025), 3)  # 0.025 ** (1 / 10)
    0.692
    """
    from scipy.special import betaincinv

    return float(betaincinv(count, n - count + 1, tail)) if count else 0.0


def upper_bound(count: int, n: int, tail: float) -> float:
    """Clopper and Pearson's upper bound of a share, which is below the true one in at most `tail` of samples."""
    return 1 - lower_bound(n - count, n, tail)


@lru_cache(maxsize=4096)  # a sequence of tests, and the next one, ask for the same numbers again and again
def log_binomial_tail(k: int, n: int, p: float) -> float:
    """log P(Bin(n, p) ≤ k) for 0 < p < 1, also where the probability itself is too small for a float.

    >>> round(math.exp(log_binomial_tail(1, 3, 0.5)), 12)
    0.5
    >>> round(log_binomial_tail(0, 10_000, 0.5))
    -6931
    """
    if k >= n:
        return 0.0
    if k < 0:
        return -math.inf
    factorial = log_factorials(n)
    i = np.arange(k + 1)
    terms = factorial[n] - factorial[i] - factorial[n - i] + i * math.log(p) + (n - i) * math.log1p(-p)
    largest = terms.max()
    return min(0.0, float(largest + np.log(np.exp(terms - largest).sum())))


@lru_cache(maxsize=64)
def log_factorials(n: int) -> Floats:
    """log 0!, log 1!, …, log n!; not to be changed, because the next call gets the same array."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


DRAWS = 200  # of right and wrong, for a mean
BAND_DRAWS = 2000  # for the ends of a band
NORMAL_FROM = 500  # predictions in a bin, from which on their share is as good as normal


def chance_ece(confidence: Floats) -> float:
    """The mean ECE of a model that is right exactly as often as it says, on as many images: ECE is never 0."""
    rng = np.random.default_rng(0)
    found = [
        equal_width_table(confidence, rng.random(len(confidence)) < confidence, n_bins=10).expected_gap
        for _ in range(DRAWS)
    ]
    return float(np.mean(found))


def chance_band(confidence: Floats, *, n_bins: int = 10, draws: int = BAND_DRAWS) -> NDArray[np.float64]:
    """Between which accuracies 95 % of the bins of a perfectly calibrated model with these confidences lie."""
    rng = np.random.default_rng(0)
    confidence = np.asarray(confidence, dtype=np.float64)
    cell = width_index(confidence, n_bins, EqualWidth())
    band = np.full((n_bins, 2), np.nan)
    for number in np.unique(cell):
        own = confidence[cell == number]
        if len(own) > NORMAL_FROM:
            spread = Z * np.sqrt((own * (1 - own)).sum()) / len(own)
            band[number] = own.mean() - spread, own.mean() + spread
        else:
            band[number] = np.quantile((rng.random((draws, len(own))) < own).mean(axis=1), (0.025, 0.975))
    return band.clip(0, 1)
