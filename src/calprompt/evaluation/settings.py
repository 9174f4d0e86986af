"""How runs are evaluated, checked when it is said; and the calibrators that a setting names, with `none` among them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calprompt.calibrators import Calibrator, Stored, parse
from calprompt.errors import CalpromptError
from calprompt.extensions import load_extension
from calprompt.metrics import conventions
from calprompt.metrics.binning import check_n_bins
from calprompt.options import check_types

NONE = "none"
DEFAULT_CALIBRATORS = ("temperature", "dac", "sals")


@dataclass(frozen=True)
class EvaluationSettings:
    """How runs are evaluated; checked when it is made.

    calibrators       names, with options or chained if need be, as `calibrators.parse` takes them; `none` comes first
    bins, convention  of the calibration errors
    bootstrap         resamples of the images; 0: no intervals
    seed              of the resamples, and of halving the validation images for thresholds
    zero_shot         evaluate the untuned model as well
    target_error      choose a threshold that keeps the error of accepted predictions below this, see `selection`
    imports           Python files of one's own that register calibrators or metrics
    """

    calibrators: tuple[str, ...] = DEFAULT_CALIBRATORS
    bins: int = 10
    convention: str = "default"
    bootstrap: int = 1000
    seed: int = 0
    zero_shot: bool = False
    target_error: float | None = None
    confidence_level: float = 0.95
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types("setting", type(self).__init__, vars(self))
        for path in self.imports:
            load_extension(path)
        for spec in self.specs:
            calibrator_of(spec)
        check_n_bins(self.bins)
        conventions.get(self.convention)
        for name in ("bootstrap", "seed"):
            if getattr(self, name) < 0:
                raise CalpromptError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("target_error", "confidence_level"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise CalpromptError(f"{name} must be a fraction above 0 and below 1, got {value}")

    @property
    def specs(self) -> tuple[str, ...]:
        """The calibrators in one spelling, each once, `none` first."""
        spelled = (" -> ".join(part.strip() for part in spec.split("->")) for spec in self.calibrators)
        return tuple(dict.fromkeys((NONE, *spelled)))


class Unchanged(Calibrator):
    """Logits as they are, in the precision they were stored in."""

    keeps_argmax = True
    novel = True

    def apply(self, record: Stored) -> Tensor:
        return record.logits


def calibrator_of(spec: str) -> Calibrator:
    """A calibrator that is not fitted yet, or the one that changes nothing."""
    return Unchanged() if spec == NONE else parse(spec)
