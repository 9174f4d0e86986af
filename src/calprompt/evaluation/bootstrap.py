"""Bootstrap intervals of metrics: the images are drawn again with replacement, the model and the calibrator stay.

A resample is a row of counts w [N], how often each image was drawn. A mean over images is then w·x / N, and the sums of
a bin are w·(x in the bin), so that many resamples are one product of matrices: counts [R, N] times columns [N, K]. What
depends on the order of the confidences (ACE, AURC) is sorted once and accumulated along the sorted counts. The
percentile interval does not cover the metrics of `NOT_COVERED`: calibration errors are made of absolute values, which
grow with noise, and a resample is noisier than the sample. `calprompt.metrics.debiased` has intervals of ECE and ACE,
`expected_interval` says where the mean over other samples lies. The accuracy has Wilson's interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from calprompt.errors import SettingError
from calprompt.evaluation.numbers import Number
from calprompt.metrics import Convention, EqualWidth, Predictions, binning, debiased_errors, evaluate, metrics
from calprompt.metrics.binning import DEFAULT, check_n_bins, find_convention
from calprompt.metrics.binomial import share_interval
from calprompt.metrics.evaluation import squared_errors
from calprompt.metrics.inputs import Floats, Ints
from calprompt.metrics.smooth import resampled_smooth_ece

LEVEL = 0.95  # how much of the resamples an interval contains
COUNTS_PER_CHUNK = 2_000_000  # counts in memory at a time
NOT_COVERED = ("ece", "ace", "mce", "weighted_mce", "classwise_ece", "smooth_ece", "aurc")  # by percentiles


def bootstrap_intervals(
    predictions: Predictions,
    *,
    names: Iterable[str] | None = None,
    n_bins: int = 10,
    convention: Convention | str = DEFAULT,
    resamples: int = 1000,
    seed: int | Sequence[int] = 0,
) -> dict[str, tuple[float, float]]:
    """Intervals of metrics over images, percentile ones but for the accuracy; the same seed draws the same images.

    The metrics of calprompt are computed for many resamples at once. One that was registered elsewhere is called once
    per resample, with the images that were drawn.

    Args:
        predictions: Checked probabilities and labels.
        names: Metrics to compute; by default, all that are registered.
        n_bins: Bins of the calibration errors.
        convention: Binning convention.
        resamples: Number of bootstrap resamples.
        seed: Seed of the draws.

    Returns:
        Both ends by metric, but for those of `NOT_COVERED` and metrics that are not finite on some resample.

    Raises:
        SettingError: if `resamples` is not at least 1.
        UnknownNameError: if a metric is not registered.

    >>> from calprompt.metrics import predictions
    >>> probs, labels = [[0.9, 0.1]] * 80 + [[0.7, 0.3]] * 20, [0] * 90 + [1] * 10
    >>> found = bootstrap_intervals(predictions(probs, labels), names=["accuracy", "ece", "confidence_gap"])
    >>> {name: [round(end, 2) for end in ends] for name, ends in found.items()}
    {'accuracy': [0.83, 0.94], 'confidence_gap': [-0.09, 0.01]}
    """
    rng, n = np.random.default_rng(seed), len(predictions.labels)
    wanted = metrics.available() if names is None else list(names)
    kept = [name for name in wanted if name not in NOT_COVERED]
    resampled = ResampledMetrics(predictions, names=kept, n_bins=n_bins, convention=convention)
    parts = [resampled(counts) for counts in resample_counts(rng, n, resamples)]
    values = {name: np.concatenate([part[name] for part in parts]) for name in resampled.names}
    found = {name: percentile_interval(drawn) for name, drawn in values.items() if np.isfinite(drawn).all()}
    if "accuracy" in found:
        found["accuracy"] = share_interval(int(predictions.correct.sum()), n)
    return found


def measured_numbers(
    sample: Predictions,
    *,
    names: Iterable[str] | None = None,
    n_bins: int = 10,
    convention: Convention | str = DEFAULT,
    resamples: int = 1000,
    seed: int | Sequence[int] = 0,
) -> dict[str, Number]:
    """Metrics with their intervals; and with resamples, debiased calibration errors and tests of calibration."""
    values = evaluate(sample, names=names, n_bins=n_bins, convention=convention)
    if not resamples:
        return {name: Number(value) for name, value in values.items()}
    intervals = bootstrap_intervals(
        sample, names=names, n_bins=n_bins, convention=convention, resamples=resamples, seed=seed
    )
    found = {name: Number(value, *intervals.get(name, ())) for name, value in values.items()}
    for name, error in debiased_errors(sample, n_bins=n_bins, convention=convention).items():
        found[f"{name}_debiased"] = Number(error.value, error.low, error.high)
        found[f"{name}_p_value"] = Number(error.p_value)
    return found


def percentile_interval(values: Floats) -> tuple[float, float]:
    """The interval that contains the middle 95 % of some values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def expected_interval(value: float, values: Floats) -> tuple[float, float]:
    """The interval of what a calibration error, or a difference of two, is on average over samples of as many images.

    Resamples of a calibration error are too large, and those of a difference are off to the side of the method that is
    better calibrated. The interval therefore contains the percentile one, and the same moved so that its resamples have
    their mean at the value: `experiments/intervals.py` counts how often it covers.
    """
    low, high = percentile_interval(values)
    moved = value - float(values.mean())
    return min(low, low + moved), max(high, high + moved)


