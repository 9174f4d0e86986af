"""None of these: a score that tells images of known classes from images of other classes, and how often it errs.

    score ≥ threshold     the image is taken for one of the known classes
    false rejects         share of images of known classes below the threshold; set by the choice of the threshold
    false accepts         share of images of other classes at or above it

What the other images will show is not known, so false accepts are estimated by leaving classes out: a class is taken
away from the list, its images are scored against the rest, and those that are accepted are counted. The classes are the
sample, not the images: five classes left out say little about a sixth, however many images they have. The interval is
that of the mean rate over another set of as many classes, drawn from where these came from:

    mean ± t · s · √(1/C + 1/C)        s: standard deviation of the rates of the C classes
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calprompt import kernel
from calprompt.metrics.inputs import ArrayLike
from calprompt.promises.conformal import Floats, as_fraction
from calprompt.registry import unknown

SCORES = ("max_logit", "energy", "probability", "contrast")


@dataclass(frozen=True)
class OpenSetRule:
    """When an image is none of the known classes.

    Attributes:
        score: How sure it is one of them: the "max_logit", the "energy" (log-sum-exp of logits), the "probability" of
            the most probable class, or its "contrast", the largest logit above the mean one.
        temperature: What logits are divided by for the energy and the probability.
        threshold: Scores below this one are none of the known classes.
        false_rejects: Share of images of known classes that are rejected, and its interval.
        false_accepts: Share of images of left-out classes that are accepted, and its interval; None if no class could
            be left out.
        level: Of the intervals.
        images: How many images of known classes `false_rejects` was measured on.
        classes: How many classes were left out in turn.
    """

    score: str
    temperature: float
    threshold: float
    false_rejects: tuple[float, float, float]
    false_accepts: tuple[float, float, float] | None
    level: float = 0.95
    images: int = 0
    classes: int = 0

    def accepts(self, logits: ArrayLike) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each image is taken for one of the known classes, [n].

        Args:
            logits: Before calibration, [n, C].
        """
        return np.asarray(open_set_scores(logits, self.score, self.temperature) >= self.threshold)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; a threshold of minus infinity is written as None."""
        return {
            **vars(self),
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "false_rejects": list(self.false_rejects),
            "false_accepts": None if self.false_accepts is None else list(self.false_accepts),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> OpenSetRule:
        """From what `to_dict` gave."""
        accepts, threshold = values["false_accepts"], values["threshold"]
        changed = {
            "threshold": -math.inf if threshold is None else threshold,
            "false_rejects": tuple(values["false_rejects"]),
            "false_accepts": None if accepts is None else tuple(accepts),
        }
        return cls(**{**values, **changed})


def open_set_scores(logits: ArrayLike, score: str, temperature: float = 1.0) -> Floats:
    """How sure it is that each image is of a known class, [n]; see `OpenSetRule`.

    Args:
        logits: Before calibration, [n, C].
        score: Its name.
        temperature: For the energy and the probability.

    >>> [round(float(open_set_scores([[3.0, 1.0]], score)[0]), 3) for score in SCORES]
    [3.0, 3.127, 0.881, 1.0]
    """
    if score not in SCORES:
        raise unknown("open-set score", score, SCORES)
    return kernel.open_set_scores(np.asarray(logits, dtype=np.float64), score, temperature)


def rejection_threshold(scores: ArrayLike, rejects: float) -> float:
    """The largest threshold that rejects at most a share of images of known classes, by the conformal quantile.

    Of another image of a known class the score is below it with a probability of at most `rejects`; with too few images
    it is minus infinity, and nothing is rejected.

    Args:
        scores: Of images of known classes, [n].
        rejects: The share.

    >>> rejection_threshold([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 0.2), rejection_threshold([1.0], 0.2)
    (2.0, -inf)
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64).reshape(-1))
    k = math.floor((len(ordered) + 1) * as_fraction("rejects", rejects))
    return float(ordered[k - 1]) if k else -math.inf


def class_rate_interval(rates: ArrayLike, level: float = 0.95) -> tuple[float, float, float] | None:
    """The mean of rates of classes, and the interval of the mean over another set of as many classes.

    Args:
        rates: One per class, in [0, 1].
        level: How often the interval contains that mean, if classes are drawn from one source.

    Returns:
        Mean, lower and upper end; None with fewer than two classes.

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
