"""How often answers of a confidence were right, on labelled images that the model did not learn from.

    confidence of an answer ── the held-out images of the most similar confidence ── how many of these were right

It is what a person needs to know of "93 %", and it is plain data that goes along with an exported model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import DamagedFileError
from calprompt.metrics.binning import equal_width_table
from calprompt.metrics.binomial import share_interval
from calprompt.metrics.chance import chance_band, chance_ece
from calprompt.metrics.inputs import ArrayLike
from calprompt.metrics.selective import risk_coverage
from calprompt.text import plural

HELD_OUT, CROSS_FITTED, TEST = "held out", "cross-fitted", "test"
DESCRIPTIONS = {
    HELD_OUT: "that took no part in tuning or calibration",
    CROSS_FITTED: "each predicted by prompts that had not seen it",
    TEST: "of the test split",
}
WORDS = {HELD_OUT: "held-out", CROSS_FITTED: "cross-fitted", TEST: "test"}
ALIKE = 50  # images of similar confidence that say what a confidence means
ENOUGH = 20  # below which nothing is said
BINS = 10
POINTS = 200  # of the risk-coverage curve


@dataclass(frozen=True)
class Meaning:
    """What a confidence has meant so far.

    Attributes:
        share: Of answers this sure, how many were right.
        interval: Of the share, 95 %.
        images: How many images say so.
        source: Which images these are.
    """

    share: float
    interval: tuple[float, float]
    images: int
    source: str

    def sentence(self, noun: str = "answers") -> str:
        """In words.

        Args:
            noun: What is counted: "answers", or "guesses" where the model does not answer.

        >>> Meaning(0.92, (0.81, 0.968), 50, "held out").sentence()
        'Of 100 answers this sure, about 92 were right (81 to 97; 50 held-out images of similar confidence).'
        """
        low, high = (round(100 * end) for end in self.interval)
        return (
            f"Of 100 {noun} this sure, about {round(100 * self.share)} were right ({low} to {high}; "
            f"{plural(self.images, WORDS[self.source] + ' image')} of similar confidence)."
        )


@dataclass(frozen=True, eq=False)
class TrackRecord:
    """Confidences and whether the predictions were right.

    Attributes:
        source: Which images: "held out", "cross-fitted" or "test".
        confidence: Of the most probable class, [n], rising.
        correct: Whether that class was the true one, [n].
        taken: Whether the image was taken for one of the classes, [n]; the others are never answered.
    """

    source: str
    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    taken: NDArray[np.bool_]

    @classmethod
    def of(
        cls, source: str, probabilities: ArrayLike, labels: ArrayLike, taken: ArrayLike | None = None
    ) -> TrackRecord | None:
        """From predictions; None if there are no images.

        Args:
            source: "held out", "cross-fitted" or "test".
            probabilities: Calibrated, [n, C].
            labels: True classes, [n].
            taken: Whether each image was taken for one of the classes; all of them, unless given.
        """
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

    def meaning(self, confidence: float) -> Meaning | None:
        """How often answers of about this confidence were right; None if too few images tell."""
        if len(self) < ENOUGH:
            return None
        count = min(ALIKE, len(self))
        start = int(np.searchsorted(self.confidence, confidence))
        low = max(0, min(start - count, len(self) - count))
        nearest = np.argsort(np.abs(self.confidence[low : start + count] - confidence), kind="stable")[:count]
        right = int(self.correct[low : start + count][nearest].sum())
        return Meaning(right / count, share_interval(right, count), count, self.source)

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
        rows = np.unique(np.linspace(0, len(curve.threshold) - 1, POINTS).round().astype(np.int64))
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
        """From what `to_dict` gave.

        Raises:
            DamagedFileError: if it is something else.
        """
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
