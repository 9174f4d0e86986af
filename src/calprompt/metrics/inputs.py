"""What every metric starts from: checked probabilities and labels, in float64, as one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from calprompt.errors import CalpromptError
from calprompt.registry import unknown

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ArrayLike = torch.Tensor | npt.NDArray[Any] | Sequence[Any]
Softmax = Literal["float64", "input"]

RANGE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3
HALF_SUM_TOLERANCE = 1e-2  # a row of float16 or bfloat16 probabilities rounds this far


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities and labels that passed every check; what `predictions` returns and every metric accepts."""

    probs: Floats  # [N, C]
    labels: Ints  # [N]
    predicted: Ints  # [N], first class of the largest score
    log_likelihood: Floats  # [N], log probability of the label

    @property
    def confidence(self) -> Floats:
        """Largest probability of each sample."""
        return np.asarray(self.probs.max(axis=1))

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether the predicted class is the label."""
        return np.asarray(self.predicted == self.labels)


def predictions(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    softmax: Softmax = "float64",
) -> Predictions:
    """Check probabilities (or logits) [N, C] and labels [N], once, for any number of metrics.

    Tensors of any device and dtype, NumPy arrays and nested lists are taken. Logits go through a softmax in float64, or
    with `softmax="input"` in the precision they come in (what half-precision evaluation code does). Rows of
    probabilities have to sum to 1 within 1e-3 (1e-2 for 16-bit floats) and are used as they are, not renormalised.
    The log-likelihood of logits is their float64 log-softmax. That of a probability of 0 is taken at the smallest
    positive number of the dtype it came in, so that one rounded-off zero does not make a whole average infinite.

    >>> given = predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0], from_logits=True)
    >>> given.confidence.round(3).tolist(), given.correct.tolist()
    ([0.881, 0.731], [True, False])
    """
    if isinstance(probs, Predictions):
        if labels is not None:
            raise CalpromptError("predictions have their labels in them; give probabilities and labels, or predictions")
        return probs
    if softmax not in get_args(Softmax):
        raise unknown("softmax precision", softmax, get_args(Softmax))
    name = "logits" if from_logits else "probabilities"
    given = _tensor(probs, name)
    if given.ndim != 2 or given.numel() == 0:
        empty = " (there is nothing to measure)" if given.numel() == 0 else ""
        raise CalpromptError(f"{name} must have the shape [samples, classes], got {list(given.shape)}{empty}")
    scores: Floats = given.double().numpy()
    _check_finite(scores, name)
    if not from_logits:
        half = given.dtype in (torch.float16, torch.bfloat16)
        _check_probabilities(scores, HALF_SUM_TOLERANCE if half else SUM_TOLERANCE)
    checked = _check_labels(labels, *scores.shape)
    rows = np.arange(len(scores))
    if from_logits:
        log_probs = _log_softmax(scores)
        likelihood = log_probs[rows, checked]
        rounded = softmax == "input" and given.dtype != torch.float64 and given.is_floating_point()
        clean = torch.softmax(given, dim=1).double().numpy() if rounded else np.exp(log_probs)
    else:
        clean = np.clip(scores, 0.0, 1.0)
        likelihood = np.log(np.maximum(clean[rows, checked], _smallest_positive(given.dtype)))
    return Predictions(clean, checked, scores.argmax(axis=1), likelihood)


def unit_vector(values: ArrayLike, name: str) -> Floats:
    """Check a vector of numbers in [0, 1], such as confidences."""
    vector: Floats = _vector(values, name).double().numpy()
    _check_finite(vector, name)
    _check_range(vector, name)
    return np.clip(vector, 0.0, 1.0)


def outcome_vector(values: ArrayLike, name: str, length: int) -> Floats:
    """Check a vector of outcomes: booleans, or numbers that are 0 or 1."""
    vector: Floats = _vector(values, name).double().numpy()
    _check_length(vector, name, length)
    strange = vector[(vector != 0) & (vector != 1)]
    if strange.size:
        raise CalpromptError(f"{name} must hold only true/false or 0/1, got {strange[0]:g}")
    return vector


def finite_vector(values: ArrayLike, name: str, length: int) -> Floats:
    """Check a vector of finite numbers of a given length, such as distances."""
    vector: Floats = _vector(values, name).double().numpy()
    _check_length(vector, name, length)
    _check_finite(vector, name)
    return vector


def _tensor(values: ArrayLike, name: str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise CalpromptError(f"{name} must be a tensor, an array or nested lists of numbers: {error}") from None


def _vector(values: ArrayLike, name: str) -> torch.Tensor:
    vector = _tensor(values, name)
    if vector.ndim != 1 or len(vector) == 0:
        raise CalpromptError(f"{name} must be a vector with at least one sample, got the shape {list(vector.shape)}")
    return vector


def _check_length(vector: npt.NDArray[Any], name: str, length: int) -> None:
    if len(vector) != length:
        raise CalpromptError(f"{name} must have one entry a sample: got {len(vector)} for {length} samples")


def _check_finite(values: Floats, name: str) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        place = f"sample {where[0]}" + (f", class {where[1]}" if len(where) > 1 else "")
        raise CalpromptError(f"{name} must be finite, got {values[where]} at {place} ({len(bad)} such values)")


def _check_range(values: Floats, name: str, hint: str = "") -> None:
    for extreme in (values.min(), values.max()):
        if not -RANGE_TOLERANCE <= extreme <= 1 + RANGE_TOLERANCE:
            raise CalpromptError(f"{name} must lie in [0, 1], got {extreme:.6g}{hint}")


def _check_probabilities(values: Floats, tolerance: float) -> None:
    hint = "; for logits pass from_logits=True"
    _check_range(values, "probabilities", hint)
    deviation = np.abs(values.sum(axis=1) - 1)
    if deviation.max() > tolerance:
        worst = int(deviation.argmax())
        raise CalpromptError(
            f"each row of probabilities must sum to 1 within {tolerance:g}, but row {worst} sums to "
            f"{values[worst].sum():.6g} (largest deviation {deviation.max():.3g}){hint}"
        )


def _check_labels(labels: ArrayLike | None, n_samples: int, n_classes: int) -> Ints:
    if labels is None:
        raise CalpromptError("labels are missing: pass one class index a sample")
    vector = _tensor(labels, "labels")
    if vector.ndim != 1:
        hint = "; turn one-hot rows into indices with argmax" if vector.ndim == 2 else ""
        raise CalpromptError(f"labels must be a vector of class indices, got the shape {list(vector.shape)}{hint}")
    checked = vector.numpy()
    _check_length(checked, "labels", n_samples)
    if vector.dtype == torch.bool or vector.is_floating_point() or vector.is_complex():
        raise CalpromptError(f"labels must be integers, got {str(vector.dtype).removeprefix('torch.')}")
    outside = checked[(checked < 0) | (checked >= n_classes)]
    if outside.size:
        raise CalpromptError(f"labels must lie in 0..{n_classes - 1} for {n_classes} classes, got {outside[0]}")
    return checked.astype(np.int64)


def _smallest_positive(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype if dtype.is_floating_point else torch.float64)
    return info.smallest_normal * info.eps


def _log_softmax(logits: Floats) -> Floats:
    with np.errstate(over="ignore"):  # logits further apart than the largest double: the probability is 0
        shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