def resample_counts(rng: np.random.Generator, n: int, resamples: int) -> Iterator[Ints]:
    """How often each of n images is drawn in each resample, some rows [R, n] at a time."""
    if resamples < 1:
        raise SettingError(f"resamples must be at least 1, got {resamples}")
    while resamples:
        rows = min(resamples, max(1, COUNTS_PER_CHUNK // n))
        yield draw_counts(rng, n, rows)
        resamples -= rows


def draw_counts(rng: np.random.Generator, n: int, rows: int) -> Ints:
    """How often each of n images is drawn in n draws with replacement, [rows, n]."""
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


class ResampledMetrics:
    """Metrics of resamples of some predictions."""

    def __init__(
        self,
        predictions: Predictions,
        *,
        names: Iterable[str] | None = None,
        n_bins: int = 10,
        convention: Convention | str = DEFAULT,
    ) -> None:
        self.names = metrics.available() if names is None else list(names)
        for name in self.names:
            metrics.get(name)
        self.predictions, self.n_bins, self.rule = predictions, check_n_bins(n_bins), find_convention(convention)
        self.confidence, self.correct = predictions.confidence, predictions.correct.astype(np.float64)

    def __call__(self, counts: Ints) -> dict[str, Floats]:
        """The metrics of the sample that has image i counts[r, i] times, [R] each."""
        values: dict[str, Floats] = {}
        weights = counts.astype(np.float64)
        groups: list[tuple[set[str], Callable[[Ints, Floats], dict[str, Floats]]]] = [
            ({"accuracy", "mean_confidence", "confidence_gap", "nll", "brier"}, self._means),
            ({"ece", "mce", "weighted_mce"}, self._binned),
            ({"ace", "aurc"}, self._ranked),
            ({"macro_f1"}, self._macro_f1),
            ({"classwise_ece"}, self._classwise),
            ({"smooth_ece"}, self._smooth),
        ]
        for group, compute in groups:
            if not group.isdisjoint(self.names):
                values |= compute(counts, weights)
        return {name: values[name] if name in values else self._one_by_one(name, counts) for name in self.names}

    def _means(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        """Metrics that are means over images."""
        accuracy, confidence, nll, brier = (weights @ self._columns / counts[0].sum()).T
        gap = confidence - accuracy
        return {"accuracy": accuracy, "mean_confidence": confidence, "confidence_gap": gap, "nll": nll, "brier": brier}

    @cached_property
    def _columns(self) -> Floats:
        likelihood, errors = self.predictions.log_likelihood, squared_errors(self.predictions)
        return np.stack([self.correct, self.confidence, -likelihood, errors], axis=1)

    def _binned(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        """Calibration errors over equal-width bins of confidence."""
        ece, mce, weighted_mce = self._width_gaps(weights, self.rule.ece, self.confidence, self.correct)
        if self.rule.mce != self.rule.ece:
            _, mce, weighted_mce = self._width_gaps(weights, self.rule.mce, self.confidence, self.correct)
        return {"ece": ece, "mce": mce, "weighted_mce": weighted_mce}

    def _width_gaps(
        self, weights: Floats, bins: EqualWidth, confidence: Floats, correct: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """ECE, MCE and weighted MCE over equal-width bins, [R] each."""
        index, counted, averaged = binning.width_members(confidence, self.n_bins, bins)
        inside = (index[:, None] == np.arange(self.n_bins)).astype(np.float64)  # [N, bins]
        count, members, difference = (
            weights @ (inside * x[:, None]) for x in (counted, averaged, averaged * (correct - confidence))
        )
        gap = np.abs(np.divide(difference, members, out=np.zeros_like(difference), where=members > 0))
        terms = count * gap / weights[0].sum()
        return terms.sum(axis=1), gap.max(axis=1), terms.max(axis=1)

    def _ranked(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        """ACE and AURC: sums over images of equal confidence, then along the confidences."""
        order, values, first = self._order
        equal = counts[:, order].astype(np.int32)
        right = equal * self.correct[order].astype(np.int32)
        if len(values) < len(order):
            equal, right = (np.add.reduceat(x, first, axis=1) for x in (equal, right))  # [R, values]
        total = int(counts[0].sum())
        upto = np.cumsum(equal, axis=1, dtype=np.int32)
        if self.rule.ace == "midrank":
            ace = self._midrank_gaps(values, equal, right, upto, total)
        else:
            ace = np.array([self._mass_gap(np.repeat(np.arange(len(order)), row)) for row in counts])
        if "aurc" not in self.names:
            return {"ace": ace}
        wrong = equal - right
        accepted = total - upto + equal  # at least this confident
        wrong_accepted = wrong.sum(axis=1, keepdims=True) - np.cumsum(wrong, axis=1) + wrong
        risk = wrong_accepted / np.maximum(accepted, 1)
        return {"ace": ace, "aurc": (equal * risk).sum(axis=1) / total}

    @cached_property
    def _order(self) -> tuple[Ints, Floats, Ints]:
        """The images by confidence, the different confidences, and where each of these begins."""
        order = np.argsort(self.confidence, kind="stable")
        return order, *np.unique(self.confidence[order], return_index=True)

    def _midrank_gaps(self, values: Floats, equal: Any, right: Any, upto: Any, total: int) -> Floats:
        """Gaps of bins of equal mass: twice the middle of the ranks rises along a row, so bins are found by search."""
        rows, width = equal.shape
        shift = (2 * total + 1) * np.arange(rows)[:, None]  # so that all rows together rise
        middles = (2 * upto - equal + shift).ravel()
        edges = -(-2 * total * np.arange(1, self.n_bins) // self.n_bins)
        inner = np.searchsorted(middles, (edges + shift).ravel()).reshape(rows, -1)
        ends = width * np.arange(rows + 1)
        bounds = np.concatenate([ends[:-1, None], inner, ends[1:, None]], axis=1)
        sums = np.concatenate([[0.0], np.cumsum((right - equal * values).ravel())])
        return np.asarray(np.abs(np.diff(sums[bounds], axis=1)).sum(axis=1) / total)

    def _mass_gap(self, rows: Ints) -> float:
        table = binning.mass_table(self.confidence[rows], self.correct[rows], self.n_bins, self.rule.ace)
        return table.expected_gap

    def _smooth(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        return {"smooth_ece": resampled_smooth_ece(self.confidence, self.correct, weights)}

    def _macro_f1(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        sample, by_image = self.predictions, np.ascontiguousarray(weights.T)
        seen, total = np.zeros(len(counts)), np.zeros(len(counts))
        for k in np.unique(sample.labels):
            labels, predicted = sample.labels == k, sample.predicted == k
            labelled = by_image[labels].sum(axis=0)
            twice_hit, both = 2 * by_image[labels & predicted].sum(axis=0), labelled + by_image[predicted].sum(axis=0)
            total += np.divide(twice_hit, both, out=np.zeros_like(both), where=labelled > 0)
            seen += labelled > 0
        return {"macro_f1": total / seen}

    def _classwise(self, counts: Ints, weights: Floats) -> dict[str, Floats]:
        """Class-wise ECE.

        The gap of a bin times its size is |Σ w·(y − p)| over the images in it. Nearly all probabilities of a class lie
        in one bin. Its sum is that over all images, a product of matrices, less the sums of the other bins.
        """
        probs, labels = self.predictions.probs, self.predictions.labels
        by_image, total = np.ascontiguousarray(weights.T), np.zeros(len(counts))
        n, n_classes = probs.shape
        at_once = max(1, COUNTS_PER_CHUNK // n)
        for start in range(0, n_classes, at_once):
            classes = range(start, min(start + at_once, n_classes))
            difference = (labels[:, None] == np.arange(start, classes.stop)) - probs[:, start : classes.stop]
            usual = weights @ difference  # [R, classes], of all images
            for k, rest in zip(classes, usual.T, strict=True):
                bins = self._class_bins[k]
                if bins is None:  # some images weigh in a bin without being in its means
                    total += self._width_gaps(weights, self.rule.ece, probs[:, k], labels == k)[0] * counts[0].sum()
                    continue
                for rows in bins:
                    part = difference[rows, k - start] @ by_image[rows]
                    rest -= part
                    total += np.abs(part)
                total += np.abs(rest)
        return {"classwise_ece": total / (n_classes * counts[0].sum())}

    @cached_property
    def _class_bins(self) -> list[list[Ints] | None]:
        """Of each class, the images in each bin of its probability but the fullest; None if bins leave images out."""
        result: list[list[Ints] | None] = []
        for p in np.ascontiguousarray(self.predictions.probs.T):
            index, counted, averaged = binning.width_members(p, self.n_bins, self.rule.ece)
            size = np.bincount(index)
            others = np.flatnonzero(size * (np.arange(len(size)) != size.argmax()))
            whole = counted.all() and averaged.all()
            result.append([np.flatnonzero(index == b) for b in others] if whole else None)
        return result

    def _one_by_one(self, name: str, counts: Ints) -> Floats:
        """Any other metric, of each resample as predictions."""
        metric, every = metrics.get(name), np.arange(counts.shape[1])
        samples = (self.predictions.take(np.repeat(every, row)) for row in counts)
        return np.array([metric(sample, n_bins=self.n_bins, convention=self.rule) for sample in samples])
