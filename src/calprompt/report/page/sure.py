"""How often it is right when it says that it is sure: what the headline rests on.

    level       the highest of 90, 80, … 50 % at which there are enough predictions to tell
    sure        predictions with at least that confidence
    right       how many of them are right, of 100

The interval over images and seeds is that of `calprompt.results.comparison`: images are drawn again, the same for both
methods, and so are seeds. With many datasets the interval is over datasets instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calprompt.errors import DataError
from calprompt.evaluation.bootstrap import percentile_interval, resample_counts
from calprompt.metrics import Predictions
from calprompt.metrics.inputs import Floats
from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements
from calprompt.report.table import COUNT, PERCENT, POINTS, Cell, Column, Number, Row, Table
from calprompt.results.comparison import seed_weights
from calprompt.results.methods import Method, headline_pairs

LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5)
MIN_PREDICTIONS = 30  # predictions of a run that are as sure as that
SPLITS = {"novel": "on classes it never saw", "all": "on its test images", "base": "on the classes it was tuned on"}


@dataclass(frozen=True)
class SureSide:
    """What one method reaches when it is sure."""

    predictions: int  # how many there are, of all images and seeds
    sure: int  # how many of them are as sure as that
    confidence: float  # mean confidence of these
    right: Number  # share of them that is right, with its interval
    runs: tuple[int, ...]  # of which runs


@dataclass(frozen=True)
class SureShare:
    """What two methods reach on one dataset and split when they are sure."""

    dataset: str  # which
    split: str  # which
    level: float  # from which confidence on
    methods: tuple[Method, Method]  # the plain one and the other
    sides: tuple[SureSide, SureSide]  # of each of them
    difference: Number  # the second share of right predictions minus the first


def sure_shares(measured: Measurements, settings: ReportSettings) -> list[SureShare]:
    """For every pair of the headline, dataset and split whose logits are here."""
    found = []
    for pair in headline_pairs(measured.methods):
        for dataset in measured.datasets:
            for split in SPLITS:
                share = _share(measured, pair, dataset, split, settings)
                if share is not None:
                    found.append(share)
    return found


def _share(
    measured: Measurements, pair: tuple[Method, Method], dataset: str, split: str, settings: ReportSettings
) -> SureShare | None:
    chosen = tuple(measured.where(method=method, dataset=dataset, split=split) for method in pair)
    if not pair[0].is_zero_shot:  # which has no seeds
        shared = {each.seed for each in chosen[0]} & {each.seed for each in chosen[1]}
        chosen = tuple([each for each in results if each.seed in shared] for results in chosen)
    samples = [[each.sample for each in results if each.sample is not None] for results in chosen]
    if not all(samples) or list(map(len, samples)) != list(map(len, chosen)):
        return None
    level = next((level for level in LEVELS if all(_is_enough(runs, level) for runs in samples)), None)
    if level is None:
        return None
    shares = _resampled(samples, level, settings, split)
    sides = []
    for results, runs, values in zip(chosen, samples, shares, strict=True):
        sure = np.concatenate([run.confidence[run.confidence >= level] for run in runs])
        places = tuple(sorted({run for each in results for run in each.runs}))
        total = sum(len(run.labels) for run in runs)
        sides.append(SureSide(total, len(sure), float(sure.mean()), _number(values), places))
    return SureShare(dataset, split, level, pair, (sides[0], sides[1]), _number(shares[1] - shares[0]))


def _number(values: Floats) -> Number:
    """The first value, with the interval of the others; without one if they are all the same, as if all are right."""
    low, high = percentile_interval(values[1:]) if len(values) > 1 else (0.0, 0.0)
    return Number(float(values[0])) if low == high else Number(float(values[0]), low, high)


def _is_enough(runs: Sequence[Predictions], level: float) -> bool:
    return bool(np.mean([(run.confidence >= level).sum() for run in runs]) >= MIN_PREDICTIONS)


def _resampled(
    methods: Sequence[Sequence[Predictions]], level: float, settings: ReportSettings, split: str
) -> list[Floats]:
    """Share of right predictions among sure ones, of each method: of the sample itself, then of the resamples."""
    n = len(methods[0][0].labels)
    if any(len(run.labels) != n for runs in methods for run in runs):
        raise DataError("methods were not evaluated on the same images")
    seeds = max(len(runs) for runs in methods)
    rng = np.random.default_rng((settings.seed, *b"sure", *split.encode()))
    weights = seed_weights(seeds, settings.bootstrap, rng)  # [seeds, 1 + resamples]
    ones = [np.ones((1, n), dtype=np.int64)]
    parts = [*ones, *(resample_counts(rng, n, settings.bootstrap) if settings.bootstrap else ())]
    found = []
    for runs in methods:
        sure = np.stack([run.confidence >= level for run in runs]).astype(np.float64)  # [seeds, N]
        right = sure * np.stack([run.correct for run in runs])
        counted, hits = (np.concatenate([x @ part.T for part in parts], axis=1) for x in (sure, right))
        own = weights if len(runs) == seeds else np.ones((1, weights.shape[1]))
        total = (own * counted).sum(axis=0)
        found.append(np.divide((own * hits).sum(axis=0), total, out=np.zeros_like(total), where=total > 0))
    return found


def sure_table(shares: Sequence[SureShare]) -> Table | None:
    """What the headline rests on, for all splits."""
    if not shares:
        return None
    rows = []
    for share in shares:
        for place, (method, side) in enumerate(zip(share.methods, share.sides, strict=True)):
            cells: list[Cell] = [share.dataset, share.split, method.name, f"{100 * share.level:.0f} %"]
            cells += [Number(side.sure), Number(side.predictions)]
            cells += [Number(side.confidence), side.right, share.difference if place else Number(None)]
            rows.append(Row(tuple(cells), side.runs))
    columns = (
        Column("dataset", "dataset"),
        Column("split", "classes"),
        Column("method", "method"),
        Column("level", "at least", about="predictions with this confidence or more are counted", minor=True),
        Column(
            "sure", "confident", COUNT, "predictions with at least this confidence, of all seeds together", minor=True
        ),
        Column("predictions", "of", COUNT, "all predictions: images times seeds", minor=True),
        Column("confidence", "mean confidence", PERCENT, "mean confidence of these predictions, percent"),
        Column("right", "accuracy", PERCENT, "share of these predictions that is right, percent"),
        Column("difference", "difference", POINTS, "share that is right, minus that of the row above, points"),
    )
    caption = (
        "Of the predictions with such a confidence, how many are right? The level is the highest of 90, 80, … 50 % "
        f"at which a run has at least {MIN_PREDICTIONS} predictions. Below a number is its 95 % interval over test "
        "images and seeds. A mean confidence above the accuracy is over-confident, one below it under-confident."
    )
    return Table("sure", "When the model is confident", caption, columns, tuple(rows), ("dataset", "split", "method"))
