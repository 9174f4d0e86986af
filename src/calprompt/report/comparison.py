"""Methods side by side on the same images and seeds: means over seeds, paired differences, and intervals of both.

A resample draws the test images again, the same for all methods and seeds, and the seeds, the same for all methods and
for base and novel. So a difference between methods is that on the same images after the same training images, and
what methods share cancels:

    counts of images  [resamples, N]  ──▶  metric of each run  [seeds, resamples]  ──▶  mean over the seeds drawn

Of S seeds, S − 1 are drawn with replacement: the mean of so many varies as much as the mean of S new seeds would.
Intervals are percentile ones; what `calprompt.evaluation.bootstrap` says of them holds here too. Of few seeds they are
still somewhat narrow: three cannot show how different a fourth may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calprompt.errors import CalpromptError
from calprompt.evaluation.bootstrap import AT_ONCE, draw_counts, resampled_metrics
from calprompt.metrics import Predictions
from calprompt.metrics.inputs import Floats, Ints

METRICS = ("accuracy", "ece", "ace", "mce", "weighted_mce")
HARMONIC = "harmonic mean"  # of the accuracies on base and on novel classes, in the place of a split
MINUS = " minus "

Methods = Mapping[str, Mapping[str, Sequence[Predictions]]]  # method -> split -> a run each


@dataclass(frozen=True)
class Row:
    """One number and its 95 % interval, as fractions; `method` may be a difference, "A minus B"."""

    dataset: str
    split: str
    method: str
    metric: str
    value: float
    low: float
    high: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.dataset, self.split, self.method, self.metric)

    @property
    def is_difference(self) -> bool:
        return MINUS in self.method

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def compare(
    dataset: str,
    methods: Methods,
    *,
    differences: Sequence[tuple[str, str]] = (),
    n_bins: int = 10,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> list[Row]:
    """A row for every split, method and metric; then the harmonic means of the accuracies, if there are two splits.

    methods      a method has a run a seed, in the same order as the others, or one run that no seed plays a part in
    differences  pairs of methods: the first minus the second
    """
    if resamples < 1:
        raise CalpromptError(f"resamples must be at least 1, got {resamples}")
    runs = _check(methods)
    weights = _seed_weights(runs, resamples, np.random.default_rng((seed, *b"seeds")))
    splits = list(next(iter(methods.values())))
    drawn: dict[tuple[str, str, str], Floats] = {}  # the sample itself, then the resamples: [1 + resamples]
    for split in splits:
        rng = np.random.default_rng((seed, *split.encode()))
        of_split = {method: held[split] for method, held in methods.items()}
        for (method, metric), values in _resampled(of_split, n_bins, resamples, rng).items():
            drawn[split, method, metric] = values[0] if len(values) == 1 else (weights * values).sum(axis=0)
    if len(splits) == 2:
        for method in methods:
            drawn[HARMONIC, method, "accuracy"] = _harmonic(*(drawn[split, method, "accuracy"] for split in splits))
    for split, method, metric in list(drawn):
        for first, second in differences:
            if method == second:
                drawn[split, f"{first}{MINUS}{second}", metric] = (
                    drawn[split, first, metric] - drawn[split, second, metric]
                )
    ends = [(1 - level) / 2, (1 + level) / 2]
    rows = []
    for (split, method, metric), values in drawn.items():
        low, high = np.quantile(values[1:], ends)
        rows.append(Row(dataset, split, method, metric, float(values[0]), float(low), float(high)))
    places = {split: place for place, split in enumerate([*splits, HARMONIC])}
    return sorted(rows, key=lambda row: (places[row.split], row.is_difference))


def _check(methods: Methods) -> int:
    """The number of seeds; raises if methods are not of the same images and seeds."""
    runs = 1
    first = next(iter(methods.values()))
    for method, held in methods.items():
        for split, given in held.items():
            if any(not np.array_equal(each.labels, first[split][0].labels) for each in given):
                raise CalpromptError(f"{method} was not evaluated on the same {split} images as the other methods")
            if len(given) not in (1, runs) and runs != 1:
                raise CalpromptError(f"{method} has {len(given)} runs, and other methods have {runs}")
            runs = max(runs, len(given))
    return runs


def _resampled(
    methods: Mapping[str, Sequence[Predictions]], n_bins: int, resamples: int, rng: np.random.Generator
) -> dict[tuple[str, str], Floats]:
    """Of every method and metric the values [runs, 1 + resamples], that of the sample itself first."""
    n = len(next(iter(methods.values()))[0].labels)
    parts: dict[tuple[str, str], list[Floats]] = {}
    for counts in _counts(n, resamples, rng):
        for method, runs in methods.items():
            found = [resampled_metrics(given, counts, n_bins=n_bins) for given in runs]
            for metric in METRICS:
                parts.setdefault((method, metric), []).append(np.stack([values[metric] for values in found]))
    return {key: np.concatenate(values, axis=1) for key, values in parts.items()}


def _counts(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Ints]:
    """How often each of n images is drawn: once, then in all resamples, not too many at a time."""
    yield np.ones((1, n), dtype=np.int64)
    while resamples:
        rows = min(resamples, max(1, AT_ONCE // n))
        yield draw_counts(rng, n, rows)
        resamples -= rows


def _seed_weights(seeds: int, resamples: int, rng: np.random.Generator) -> Floats:
    """What every seed weighs in the mean, [seeds, 1 + resamples]: all alike, then as they are drawn."""
    alike = np.full((seeds, 1), 1 / seeds)
    if seeds == 1:
        return np.ones((1, 1 + resamples))
    drawn = rng.multinomial(seeds - 1, alike[:, 0], size=resamples).T / (seeds - 1)
    return np.concatenate([alike, drawn], axis=1)


def _harmonic(base: Floats, novel: Floats) -> Floats:
    total = base + novel
    return np.divide(2 * base * novel, total, out=np.zeros_like(total), where=total > 0)
