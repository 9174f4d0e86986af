"""All metrics at once, and the registry that a metric joins.

A metric is one function, in one file, with the signature of `Metric`:

    @metrics.register("my_metric")
    def my_metric(probs, labels=None, *, n_bins=10, from_logits=False, convention=DEFAULT):
        sample = checked(probs, labels, from_logits, convention)
        return float(...)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from calprompt.errors import SettingError
from calprompt.metrics.binning import DEFAULT, Convention, check_n_bins, find_convention
from calprompt.metrics.inputs import ArrayLike, Predictions, predictions
from calprompt.registry import Registry


class Metric(Protocol):
    """A number from probabilities [N, C] (or logits, or `Predictions`) and labels [N]; all share these options."""

    def __call__(
        self,
        probs: ArrayLike | Predictions,
        labels: ArrayLike | None = None,
        *,
        n_bins: int = 10,
        from_logits: bool = False,
        convention: Convention | str = DEFAULT,
    ) -> float: ...


@dataclass(frozen=True)
class MetricInfo:
    """How a metric is written and read.

    Attributes:
        label: What people call it.
        unit: "%" for fractions that are shown as percent, else what it is measured in.
        better: "higher", "lower", or "zero" for signed numbers that are best at 0.
        about: How it is computed, in a sentence; reports show it beside the column.
        shown: Which of "results" and "report" show it without being asked.
    """

    label: str
    unit: str = "%"
    better: Literal["higher", "lower", "zero"] = "lower"
    about: str = ""
    shown: tuple[str, ...] = ("results", "report")

    @property
    def signed(self) -> bool:
        """Whether the sign means something."""
        return self.better == "zero"


class MetricRegistry(Registry[Metric]):
    """Metrics by name, each with its label, unit and direction."""

    def __init__(self) -> None:
        super().__init__("metric")
        self._info: dict[str, MetricInfo] = {}

    def register(
        self,
        name: str,
        *,
        label: str | None = None,
        unit: str = "%",
        better: Literal["higher", "lower", "zero"] = "lower",
        about: str = "",
        shown: tuple[str, ...] = ("results", "report"),
    ) -> Callable[[Metric], Metric]:
        """Decorator that files a metric under `name`; what else it takes is `MetricInfo`."""
        self._info.setdefault(name, MetricInfo(label or name, unit, better, about, shown))
        return super().register(name)

    def shown(self, where: str, first: Iterable[str] = ()) -> list[str]:
        """The metrics that "results" or "report" shows without being asked: `first`, then others by name."""
        others = [name for name in self.available() if where in self._info[name].shown]
        return list(dict.fromkeys((*first, *others)))

    def info(self, name: str) -> MetricInfo:
        """Label, unit and direction of a metric."""
        self.get(name)
        return self._info[name]


metrics = MetricRegistry()
metric_info = metrics.info


def checked(
    probs: ArrayLike | Predictions, labels: ArrayLike | None, from_logits: bool, convention: Convention | str
) -> Predictions:
    """The first line of every metric: check the input, unless it is checked `Predictions` already."""
    return predictions(probs, labels, from_logits=from_logits, softmax=find_convention(convention).softmax)


def evaluate(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    names: Iterable[str] | None = None,
    n_bins: int = 10,
    from_logits: bool = False,
    convention: Convention | str = DEFAULT,
) -> dict[str, float]:
    """Many metrics at once; the input is checked and put through softmax only once.

    Args:
        probs: Probabilities or logits [N, C], or checked `Predictions`.
        labels: Class indices [N].
        names: Which metrics; all registered ones, unless given.
        n_bins: Bins of the calibration errors.
        from_logits: Whether `probs` are logits.
        convention: How to bin.

    Returns:
        Values by name, as fractions.

    Raises:
        UnknownNameError: if a metric is not registered.
        SettingError: if the input is not usable, or a metric does not return a finite float.

    >>> values = evaluate([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> {name: round(value, 3) for name, value in values.items() if name in ("accuracy", "ece", "mce", "weighted_mce")}
    {'accuracy': 0.667, 'ece': 0.4, 'mce': 0.8, 'weighted_mce': 0.267}
    """
    selected = {name: metrics.get(name) for name in (metrics.available() if names is None else names)}
    check_n_bins(n_bins)
    sample = checked(probs, labels, from_logits, convention)
    values = {name: metric(sample, n_bins=n_bins, convention=convention) for name, metric in selected.items()}
    for name, value in values.items():
        if not isinstance(value, float) or not math.isfinite(value):
            raise SettingError(f"metric {name!r} must return a finite float, got {value!r}")
    return values
