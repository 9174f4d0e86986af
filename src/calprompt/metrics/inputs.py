"""The input of every metric: checked probabilities and labels, in float64, as one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args

import numpy as np
import numpy.typing as npt

from calprompt.errors import SettingError
from calprompt.kernel import log_softmax
from calprompt.registry import unknown

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ArrayLike = Union["torch.Tensor", npt.NDArray[Any], Sequence[Any]]
Softmax = Literal["float64", "input"]

RANGE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3
HALF_SUM_TOLERANCE = 1e-2  # a row of float16 or bfloat16 probabilities rounds this far
LARGEST_LOGIT = 1e100  # beyond it, sums of log-likelihoods overflow


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities and labels that passed every check; what `predictions` returns and every metric accepts.

    Attributes:
        probs: Probabilities [N, C].
        labels: Class indices [N].
        predicted: First class of the largest score [N].
        log_likelihood: Log probability of the label [N].
    """

    probs: Floats
    labels: Ints
    predicted: Ints
    log_likelihood: Floats

    @property
    def confidence(self) -> Floats:
        """Largest probability of each sample."""
        return np.asarray(self.probs.max(axis=1))

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether the predicted class is the label."""
        return np.asarray(self.predicted == self.labels)

    def take(self, rows: Ints) -> Predictions:
        """The samples at some indices, in that order; an index that is repeated gives its sample again."""
        return Predictions(self.probs[rows], self.labels[rows], self.predicted[rows], self.log_likelihood[rows])


def predictions(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    softmax: Softmax = "float64",
) -> Predictions:
    """Check probabilities (or logits) [N, C] and labels [N], once, for any number of metrics.

    Rows of probabilities have to sum to 1 within 1e-3 (1e-2 for 16-bit floats) and are used as they are, not
    renormalised. The log-likelihood of logits is their float64 log-softmax. That of a probability of 0 is taken at the
    smallest positive number of its dtype, so that one rounded-off zero does not make a whole average infinite.

    Args:
        probs: Probabilities or logits: tensors of any device and dtype, NumPy arrays or nested lists. `Predictions`
            are returned as they are.
        labels: Class indices.
        from_logits: Whether `probs` are logits.
        softmax: Precision of the softmax of logits: "float64", or "input" for that of the logits, as in evaluation
            code that works in half precision.

    Raises:
        SettingError: if shapes, values or labels do not fit.

    >>> sample = predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0], from_logits=True)
    >>> sample.confidence.round(3).tolist(), sample.correct.tolist()
    ([0.881, 0.731], [True, False])
    """
    if isinstance(probs, Predictions):
        if labels is not None:
            raise SettingError("must be None with checked predictions, which contain their labels", parameter="labels")
        return probs
    if softmax not in get_args(Softmax):
        raise unknown("softmax precision", softmax, get_args(Softmax))
    name = "logits" if from_logits else "probabilities"
    array, dtype = as_array(probs, name)
    if array.ndim != 2 or array.size == 0:
        empty = " (there is nothing to measure)" if array.size == 0 else ""
        raise SettingError(f"must have the shape [samples, classes], got {list(array.shape)}{empty}", parameter=name)
    scores: Floats = array.astype(np.float64)
    _check_finite(scores, name)
    if from_logits and np.abs(scores).max() > LARGEST_LOGIT:
        raise SettingError(f"must be at most {LARGEST_LOGIT:g} in size, got {np.abs(scores).max():g}", parameter=name)
    if not from_logits:
        half = dtype in ("float16", "bfloat16")
        _check_probabilities(scores, HALF_SUM_TOLERANCE if half else SUM_TOLERANCE)
    checked = check_labels(labels, *scores.shape)
    rows = np.arange(len(scores))
    if from_logits:
        with np.errstate(over="ignore"):  # logits further apart than the largest double: the probability is 0
            log_probs = log_softmax(scores)
        likelihood = log_probs[rows, checked]
        clean = np.exp(log_probs)
        if softmax == "input" and dtype != "float64" and "float" in dtype:
            clean = _softmax_in(dtype, array)
    else:
        clean = np.clip(scores, 0.0, 1.0)
        likelihood = np.log(np.maximum(clean[rows, checked], _smallest_positive(dtype)))
    return Predictions(clean, checked, scores.argmax(axis=1), likelihood)


def checked_outcomes(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Confidences in [0, 1], and whether each prediction is right: 1 or 0."""
    checked = checked_vector(confidence, "confidence")
    _check_range(checked, "confidence")
    right = checked_vector(correct, "correct", len(checked))
    wrong = right[(right != 0) & (right != 1)]
    if wrong.size:
        raise SettingError(f"must contain only true/false or 0/1, got {wrong[0]:g}", parameter="correct")
    return np.clip(checked, 0.0, 1.0), right


