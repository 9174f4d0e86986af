"""Bootstrap intervals: each resample is what the metrics say of the images drawn, and the intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from calprompt.errors import CalpromptError
from calprompt.evaluation import bootstrap_intervals
from calprompt.evaluation.bootstrap import draw_counts, resampled_metrics
from calprompt.metrics import Predictions, evaluate, predictions

LOGIT_STEPS = np.array([0.0, 0.0, 1.0, 3.0, 40.0, -2.0])


def drawn(seed: int, n: int = 120, classes: int = 4, ties: bool = False) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.choice(LOGIT_STEPS, (n, classes)) if ties else 2 * rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 1.0
    return predictions(logits, labels, from_logits=True)


def taken(given: Predictions, rows: np.ndarray) -> Predictions:
    return Predictions(given.probs[rows], given.labels[rows], given.predicted[rows], given.log_likelihood[rows])


@pytest.mark.parametrize("convention", ["default", "tcpt", "dac"])
@pytest.mark.parametrize("ties", [False, True])
def test_a_resample_is_what_the_metrics_say_of_it(convention: str, ties: bool) -> None:
    given = drawn(0, ties=ties)
    counts = draw_counts(np.random.default_rng(1), 120, 20)
    counts[0] = 1  # the sample itself
    counts[1] = 0
    counts[1, 7] = 120  # one image, over and over
    assert (counts.sum(axis=1) == 120).all()
    found = resampled_metrics(given, counts, n_bins=10, convention=convention)
    for row, count in enumerate(counts):
        expected = evaluate(
            taken(given, np.repeat(np.arange(120), count)), names=found, n_bins=10, convention=convention
        )
        assert {name: values[row] for name, values in found.items()} == pytest.approx(expected, abs=1e-10)


def test_the_seed_decides_and_holding_fewer_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(3)
    first = bootstrap_intervals(given, resamples=200, seed=(4, 1))
    assert first == bootstrap_intervals(given, resamples=200, seed=(4, 1))
    assert first != bootstrap_intervals(given, resamples=200, seed=(4, 2))
    monkeypatch.setattr("calprompt.evaluation.bootstrap.AT_ONCE", 700)
    pieces = bootstrap_intervals(given, resamples=200, seed=(4, 1))
    for name, interval in first.items():
        assert pieces[name] == pytest.approx(interval, abs=1e-12), name


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Images whose predictions are right as often as the confidence says, on average; truth from a large sample."""
    truth = evaluate(drawn(99, n=100_000))
    names = ("accuracy", "nll", "brier", "confidence_gap", "mean_confidence", "aurc")
    covered = dict.fromkeys(names, 0)
    for seed in range(200):
        found = bootstrap_intervals(drawn(seed, n=250), resamples=300, seed=seed)
        for name in names:
            covered[name] += found[name][0] <= truth[name] <= found[name][1]
    for name, times in covered.items():
        assert 0.88 <= times / 200 <= 0.995, (name, times)


def test_more_images_make_a_narrower_interval() -> None:
    widths = [np.diff(bootstrap_intervals(drawn(5, n=n), resamples=200)["ece"])[0] for n in (100, 10_000)]
    assert widths[1] < widths[0] / 4


def test_one_image_has_a_point() -> None:
    for low, high in bootstrap_intervals(drawn(0, n=1), resamples=10).values():
        assert low == high


def test_no_resamples_are_refused() -> None:
    with pytest.raises(CalpromptError, match="resamples must be at least 1, got 0"):
        bootstrap_intervals(drawn(0), resamples=0)
