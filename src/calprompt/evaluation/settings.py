"""How runs are evaluated, as settings. Reading their names and defaults needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calprompt.errors import SettingError
from calprompt.registry import check_types, load_extension

if TYPE_CHECKING:
    from calprompt.calibrators import Calibrator

NONE = "none"
TUNED, ZERO_SHOT = "tuned", "zero-shot"
KINDS = {TUNED: ("logits", "text"), ZERO_SHOT: ("zero_shot_logits", "frozen_text")}  # of arrays of a run
PARTS = ("base", "novel", "all")
MAX_RESAMPLES = 1_000_000


@dataclass(frozen=True)
class EvaluationSettings:
    """How runs are evaluated; checked when it is made.

    Attributes:
        calibrators: Names as in 'calprompt list', with options or chained ('a -> b') if need be; none comes first.
        bins: Bins of the calibration errors.
        convention: Binning convention: default, tcpt or dac.
        bootstrap: Resamples of the images for the intervals; 0: no intervals.
        seed: Seed of the resamples, and of halving the validation images for thresholds.
        zero_shot: Evaluate the untuned model as well.
        target_error: Choose a threshold that keeps the error of accepted predictions at most this, such as 0.05.
        confidence_level: Confidence level of the guarantee behind that threshold.
        imports: Python files that register calibrators or metrics of the user.
    """

    calibrators: tuple[str, ...] = ("temperature", "dac", "sals")
    bins: int = 10
    convention: str = "default"
    bootstrap: int = 1000
    seed: int = 0
    zero_shot: bool = False
    target_error: float | None = None
    confidence_level: float = 0.95
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from calprompt.metrics import conventions
        from calprompt.metrics.binning import check_n_bins

        check_types("", type(self).__init__, vars(self))
        for path in self.imports:
            load_extension(path)
        for spec in self.specs:
            create_calibrator(spec)
        check_n_bins(self.bins, "bins")
        conventions.get(self.convention)
        for name in ("bootstrap", "seed"):
            if getattr(self, name) < 0:
                raise SettingError(f"must be at least 0, got {getattr(self, name)}", parameter=name)
        if self.bootstrap > MAX_RESAMPLES:
            raise SettingError(f"must be at most {MAX_RESAMPLES:,}, got {self.bootstrap:,}", parameter="bootstrap")
        for name in ("target_error", "confidence_level"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise SettingError(f"must be a fraction above 0 and below 1, got {value}", parameter=name)

    @property
    def specs(self) -> tuple[str, ...]:
        """The calibrators in one spelling, each once, `none` first."""
        return tuple(dict.fromkeys((NONE, *map(normalized_spec, self.calibrators))))


def normalized_spec(spec: str) -> str:
    """A calibrator or a chain of them in one spelling.

    >>> normalized_spec("temperature->dac")
    'temperature -> dac'
    """
    return " -> ".join(part.strip() for part in spec.split("->"))


def create_calibrator(spec: str) -> Calibrator:
    """A calibrator that is not fitted yet, or, for `none`, the one that changes nothing."""
    from calprompt.calibrators import parse
    from calprompt.calibrators.base import Uncalibrated

    return Uncalibrated() if spec == NONE else parse(spec)
