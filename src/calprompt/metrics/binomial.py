"""Counts of successes: intervals of a share, and P(Bin(n, p) ≤ k) = Σ_{i≤k} C(n,i) pⁱ (1−p)ⁿ⁻ⁱ in logarithms."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from calprompt.metrics.inputs import Floats, Ints

Z = 1.959963984540054  # of a 95 % interval


def share_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share.

    >>> [round(end, 3) for end in share_interval(9, 10)]
    [0.596, 0.982]
    """
    if not n:
        return 0.0, 1.0
    z = Z if level == 0.95 else NormalDist().inv_cdf((1 + level) / 2)
    low, high = wilson_ends(np.array([count / n]), np.array([n]), z)
    return float(low[0]), float(high[0])


def wilson_ends(share: Floats, n: Floats | Ints, z: float = Z) -> tuple[Floats, Floats]:
    """The ends of Wilson's intervals of many shares of n, 95 % unless another quantile z of the normal is given."""
    spread = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    middle, scale = share + z**2 / (2 * n), 1 + z**2 / n
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
