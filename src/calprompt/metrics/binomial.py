"""Counts of successes: the interval of a share, and P(Bin(n, p) ≤ k) = Σ_{i≤k} C(n,i) pⁱ (1−p)ⁿ⁻ⁱ in logarithms."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from calprompt.metrics.inputs import Floats

Z = 1.959963984540054  # of a 95 % interval


def share_interval(count: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in share_interval(9, 10)]
    [0.596, 0.982]
    """
    if not n:
        return 0.0, 1.0
    share, spread = count / n, Z * math.sqrt(count / n * (1 - count / n) / n + Z**2 / (4 * n**2))
    middle, scale = share + Z**2 / (2 * n), 1 + Z**2 / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


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
