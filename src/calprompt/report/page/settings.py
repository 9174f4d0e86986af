"""What a report contains, as settings. Reading their names and defaults needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from calprompt.errors import SettingError
from calprompt.registry import check_types


@dataclass(frozen=True)
class ReportSettings:
    """What a report contains; checked when it is made.

    Attributes:
        title: Of the page; what was run, if None.
        bins: Bins of the calibration errors.
        bootstrap: Resamples of the images for the intervals; 0: no such intervals.
        seed: Of the resamples, and of halving the validation images for thresholds.
        errors: Error rates to find thresholds for, as fractions.
        mistakes: How many of the most confident mistakes to show of each split.
        no_images: Leave out the pictures of mistakes.
        no_figures: Leave out the figures.
    """

    title: str | None = None
    bins: int = 10
    bootstrap: int = 1000
    seed: int = 0
    errors: tuple[float, ...] = (0.05, 0.1, 0.2)
    mistakes: int = 8
    no_images: bool = False
    no_figures: bool = False

    def __post_init__(self) -> None:
        from calprompt.metrics.binning import check_n_bins

        check_types("", type(self).__init__, vars(self))
        check_n_bins(self.bins, "bins")
        for name in ("bootstrap", "seed", "mistakes"):
            if getattr(self, name) < 0:
                raise SettingError(f"must be at least 0, got {getattr(self, name)}", parameter=name)
        for value in self.errors:
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise SettingError(f"must be fractions above 0 and below 1, got {value}", parameter="errors")

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "errors": list(self.errors)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ReportSettings:
        """From what `record` gave."""
        return cls(**{**record, "errors": tuple(record["errors"])})
