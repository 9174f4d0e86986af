"""All metrics at once, the registry that a metric joins, and the metrics without bins.

A metric is one function of checked `Predictions`; one with bins also takes their number and a `Convention`:

    @metrics.register("my_metric")
    def my_metric(sample, n_bins, rule):
        return float(...)

Registered, it takes what every `Metric` takes: probabilities or logits, labels, and options.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, Protocol

import numpy as np

from calprompt.errors import SettingError
from calprompt.metrics.binning import DEFAULT, Convention, check_n_bins, find_convention
from calprompt.metrics.inputs import ArrayLike, Floats, Predictions, predictions
from calprompt.registry import Registry

OPTIONS = """

Args:
    probs: Probabilities [N, C], or logits, or checked `Predictions`.
    labels: True classes [N]; not given with `Predictions`.
    n_bins: Number of bins, for metrics that have bins.
    from_logits: Whether `probs` are logits.
    convention: Binning convention: "default", "tcpt", "dac" or a `Convention`.
"""


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
        label: Display name.
        unit: "%" for fractions that are shown as percent, else what it is measured in.
        better: "higher", "lower", or "zero" for signed numbers that are best at 0.
        about: One sentence on how it is computed; reports show it beside the column.
        shown: Where it is shown by default: "results", "report" or both.
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

    def register(self, name: str, **info: Any) -> Callable[[Callable[..., float]], Metric]:
        """Decorator that files a metric under `name`; what else it takes are the fields of `MetricInfo`."""
        self._info.setdefault(name, MetricInfo(**{"label": name, **info}))
        file = super().register(name)

        def add(measure: Callable[..., float]) -> Metric:
            has_bins = len(inspect.signature(measure).parameters) > 1

            @wraps(measure, assigned=("__module__", "__name__", "__qualname__"))
            def metric(
                probs: ArrayLike | Predictions,
                labels: ArrayLike | None = None,
                *,
                n_bins: int = 10,
                from_logits: bool = False,
                convention: Convention | str = DEFAULT,
            ) -> float:
                rule = find_convention(convention)
                sample = predictions(probs, labels, from_logits=from_logits, softmax=rule.softmax)
                return measure(sample, check_n_bins(n_bins), rule) if has_bins else measure(sample)

            del metric.__wrapped__  # whose signature is another
            metric.__doc__ = inspect.cleandoc(measure.__doc__ or "") + OPTIONS
            return file(metric)

        return add

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
        names: Metrics to compute; by default, all that are registered.
        n_bins: Bins of the calibration errors.
        from_logits: Whether `probs` are logits.
        convention: Binning convention.

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
    softmax = find_convention(convention).softmax
    sample = predictions(probs, labels, from_logits=from_logits, softmax=softmax)
    values = {name: metric(sample, n_bins=n_bins, convention=convention) for name, metric in selected.items()}
    for name, value in values.items():
        if not isinstance(value, float) or not math.isfinite(value):
            raise SettingError(f"metric {name!r} must return a finite float, got {value!r}")
    return values


@metrics.register("accuracy", label="accuracy", better="higher", about="share of right predictions, percent")
def accuracy(sample: Predictions) -> float:
    """Fraction of samples whose largest score is at the label: (1/N) Σ_i 1[ŷ_i = y_i]. Of equal scores the first wins.

    >>> accuracy([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1, 0])
    0.75
    """
    return float(sample.correct.mean())


@metrics.register("macro_f1", label="macro F1", better="higher", shown=())
def macro_f1(sample: Predictions) -> float:
    """Mean over the classes that occur among the labels of F1_k = 2·TP_k / (labelled k + predicted k).

    >>> macro_f1([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    0.6666666666666666
    """
    each = (sample.labels, sample.predicted, sample.labels[sample.correct])
    labelled, predicted, hit = (np.bincount(labels, minlength=sample.probs.shape[1]) for labels in each)
    seen = labelled > 0
    return float((2 * hit[seen] / (labelled[seen] + predicted[seen])).mean())


@metrics.register("brier", label="Brier", unit="0 to 2", shown=())
def brier_score(sample: Predictions) -> float:
    """Multi-class Brier score, summed over classes: (1/N) Σ_i Σ_k (p_ik − 1[y_i = k])², between 0 and 2.

    For two classes it is twice the binary Brier score.

    >>> round(brier_score([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 6)
    0.26
    """
    return float(squared_errors(sample).mean())


def squared_errors(sample: Predictions) -> Floats:
    """The terms of the Brier score: Σ_k (p_k − 1[y=k])² = Σ_{k≠y} p_k² + (1 − p_y)² of each image."""
    at_label = sample.probs[np.arange(len(sample.labels)), sample.labels]
    others = np.einsum("nk,nk->n", sample.probs, sample.probs) - at_label**2
    return np.asarray(np.maximum(others, 0) + (1 - at_label) ** 2)


@metrics.register("nll", label="NLL", unit="nats", about="negative log likelihood")
def negative_log_likelihood(sample: Predictions) -> float:
    """Mean negative log-likelihood in nats, −(1/N) Σ_i log p_i(y_i): the cross-entropy.

    From logits it is the float64 log-softmax, whatever the convention. A probability of exactly 0 counts as the
    smallest positive number of its dtype (1e-45 for float32), so that the mean stays finite; it is then too small.

    >>> negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    1.0397207708399179
    """
    return float(-sample.log_likelihood.mean()) + 0.0


@metrics.register("mean_confidence", label="mean confidence", better="higher", shown=())
def mean_confidence(sample: Predictions) -> float:
    """Mean of the largest probability: (1/N) Σ_i max_k p_ik.

    >>> mean_confidence([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    0.625
    """
    return float(sample.confidence.mean())


@metrics.register(
    "confidence_gap",
    label="confidence gap",
    better="zero",
    about="mean confidence minus accuracy, percentage points; above 0 is over-confident",
    shown=("report",),
)
def confidence_gap(sample: Predictions) -> float:
    """Mean confidence − accuracy, signed: positive is over-confident, negative under-confident. |gap| ≤ ECE.

    >>> confidence_gap([[0.5, 0.5], [0.25, 0.75]], [0, 0])
    0.125
    """
    return float(sample.confidence.mean() - sample.correct.mean())
