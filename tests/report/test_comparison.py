"""Comparisons: means and paired differences are those of the metrics; intervals cover images and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from calprompt.errors import CalpromptError
from calprompt.evaluation.bootstrap import ResampledMetrics, expected_interval, percentile_interval, resample_counts
from calprompt.metrics import Predictions, evaluate, predictions
from calprompt.results.compare import HARMONIC, METRICS, Row, compare

PAIR = (("B", "A"),)


def drawn(seed: int, skill: float, images: int = 0, n: int = 200, classes: int = 4) -> Predictions:
    """Predictions of one run; the images' own difficulty depends on `images`, the same for all runs."""
    common, own = np.random.default_rng((images, 0)), np.random.default_rng((seed, 1))
    labels = common.integers(classes, size=n)
    logits = 2 * common.normal(size=(n, classes)) + 0.3 * own.normal(size=(n, classes))
    logits[np.arange(n), labels] += skill
    return predictions(logits, labels, from_logits=True)


def methods(seeds: int = 3) -> dict[str, dict[str, list[Predictions]]]:
    skills = {"zero": 0.5, "A": 1.5, "B": 2.5}
    return {
        name: {
            split: [drawn(seed, skill, images) for seed in range(1 if name == "zero" else seeds)]
            for images, split in enumerate(("base", "novel"))
        }
        for name, skill in skills.items()
    }


def table(rows: list[Row]) -> dict[tuple[str, str, str], Row]:
    return {(row.split, row.method, row.metric): row for row in rows}


@pytest.mark.parametrize("bins", [10, 7])
def test_numbers_are_means_of_the_metrics(bins: int) -> None:
    held = methods()
    found = table(compare("toys", held, differences=PAIR, n_bins=bins, resamples=20))
    for name, splits in held.items():
        for split, runs in splits.items():
            for metric in METRICS:
                mean = np.mean([evaluate(run, n_bins=bins)[metric] for run in runs])
                assert found[split, name, metric].value == pytest.approx(mean, abs=1e-12)
        base, novel = (found[split, name, "accuracy"].value for split in ("base", "novel"))
        assert found[HARMONIC, name, "accuracy"].value == pytest.approx(2 * base * novel / (base + novel))
    for split, metric in [("base", "ece"), ("novel", "mce"), (HARMONIC, "accuracy")]:
        expected = found[split, "B", metric].value - found[split, "A", metric].value
        assert found[split, "B minus A", metric].value == pytest.approx(expected)
    assert len(found) == 4 * (2 * len(METRICS) + 1)


def test_one_seed_has_the_interval_of_its_images() -> None:
    held = {"A": {"base": [drawn(0, 1.5)]}}
    found = table(compare("toys", held, n_bins=7, resamples=300, seed=4))
    counts = np.concatenate(list(resample_counts(np.random.default_rng((4, *b"base")), 200, 300)))
    drawn_again = ResampledMetrics(drawn(0, 1.5), names=METRICS, n_bins=7)(counts)
    for metric in METRICS:
        row = found["base", "A", metric]
        if metric == "mce":  # of which no interval covers
            assert (row.low, row.high, row.number.excludes_zero) == (None, None, False)
        elif metric == "accuracy":
            assert (row.low, row.high) == pytest.approx(percentile_interval(drawn_again[metric]))
        else:
            ends = expected_interval(row.value, drawn_again[metric])
            assert (row.low, row.high) == pytest.approx((max(0, ends[0]), ends[1]))
            assert row.low <= row.value <= row.high


def test_differences_are_paired() -> None:
    """A method minus its twin is 0 in every resample; and a difference varies less than the methods do."""
    held = methods()
    twin = compare("toys", {"A": held["A"], "B": held["A"]}, differences=PAIR, resamples=50)
    assert all((row.value, row.low or 0, row.high or 0) == (0, 0, 0) for row in twin if row.is_difference)
    assert not any(row.number.excludes_zero for row in twin if row.is_difference)
    found = table(compare("toys", held, differences=PAIR, resamples=300))
    widths = {name: found["base", name, "accuracy"] for name in ("A", "B", "B minus A")}
    together = np.hypot(*(widths[name].high - widths[name].low for name in ("A", "B")))
    assert widths["B minus A"].high - widths["B minus A"].low < 0.8 * together
    assert found["base", "B minus A", "accuracy"].number.excludes_zero


def test_resampling_draws_one_seed_fewer() -> None:
    """Runs that are all right or all wrong: images do not matter, and the mean is a share of the seeds drawn."""
    right, wrong = (predictions([probs] * 5, [0] * 5) for probs in ([0.9, 0.1], [0.1, 0.9]))
    runs = 4 * [right, wrong]
    row = table(compare("toys", {"A": {"base": runs}}, resamples=4000))["base", "A", "accuracy"]
    assert row.value == pytest.approx(0.5)
    assert (row.low, row.high) == pytest.approx(tuple(binom.ppf([0.025, 0.975], 7, 0.5) / 7))


def test_seeds_widen_the_interval_as_much_as_the_mean_of_new_ones_varies() -> None:
    """Runs that differ far more than images do: the spread of resampled means is the standard error of the mean."""
    n, right = 400, (100, 200, 240)
    runs = [predictions([[0.9, 0.1]] * n, [0] * n) for _ in right]
    for run, hits in zip(runs, right, strict=True):
        run.predicted[hits:] = 1
    row = table(compare("toys", {"A": {"base": runs}}, resamples=4000))["base", "A", "accuracy"]
    rates = np.array(right) / n
    assert row.value == pytest.approx(rates.mean())
    error = rates.std(ddof=1) / np.sqrt(len(rates))
    assert (row.high - row.low) / 2 == pytest.approx(1.96 * error, rel=0.35)  # three seeds give few different means
    alone = table(compare("toys", {"A": {"base": runs[1:2]}}, resamples=4000))["base", "A", "accuracy"]
    assert row.high - row.low > 3 * (alone.high - alone.low)


def test_chunk_size_changes_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compare("toys", methods(), differences=PAIR, resamples=30)
    monkeypatch.setattr("calprompt.evaluation.bootstrap.COUNTS_PER_CHUNK", 900)
    for one, other in zip(first, compare("toys", methods(), differences=PAIR, resamples=30), strict=True):
        assert one.key == other.key
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=1e-12)


def test_unpaired_runs_raise() -> None:
    held = methods()
    other = {**held, "B": {"base": [drawn(0, 1.0, images=7)], "novel": held["B"]["novel"]}}
    with pytest.raises(CalpromptError, match="B was not evaluated on the same base images"):
        compare("toys", other)
    fewer = {**held, "B": {split: runs[:2] for split, runs in held["B"].items()}}
    with pytest.raises(CalpromptError, match="B has 2 runs, and other methods have 3"):
        compare("toys", fewer)
    with pytest.raises(CalpromptError, match="resamples must be at least 1"):
        compare("toys", held, resamples=0)