def checked_vector(values: ArrayLike, name: str, length: int | None = None) -> Floats:
    """A vector of finite numbers, such as distances."""
    vector, _ = as_array(values, name)
    if vector.ndim != 1 or len(vector) == 0:
        raise SettingError(
            f"must be a vector with at least one sample, got the shape {list(vector.shape)}", parameter=name
        )
    if length is not None:
        _check_length(vector, name, length)
    checked: Floats = vector.astype(np.float64)
    _check_finite(checked, name)
    return checked


def as_array(values: ArrayLike, name: str) -> tuple[npt.NDArray[Any], str]:
    """Numbers as an array, and the name of their original dtype."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # a tensor
        tensor = values.detach().cpu()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return (tensor.float() if dtype == "bfloat16" else tensor).numpy(), dtype
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise SettingError(f"must be a tensor, an array or nested lists of numbers: {error}", parameter=name) from None
    if array.dtype.kind not in "biufc":
        raise SettingError(
            f"must be a tensor, an array or nested lists of numbers, got values of type {array.dtype.name}",
            parameter=name,
        )
    return array, array.dtype.name


def _check_length(vector: npt.NDArray[Any], name: str, length: int) -> None:
    if len(vector) != length:
        raise SettingError(f"must have one entry per sample, got {len(vector)} for {length} samples", parameter=name)


def _check_finite(values: Floats, name: str) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        place = f"sample {where[0]}" + (f", class {where[1]}" if len(where) > 1 else "")
        raise SettingError(f"must be finite, got {values[where]} at {place} ({len(bad)} such values)", parameter=name)


def _check_range(values: Floats, name: str, hint: str = "") -> None:
    for extreme in (values.min(), values.max()):
        if not -RANGE_TOLERANCE <= extreme <= 1 + RANGE_TOLERANCE:
            raise SettingError(f"must lie in [0, 1], got {extreme:.6g}{hint}", parameter=name)


def _check_probabilities(values: Floats, tolerance: float) -> None:
    hint = "; for logits pass from_logits=True"
    _check_range(values, "probabilities", hint)
    deviation = np.abs(values.sum(axis=1) - 1)
    if deviation.max() > tolerance:
        worst = int(deviation.argmax())
        raise SettingError(
            f"each row of probabilities must sum to 1 within {tolerance:g}, but row {worst} sums to "
            f"{values[worst].sum():.6g} (largest deviation {deviation.max():.3g}){hint}"
        )


def check_labels(labels: ArrayLike | None, n_samples: int, n_classes: int) -> Ints:
    """Class names as a client may give them."""
    if labels is None:
        raise SettingError("labels are missing: pass one class index per sample")
    checked, dtype = as_array(labels, "labels")
    if checked.ndim != 1:
        hint = "; turn one-hot rows into indices with argmax" if checked.ndim == 2 else ""
        raise SettingError(
            f"must be a vector of class indices, got the shape {list(checked.shape)}{hint}", parameter="labels"
        )
    _check_length(checked, "labels", n_samples)
    if checked.dtype.kind not in "iu":
        raise SettingError(f"must be integers, got {dtype}", parameter="labels")
    outside = checked[(checked < 0) | (checked >= n_classes)]
    if outside.size:
        raise SettingError(
            f"must lie in 0..{n_classes - 1} for {n_classes} classes, got {outside[0]}", parameter="labels"
        )
    return checked.astype(np.int64)


def _smallest_positive(dtype: str) -> float:
    """The smallest number above 0 of a dtype; float64's for whole numbers."""
    if dtype == "bfloat16":
        return 2.0**-133
    return float(np.finfo(dtype if "float" in dtype else "float64").smallest_subnormal)


def _softmax_in(dtype: str, logits: npt.NDArray[Any]) -> Floats:
    """Softmax in the precision the logits came in, as torch rounds it."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(logits)).to(getattr(torch, dtype))
    return np.asarray(torch.softmax(tensor, dim=1).double().numpy())
