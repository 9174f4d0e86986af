"""How often answers of a confidence were right, on labelled images that the model did not learn from.

What a person needs to know of "93 %", as plain data that goes along with an exported model. It rests on one assumption:
answers that are more sure are not less often right. Then, with π(c) the share of right answers at a confidence c,

    images at most as sure as c     their mean π is at most π(c):   a lower bound on their accuracy is one on π(c)
    images at least as sure as c    their mean π is at least π(c):  an upper bound on their accuracy is one on π(c)

The bounds are Clopper and Pearson's at 97.5 % each, which hold for images of unequal π too (Hoeffding, 1956). How many
images each bound takes is chosen from their confidences alone, as if the model were calibrated, so that the outcomes
cannot bias the choice: few near ones give a wide bound, many that reach far a low one. For the same reason it is the
bounds of a calibrated model that decide whether so few images say anything at all. `experiments/intervals.py` counts
how often the interval contains the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import DamagedFileError
from calprompt.metrics.binning import equal_width_table
from calprompt.metrics.binomial import chance_band, chance_ece, lower_bound, share_interval, upper_bound, wilson_ends
from calprompt.metrics.inputs import ArrayLike
from calprompt.metrics.selective import risk_coverage
from calprompt.text import plural

HELD_OUT, CROSS_FITTED, TEST = "held out", "cross-fitted", "test"
DESCRIPTIONS = {
    HELD_OUT: "that took no part in tuning or calibration",
    CROSS_FITTED: "each predicted by a fit that had not seen it",
    TEST: "of the test split",
}
WORDS = {HELD_OUT: "held-out", CROSS_FITTED: "cross-fitted", TEST: "test"}
WIDEST_INTERVAL = 0.4  # interval of a calibrated model, beyond which nothing is said
TAIL_PROBABILITY = 0.025  # how often each bound may fail
BINS = 10
CURVE_POINTS = 200  # of the risk-coverage curve


@dataclass(frozen=True)
class Meaning:
    """What a confidence has meant so far."""

    share: float | None  # of answers this sure, how many were right; None if the images are too few to tell
    interval: tuple[float, float] | None  # of the share, 95 %; None if the images are too few to tell
    images: int  # how many images say so
    source: str  # which images these are

    @property
    def of_100(self) -> tuple[int, int, int] | None:
        """The share and the ends of its interval in percent; the ends are rounded outwards."""
        if self.share is None or self.interval is None:
            return None
        low, high = self.interval
        return round(100 * self.share), math.floor(100 * low), math.ceil(100 * high)

    def sentence(self, noun: str = "answers") -> str:
        """In words.

        >>> Meaning(0.92, (0.812, 0.968), 50, "held out").sentence()
        'Of 100 answers this sure, about 92 were right (81 to 97, judged by 50 held-out images).'
        >>> Meaning(None, None, 12, "held out").sentence()
        'Too few held-out images are about this sure to tell how often such answers are right.'
        """
        if self.of_100 is None:
            return f"Too few {WORDS[self.source]} images are about this sure to tell how often such {noun} are right."
        share, low, high = self.of_100
        images = plural(self.images, WORDS[self.source] + " image")
        return f"Of 100 {noun} this sure, about {share} were right ({low} to {high}, judged by {images})."


@dataclass(frozen=True, eq=False)
class TrackRecord:
    """Confidences and whether the predictions were right."""

    source: str  # which images: "held out", "cross-fitted" or "test"
    confidence: NDArray[np.float64]  # of the most probable class, [n], rising
    correct: NDArray[np.bool_]  # whether that class was the true one, [n]
    taken: NDArray[np.bool_]  # whether the image was taken for one of the classes, [n]; the others are never answered

    @classmethod
    def of(
        cls, source: str, probabilities: ArrayLike, labels: ArrayLike, taken: ArrayLike | None = None
    ) -> TrackRecord | None:
        """From predictions; None if there are no images."""
        p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        if not len(y):
            return None
        confidence = np.minimum(p.max(axis=1), 1.0)
        order = np.argsort(confidence, kind="stable")
        kept = np.ones(len(y), dtype=bool) if taken is None else np.asarray(taken, dtype=bool)
        return cls(source, confidence[order], (p.argmax(axis=1) == y)[order], kept[order])

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def description(self) -> str:
        """Which images it is made of.

        >>> TrackRecord.of("held out", [[0.5, 0.5]], [0]).description
        '1 image that took no part in tuning or calibration'
        """
        return f"{plural(len(self), 'image')} {DESCRIPTIONS[self.source]}"

    def meaning(self, confidence: float) -> Meaning:
        """How often answers of a confidence were right, as far as the images tell."""
        sure, right = self.confidence[self.taken], self.correct[self.taken]
        below, above = (int(np.searchsorted(sure, confidence, side)) for side in ("right", "left"))
        low, fewer = _planned(sure[:below][::-1], 0)
        high, more = _planned(sure[above:], 1)
        first, last = below - fewer, above + more  # images of this very confidence are on both sides
        if high - low > WIDEST_INTERVAL:
            return Meaning(None, None, last - first, self.source)
        low = lower_bound(int(right[first:below].sum()), fewer, TAIL_PROBABILITY)
        high = upper_bound(int(right[above:last].sum()), more, TAIL_PROBABILITY)
        low, high = min(low, high), max(low, high)
        share = confidence + float((right[first:last] - sure[first:last]).mean())
        return Meaning(min(max(share, low), high), (low, high), last - first, self.source)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Accuracy, calibration error, reliability diagram and risk-coverage curve, as plain data."""
        right, n = int(self.correct.sum()), len(self)
        return {
            "source": self.source,
            "images": n,
            "description": self.description,
            "accuracy": right / n,
            "interval": list(share_interval(right, n)),
            "ece": equal_width_table(self.confidence, self.correct, n_bins=BINS).expected_gap,
            "chance_ece": chance_ece(self.confidence),
            "reliability": self.reliability(),
            "risk_coverage": self.risk_coverage(),
        }

    def reliability(self) -> list[dict[str, Any]]:
        """The bins of the reliability diagram that have images, with intervals and the band of chance."""
        table, band = equal_width_table(self.confidence, self.correct, n_bins=BINS), chance_band(self.confidence)
        rows = []
        for number, row in enumerate(table.rows()):
            if row["count"]:
                right = round(row["accuracy"] * row["count"])
                rows.append(
                    {
                        "low": row["lower"],
                        "high": row["upper"],
                        "images": int(row["count"]),
                        "confidence": row["confidence"],
                        "accuracy": row["accuracy"],
                        "interval": list(share_interval(right, int(row["count"]))),
                        "chance": band[number].tolist(),
                    }
                )
        return rows

    def risk_coverage(self) -> dict[str, list[float]]:
        """Thresholds, falling, with coverage, risk, and the upper end of the risk's 95 % interval."""
        if not self.taken.any():
            return {"threshold": [], "coverage": [], "risk": [], "risk_high": []}
        curve = risk_coverage(self.confidence[self.taken], self.correct[self.taken])
        rows = np.unique(np.linspace(0, len(curve.threshold) - 1, CURVE_POINTS).round().astype(np.int64))
        ends = [share_interval(int(curve.wrong[row]), int(curve.accepted[row]))[1] for row in rows]
        return {
            "threshold": curve.threshold[rows].tolist(),
            "coverage": (curve.accepted[rows] / len(self)).tolist(),
            "risk": curve.risk[rows].tolist(),
            "risk_high": ends,
        }

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "source": self.source,
            "confidence": self.confidence.tolist(),
            "correct": self.correct.astype(int).tolist(),
            "taken": self.taken.astype(int).tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrackRecord:
        """From what `to_dict` gave."""
        try:
            confidence = np.asarray(values["confidence"], dtype=np.float64)
            correct = np.asarray(values["correct"], dtype=bool)
            taken = np.asarray(values["taken"], dtype=bool)
            alike = confidence.shape == correct.shape == taken.shape and confidence.ndim == 1
            if values["source"] not in DESCRIPTIONS or not alike:
                raise ValueError("confidences and outcomes do not fit together")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"the track record of the model is damaged: {error}") from error
        return cls(values["source"], confidence, correct, taken)


def _planned(sure: NDArray[np.float64], end: int) -> tuple[float, int]:
    """The best lower (0) or upper (1) bound that the first images can give if calibrated, and how many it takes."""
    if not len(sure):
        return float(end), 0
    count = np.arange(1, len(sure) + 1)
    bounds = wilson_ends(np.cumsum(sure) / count, count)[end]
    best = int(bounds.argmin() if end else bounds.argmax())
    return float(bounds[best]), best + 1
