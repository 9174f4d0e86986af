"""Selective prediction: answer where the model is confident, hand over the rest.

    accepted at t    images with confidence ≥ t
    coverage         accepted / N
    risk             wrong among accepted / accepted

    risk │        ╭──    AURC is the area under this curve; a model that ranks its errors last has the least.
         │  ╭─────╯
         └──────────── coverage

Images of equal confidence are accepted together, so nothing here depends on the order of the images.

`guaranteed_threshold` chooses t from validation data with a guarantee for finite samples
(Angelopoulos et al., Learn then Test: Calibrating Predictive Algorithms to Achieve Risk Control, 2021):

    H_t          more than a fraction α of what is accepted at t is wrong
    p_t          P(Bin(n_t, α) ≤ k_t), with n_t accepted and k_t of them wrong
    sequences    from each of J starts, test t from high to low at the level δ/J until the first H_t that stands

The thresholds and the starts are fixed beforehand, or the starts are chosen on other images (`choose_start`). Under
H_t, and given which images are accepted, p_t is a valid p-value. A sequence rejects a true H_t only by rejecting the
first true one it meets: a chance of δ/J at most. So all rejected H_t are false at once with a probability of at least
1 − δ, and the lowest such t may be used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calprompt.errors import SettingError
from calprompt.metrics.binomial import log_binomial_tail
from calprompt.metrics.evaluation import metrics
from calprompt.metrics.inputs import ArrayLike, Floats, Ints, Predictions, checked_outcomes

THRESHOLDS = (  # 0.999999, 0.999998, … in ever larger steps to 0.991, then 0.99, 0.98, …, 0
    *(round(1 - step * 10.0**-digits, digits) for digits in (6, 5, 4, 3) for step in range(1, 10)),
    *(percent / 100 for percent in range(99, -1, -1)),
)
STARTS = (0.9999, 0.99, 0.95, 0.85, 0.6, 0.3)
ADDED_ERRORS = 0.5  # errors added to those of other images when a start is chosen on them
SIGNIFICANCE = 0.05  # so many errors, or more, are less likely than this if the error rate is the target
HOPEFUL = 0.8  # of the target: error rates above are too near it to say how many images would do
MAX_NEEDED = 1_000_000  # more images than this are not worth suggesting


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve, from the most confident images to all: a point for each confidence that occurs.

    Attributes:
        threshold: The confidences, falling.
        accepted: Number of images with at least that confidence.
        wrong: Number of wrong predictions among them.
    """

    threshold: Floats
    accepted: Ints
    wrong: Ints

    @property
    def coverage(self) -> Floats:
        """Share of the images that is accepted."""
        return np.asarray(self.accepted / self.accepted[-1])

    @property
    def risk(self) -> Floats:
        """Error rate of the accepted images."""
        return np.asarray(self.wrong / self.accepted)


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Coverage and risk of accepting all images at least as confident as t, for every confidence t there is.

    Args:
        confidence: Confidences [N] in [0, 1].
        correct: Whether each prediction is right, [N].

    >>> curve = risk_coverage([0.9, 0.8, 0.8, 0.6], [1, 0, 1, 0])
    >>> curve.threshold.tolist(), curve.coverage.tolist(), curve.risk.round(3).tolist()
    ([0.9, 0.8, 0.6], [0.25, 0.75, 1.0], [0.0, 0.333, 0.5])
    """
    confidence, right = checked_outcomes(confidence, correct)
    wrong = 1 - right
    negative, which = np.unique(-confidence, return_inverse=True)
    errors = np.bincount(which, wrong).astype(np.int64)
    return RiskCoverage(-negative, np.cumsum(np.bincount(which)), np.cumsum(errors))


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """AURC, the mean over images of the risk at their own confidence: (1/N) Σ_i risk(c_i). Lower is better.

    That is the sum over the curve's points of risk times the coverage they add. Without ties it is the usual mean of
    the risks of the 1, 2, …, N most confident images.

    Args:
        confidence: Confidences [N] in [0, 1].
        correct: Whether each prediction is right, [N].

    >>> round(area_under_risk_coverage([0.9, 0.8, 0.7], [1, 0, 1]), 6)  # (0 + 1/2 + 1/3) / 3
    0.277778
    """
    curve = risk_coverage(confidence, correct)
    return float((np.diff(curve.accepted, prepend=0) * curve.risk).sum()) / int(curve.accepted[-1])


def excess_area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """AURC above that of the best ranking with as many errors, all correct images before all wrong ones; 0 or more.

    With E errors the best is (1/N) Σ_{j=1..E} j / (N − E + j) (Geifman et al., 2019).

    Args:
        confidence: Confidences [N] in [0, 1].
        correct: Whether each prediction is right, [N].

    >>> excess_area_under_risk_coverage([0.9, 0.8, 0.7], [1, 1, 0])
    0.0
    """
    area, (_, right) = area_under_risk_coverage(confidence, correct), checked_outcomes(confidence, correct)
    errors = np.arange(1, int((1 - right).sum()) + 1)
    best = float((errors / (right.sum() + errors)).sum()) / len(right)
    return max(0.0, area - best)


@metrics.register("aurc", label="AURC", shown=())
def aurc(sample: Predictions) -> float:
    """Area under the risk-coverage curve of the largest probability, see `area_under_risk_coverage`. It has no bins.

    >>> aurc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 0, 0])  # the least confident one is wrong: (0 + 0 + 1/3) / 3
    0.1111111111111111
    """
    return area_under_risk_coverage(sample.confidence, sample.correct)


class AcceptanceRates:
    """Coverage and error of a threshold, from counts of images."""

    images: int
    accepted: int
    wrong: int

    @property
    def coverage(self) -> float:
        """Share of the images that is accepted."""
        return self.accepted / self.images

    @property
    def error(self) -> float | None:
        """Error rate of the accepted images, if there are any."""
        return self.wrong / self.accepted if self.accepted else None


@dataclass(frozen=True)
class GuaranteedThreshold(AcceptanceRates):
    """A threshold and what it accepts of the validation images, or why there is none.

    Attributes:
        threshold: Accept confidences of this and above; None if nothing can be guaranteed.
        target_error: The error rate that is guaranteed.
        confidence_level: Confidence level of the guarantee.
        images: Number of validation images.
        accepted: Number of validation images at or above the threshold.
        wrong: Number of wrong predictions among the accepted.
        reason: Why there is no threshold.
        needed: Number of accepted images it would take at the lowest error rate seen; None if no number would do.
        tested: If there is no threshold, the start that came nearest: threshold, accepted and wrong images.
    """

    threshold: float | None
    target_error: float
    confidence_level: float
    images: int
    accepted: int = 0
    wrong: int = 0
    reason: str | None = None
    needed: int | None = None
    tested: tuple[float, int, int] | None = None

    @property
    def is_hopeless(self) -> bool:
        """Whether so many of the accepted images are wrong that more images would hardly help."""
        if self.tested is None:
            return False
        _, n, k = self.tested
        at_least = log_binomial_tail(n - k, n, 1 - self.target_error)  # P(Bin(n, α) ≥ k)
        return k >= self.target_error * n > 0 and at_least <= math.log(SIGNIFICANCE)


def choose_start(confidence: ArrayLike, correct: ArrayLike, target_error: float, images: int) -> float:
    """Where a sequence of tests had best start, judged by images that the guarantee does not rest on.

    One start chosen well needs fewer images than several fixed ones, among which the risk is divided: 59 instead of 94
    for a target of 5 %.

    >>> choose_start([0.9] * 50 + [0.4] * 50, [True] * 50 + [False] * 50, target_error=0.1, images=60)
    0.9
    """
    confidence, right = checked_outcomes(confidence, correct)
    above, wrong = _counts_above(confidence, right)
    scale = images / len(confidence)

    def log_p(test: int) -> float:
        n = round(above[test] * scale)
        return log_binomial_tail(math.ceil((wrong[test] + ADDED_ERRORS) * scale), n, target_error) if n else 0.0

    return THRESHOLDS[min(range(len(THRESHOLDS)), key=log_p)]


def guarantee_chance(
    confidence: ArrayLike, correct: ArrayLike, target_error: float, images: int, *, wrong: int = 0, level: float = 0.95
) -> tuple[float, int | None]:
    """How likely so many images give a guarantee, and about how many would, judged by other images.

    >>> chance, _ = guarantee_chance([0.9] * 90 + [0.4] * 10, [True] * 90 + [False] * 10, target_error=0.1, images=60)
    >>> round(chance, 2)
    0.96
    """
    confidence, right = checked_outcomes(confidence, correct)
    above, errors = _counts_above(confidence, right)
    chances, numbers = [0.0], []
    for n, k in sorted(set(zip(above.tolist(), errors.tolist(), strict=True))):
        own, rate, most = round(n * images / len(confidence)), (k + ADDED_ERRORS) / (n + 1), wrong - 1
        while log_binomial_tail(most + 1, own + wrong, target_error) <= math.log(1 - level):
            most += 1
        if own and most >= wrong:
            chances.append(math.exp(log_binomial_tail(most - wrong, own, rate)))
        if n and rate < HOPEFUL * target_error:
            accepted = _needed(rate, target_error, math.log(1 - level)) or MAX_NEEDED
            numbers.append(math.ceil(accepted * len(confidence) / n))
    return max(chances), min(numbers, default=None)


def guaranteed_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    target_error: float,
    confidence_level: float = 0.95,
    *,
    starts: Sequence[float] = STARTS,
) -> GuaranteedThreshold:
    """The lowest threshold that keeps the error among accepted predictions at or below a target, guaranteed.

    With a probability of at least `confidence_level` over the draw of the validation images, the error rate of accepted
    images from the same distribution is at most `target_error`. The images have to be independent of each other and
    to have had no part in the model or in the calibrator that gives the confidences. Nothing is guaranteed for images
    from elsewhere, such as novel classes. A lower target or a higher level never gives a lower threshold.

    Args:
        confidence: Confidence of each validation image, in [0, 1].
        correct: Whether each prediction is right.
        target_error: The largest error rate, above 0 and below 1.
        confidence_level: Confidence level of the guarantee, above 0 and below 1.
        starts: Thresholds where the sequences start, of `THRESHOLDS`; these images must have had no part in them.

    Raises:
        SettingError: if the target or the level is not between 0 and 1.

    >>> confidence, correct = [0.95] * 300 + [0.5] * 100, [True] * 298 + [False] * 2 + [True, False] * 50
    >>> guarantee = guaranteed_threshold(confidence, correct, target_error=0.05)
    >>> guarantee.threshold, guarantee.coverage, round(guarantee.error, 4)
    (0.51, 0.75, 0.0067)
    >>> guaranteed_threshold(confidence[:80], correct[:80], target_error=0.05).needed
    94
    """
    for name, value in (("target_error", target_error), ("confidence_level", confidence_level)):
        if not 0 < value < 1:
            raise SettingError(f"must be a fraction above 0 and below 1, got {value}", parameter=name)
    confidence, right = checked_outcomes(confidence, correct)
    above, wrong_above = _counts_above(confidence, right)
    level = math.log((1 - confidence_level) / len(starts))

    def log_p(test: int) -> float:
        return log_binomial_tail(int(wrong_above[test]), int(above[test]), target_error)

    first_tests = [THRESHOLDS.index(start) for start in starts]
    lowest = -1
    for test in first_tests:
        while test < len(THRESHOLDS) and log_p(test) <= level:
            lowest, test = max(lowest, test), test + 1
    goal = (float(target_error), float(confidence_level), len(confidence))
    if lowest >= 0:
        return GuaranteedThreshold(THRESHOLDS[lowest], *goal, int(above[lowest]), int(wrong_above[lowest]))
    best = min(first_tests, key=lambda test: (log_p(test), -above[test], THRESHOLDS[test]))
    n, k = int(above[best]), int(wrong_above[best])
    needed = _needed(k / n if n else 0.0, target_error, level)
    found = GuaranteedThreshold(None, *goal, needed=needed, tested=(THRESHOLDS[best], n, k))
    return replace(found, reason=_reason(found))


def _counts_above(confidence: Floats, right: Floats) -> tuple[Ints, Ints]:
    """How many images are at or above each of `THRESHOLDS`, and how many of these are wrong: n_t and k_t."""
    order = np.argsort(confidence)
    above = len(confidence) - np.searchsorted(confidence[order], THRESHOLDS, side="left")
    wrong = np.concatenate([[0], np.cumsum(1 - right[order][::-1])]).astype(np.int64)[above]
    return np.asarray(above, dtype=np.int64), wrong


def _needed(rate: float, target_error: float, level: float) -> int | None:
    """About how many accepted images, wrong at this rate, make the first test of a sequence pass."""

    def passes(n: int) -> bool:
        return log_binomial_tail(math.ceil(rate * n), n, target_error) <= level

    low, high = 0, 1
    while not passes(high):
        low, high = high, 2 * high
        if rate >= target_error or high > MAX_NEEDED:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _reason(found: GuaranteedThreshold) -> str:
    assert found.tested is not None
    threshold, n, k = found.tested
    if n == 0:
        return (
            f"no validation image has a confidence of {threshold} or more; it would take {found.needed}, all of them "
            "right"
        )
    errors = f"{k} of the {n} validation images with a confidence of {threshold} or more are wrong"
    if found.is_hopeless:
        return f"{errors}, which is not below the target: more images alone would not help"
    if k >= found.target_error * n:
        return f"{errors}, which are too few images to tell whether the error rate is below the target"
    if found.needed is None:
        return f"{errors}, which is too near the target for any reasonable number of images"
    return f"{errors}; at this error rate it would take about {found.needed} such images"
