"""Prediction sets by split conformal prediction (Vovk et al., 2005; Sadinle et al., 2019; Romano et al., 2020).

    score s(x, y)     how badly class y suits image x: lac  1 − p_y
                                                       aps  Σ p_c over all c with p_c ≥ p_y
    q                 the k-th smallest score of n held-out images and their true classes, k = ⌈(n + 1) · coverage⌉
    set of x          every y with s(x, y) ≤ q, and the most probable class in any case

The set contains the true class of an image from the same source with a probability of at least `coverage`, over the
draw of the held-out images and of the image. With fewer than coverage / (1 − coverage) images k is above n: no score is
large enough, and the set is all classes. Taking the largest score instead, as is sometimes done, breaks the promise.

Images that are drawn class by class, in the proportions of the classes, are independent but not alike, and the k above
may be too small by one. With k = ⌈n · coverage⌉ + 1 the promise holds for them too. Let G_i be the distribution of the
i-th score, F = (G_1 + … + G_n) / n that of the next image, S the k-th smallest score, and a_i ≤ b_i the values of G_i
at the (k−1)-th and the k-th smallest of the other scores. Then

    k − n·E F(S) = Σ_i (P(s_i ≤ S) − E G_i(S)) = Σ_i E (b_i² − a_i²) / 2 ≤ Σ_i E (b_i − a_i) = 1

because b_i − a_i is the probability that the i-th score is the k-th smallest, which exactly one of them is. Where the
number of a class is rounded up or down at random (`shares`), the same holds with the probability p_i of being drawn: a
class that is not drawn makes room for one other image at most, so S stays between the two neighbours, and each term is
at most p_i E (b_i − a_i).

That is an average over draws of held-out images. For one draw, F(S) < coverage means that at least k of n scores lie
below the quantile of F: with a probability of at most P(Bin(n, coverage) ≥ k), also for images drawn class by class if
k ≥ n · coverage + 1 (Hoeffding, 1956). The smallest k that makes it 1 − level gives sets that hold for this draw.

Per class there is one q for each class, from the images of that class: the promise then holds for each class by itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import SettingError
from calprompt.metrics.binomial import log_binomial_tail
from calprompt.metrics.inputs import ArrayLike
from calprompt.promises.rule import SetRule

Floats = NDArray[np.float64]
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # of sets, in units of the one of probabilities


def images_needed(coverage: float) -> int:
    """The smallest number of held-out images with which a set can leave out a class.

    >>> images_needed(0.9), images_needed(0.95), images_needed(0.99)
    (9, 19, 99)
    """
    wanted = as_fraction("coverage", coverage)
    return math.ceil(wanted / (1 - wanted))


def conformal_quantile(
    scores: ArrayLike, coverage: float, *, level: float | None = None, by_class: bool = False, uncovered: int = 0
) -> float:
    """The k-th smallest of n scores, k as `rank_needed` says; infinity if k is above n.

    With `uncovered`, so many more images count as having a score that no set reaches.

    >>> conformal_quantile([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.9), conformal_quantile([0.1, 0.2], 0.9)
    (0.9, inf)
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64).reshape(-1))
    k = rank_needed(len(ordered) + uncovered, coverage, level=level, by_class=by_class)
    return float(ordered[k - 1]) if k <= len(ordered) else math.inf


def rank_needed(n: int, coverage: float, *, level: float | None = None, by_class: bool = False) -> int:
    """Which of n scores, from the smallest, is the limit of sets; n + 1 or more if none is large enough.

    >>> rank_needed(60, 0.9), rank_needed(60, 0.9, by_class=True), rank_needed(60, 0.9, level=0.95)
    (55, 55, 59)
    """
    wanted = as_fraction("coverage", coverage)
    if level is None:
        return math.ceil(n * wanted) + 1 if by_class else math.ceil((n + 1) * wanted)
    allowed, k = math.log(1 - level), math.ceil(n * wanted) + 1
    while k <= n and log_binomial_tail(n - k, n, float(1 - wanted)) > allowed:  # P(Bin(n, coverage) ≥ k)
        k += 1
    return k


