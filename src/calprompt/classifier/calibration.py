"""What is fitted on cross-fitted predictions: the calibrator, when an image is none of the classes, what is watched;
and what becomes of calibrator and sets when classes are added by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calprompt.calibrators import Calibrator, Chain, DistanceAware
from calprompt.classifier.fitted_model import FittedModel, Predicted, calibrated, joined, stored_logits
from calprompt.errors import SettingError
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.kernel import open_set_scores
from calprompt.metrics.binomial import share_interval
from calprompt.promises import ImageWatch, OpenSetRule, SetRule
from calprompt.promises.conformal import class_rate_interval, rejection_threshold

OPEN_SET_SCORE = "max_logit"
ADDED = "classes were added after it was fitted"
UNEVEN = 1.5  # times as large a share of one class tunes as of another: calibrate in the proportions of the folder


def fit_calibrator(
    spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float
) -> tuple[Calibrator | None, str | None]:
    """The calibrator, fitted on cross-fitted predictions, or None and why there is none."""
    if spec == NONE:
        return None, "the confidences are the model's own; nothing says how often it is right when it is this sure"
    calibrator = create_calibrator(normalized_spec(spec))
    try:
        return calibrator.fit(stored_logits(crossed, text, scale, labelled=True)), None
    except SettingError as error:
        return None, f"{spec} could not be fitted, so the confidences are the model's own: {error}"


def in_proportion(crossed: Predicted, totals: Sequence[int]) -> NDArray[np.bool_]:
    """Which images keep the proportions of the folder's classes, where a limit on tuning has changed them."""
    counts = np.bincount(crossed.labels, minlength=len(totals))
    shares = counts / np.maximum(totals, 1)
    least = float(shares[counts > 0].min())
    if float(shares.max()) <= UNEVEN * least:
        return np.ones(len(crossed), dtype=bool)
    keep = np.zeros(len(crossed), dtype=bool)
    for label, total in enumerate(totals):
        own = np.flatnonzero(crossed.labels == label)
        own = own[np.argsort([crossed.digests[row] for row in own], kind="stable")]
        keep[own[: max(1, int(least * total + 0.5))]] = True
    return keep


def fold_by_fold(spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float) -> NDArray[np.float64]:
    """Probabilities of each fold under a calibrator that was fitted on the other folds."""
    found = np.empty(crossed.logits.shape)
    for fold in np.unique(crossed.fold):
        rows = crossed.fold == fold
        others = crossed.take(~rows)
        calibrator = fit_calibrator(spec, others, text, scale)[0] if len(others) else None
        found[rows] = calibrated(calibrator, crossed.take(rows), text, scale)
    return found


def temperature_of(calibrator: Calibrator | None) -> float:
    """What the calibrator divides logits by, if it is that kind; else 1."""
    found = getattr(calibrator, "temperature", None)
    return float(found) if found else 1.0


def fit_open_set(rejects: float, crossed: Predicted, held: Predicted) -> OpenSetRule | None:
    """The threshold for none of these, and how often it errs; None if there are too few images for one."""
    scores = open_set_scores(crossed.logits, OPEN_SET_SCORE)
    threshold = rejection_threshold(scores, rejects)
    if not np.isfinite(threshold):
        return None
    if len(held):
        below = open_set_scores(held.logits, OPEN_SET_SCORE) < threshold
    else:  # each fold against the threshold of the others
        below = np.zeros(len(crossed), dtype=bool)
        for fold in np.unique(crossed.fold):
            rows = crossed.fold == fold
            below[rows] = scores[rows] < rejection_threshold(scores[~rows], rejects)
    rejected = int(below.sum())
    low, high = share_interval(rejected, len(below))
    both = joined([crossed, held]) if len(held) else crossed
    rates = left_out_rates(both, threshold)
    return OpenSetRule(
        OPEN_SET_SCORE,
        1.0,
        threshold,
        (rejected / len(below), low, high),
        class_rate_interval(rates) if len(rates) > 1 else None,
        images=len(below),
        classes=len(rates),
    )


def left_out_rates(predicted: Predicted, threshold: float) -> list[float]:
    """Share of the images of each class that is accepted when the class is taken off the list."""
    rates = []
    for label in range(predicted.logits.shape[1]):
        own = predicted.logits[predicted.labels == label]
        if len(own) and predicted.logits.shape[1] > 2:
            others = np.delete(own, label, axis=1)
            rates.append(float((open_set_scores(others, OPEN_SET_SCORE) >= threshold).mean()))
    return rates


def create_image_watch(model: FittedModel, *, false_alarms: float = 0.01) -> ImageWatch | None:
    """Watches whether images are like the held-out ones; None if there are none."""
    found = model.predicted
    held, crossed = found.held_out.logits, found.crossed.logits
    if not len(held) or not len(crossed):
        return None
    temperature = temperature_of(model.calibrator)
    return ImageWatch.of(held, crossed, temperature, known=found.digests, false_alarms=false_alarms)


def adjusted(calibrator: Calibrator | None, adjust: str | None) -> Calibrator | None:
    """The calibrator for classes that were added: the fitted one, and after it DAC if that is wanted."""
    if adjust is None:
        return calibrator
    if adjust != "dac":
        raise SettingError(f"must be 'dac' or None, got {adjust!r}", parameter="adjust")
    if calibrator is None:
        return DistanceAware()
    return Chain([*(calibrator.steps if isinstance(calibrator, Chain) else [calibrator]), DistanceAware()])


def extended_sets(rules: Sequence[SetRule], classes: int, keep: bool) -> tuple[SetRule, ...]:
    """Quantiles per class mean nothing for classes that it was not fitted on: these are in every set."""

    def extended(rule: SetRule) -> SetRule:
        kept = len(rule.quantiles) if keep else 0
        return replace(
            rule,
            quantiles=(*rule.quantiles[:kept], *[np.inf] * (classes - kept)),
            images=(*rule.images[:kept], *[0] * (classes - kept)),
        )

    return tuple(extended(rule) if rule.per_class else rule for rule in rules)
