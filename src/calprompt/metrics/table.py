"""The reliability diagram as data: bins, what is in them, and how far accuracy and confidence are apart there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calprompt.metrics.inputs import Floats, Ints


@dataclass(frozen=True, eq=False)
class BinTable:
    """Bins and what is in them: the reliability diagram as data.

    Attributes:
        lower: Lower edges.
        upper: Upper edges.
        count: How many samples weigh in each bin.
        confidence: Mean confidence of each bin; NaN if it has no samples.
        accuracy: Fraction correct in each bin; NaN if it has no samples.
        total: N, the number of all samples.
    """

    lower: Floats
    upper: Floats
    count: Ints
    confidence: Floats
    accuracy: Floats
    total: int

    @property
    def gap(self) -> Floats:
        """|acc_b − conf_b|, and 0 for bins without samples."""
        return np.nan_to_num(np.abs(self.accuracy - self.confidence))

    @property
    def expected_gap(self) -> float:
        """Σ_b n_b/N · gap_b."""
        return float((self.count / self.total * self.gap).sum())

    @property
    def maximum_gap(self) -> float:
        """max_b gap_b over bins that have samples."""
        return float(self.gap.max())

    @property
    def weighted_maximum_gap(self) -> float:
        """max_b n_b/N · gap_b."""
        return float((self.count / self.total * self.gap).max())

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per bin, ready for JSON; the means of an empty bin are None."""
        columns = {
            "lower": self.lower,
            "upper": self.upper,
            "count": self.count,
            "confidence": self.confidence,
            "accuracy": self.accuracy,
            "gap": np.abs(self.accuracy - self.confidence),
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [{k: None if v != v else v for k, v in zip(columns, row, strict=True)} for row in values]