def fit_sets(
    logits: ArrayLike,  # of held-out images that had no part in the model or in the temperature, [n, C]; n may be 0
    labels: ArrayLike,  # their true classes, [n]
    coverage: float,  # how often the true class has to be in the set
    *,
    temperature: float = 1.0,  # what logits are divided by; chosen on other images, see `choose_temperature`
    per_class: bool = False,  # promise it for each class by itself
    score: str = "lac",  # "lac" or "aps"
    # how sure the coverage is for these very images; None: it holds on average over draws of them
    level: float | None = None,
    by_class: bool = False,  # whether the images were drawn class by class, in the proportions of the classes
    uncovered: int = 0,  # so many more images count as not covered by any set; not for sets per class
) -> SetRule:
    """The rule of prediction sets from held-out images.

    >>> rule = fit_sets([[2.0, 0.0]] * 9, [0] * 8 + [1], coverage=0.8)
    >>> rule.sets([[2.0, 0.0], [0.1, 0.0]]).tolist()
    [[True, False], [True, False]]
    """
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    rule = SetRule(coverage, per_class, score, float(temperature), (math.inf,), (len(z),), level)
    own = rule.scores(z)[np.arange(len(z)), y] if len(z) else np.empty(0)
    if not per_class:
        found = conformal_quantile(own, coverage, level=level, by_class=by_class, uncovered=uncovered)
        return replace(rule, quantiles=(found,))
    classes = [own[y == label] for label in range(z.shape[1])]
    quantiles = tuple(conformal_quantile(each, coverage, level=level) for each in classes)
    return replace(rule, quantiles=quantiles, images=tuple(map(len, classes)))


def choose_temperature(
    logits: ArrayLike, labels: ArrayLike, coverage: float, *, around: float, score: str = "lac"
) -> float:
    """The temperature with the smallest sets on images that are not used for the promise itself."""
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if len(z) < images_needed(coverage):
        return around

    def size(temperature: float) -> float:
        return float(fit_sets(z, y, coverage, temperature=temperature, score=score).sets(z).sum(axis=1).mean())

    candidates = sorted(TEMPERATURES, key=lambda factor: abs(math.log(factor)))  # of equals, the nearest
    return around * min(candidates, key=lambda factor: size(factor * around))


def as_fraction(name: str, value: float) -> Fraction:
    """A share as it is written, so that 10 · 0.9 is 9 exactly; refuses what is no share."""
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not 0 < value < 1:
        raise SettingError(f"must be a fraction above 0 and below 1, got {value}", parameter=name)
    return value if isinstance(value, Fraction) else Fraction(repr(float(value)))


def rejection_threshold(scores: ArrayLike, rejects: float) -> float:
    """The largest threshold that rejects at most a share of images of known classes, by the conformal quantile.

    Of another image of a known class the score is below it with a probability of at most `rejects`; with too few images
    it is minus infinity, and nothing is rejected.

    >>> rejection_threshold([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 0.2), rejection_threshold([1.0], 0.2)
    (2.0, -inf)
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64).reshape(-1))
    k = math.floor((len(ordered) + 1) * as_fraction("rejects", rejects))
    return float(ordered[k - 1]) if k else -math.inf


def class_rate_interval(rates: ArrayLike, level: float = 0.95) -> tuple[float, float, float] | None:
    """Mean, lower and upper end of the mean of rates over another set of as many classes; None of fewer than two.

    How often images of a class that the model does not know are taken for a known one is estimated by leaving classes
    out in turn. The classes are the sample, not the images: five classes left out say little about a sixth. The
    interval is mean ± t · s · √(1/C + 1/C), with s the standard deviation of the rates of C classes of one source.

    >>> [round(value, 3) for value in class_rate_interval([0.1, 0.3, 0.2, 0.4])]
    [0.25, 0.0, 0.541]
    """
    values = np.asarray(rates, dtype=np.float64)
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, spread = float(values.mean()), float(values.std(ddof=1))
    spread = max(spread, 1 / (2 * len(values)))  # rates that are all equal are no certainty
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * spread * math.sqrt(2 / len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)
