"""Bootstrap intervals: each resample is what the metrics say of the images drawn, and the intervals cover."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from calprompt.errors import CalpromptError, UnknownNameError
from calprompt.evaluation.bootstrap import (
    NOT_COVERED,
    ResampledMetrics,
    bootstrap_intervals,
    draw_counts,
    expected_interval,
    percentile_interval,
)
from calprompt.metrics import Convention, EqualWidth, Predictions, evaluate, metrics, predictions

LOGIT_STEPS = np.array([0.0, 0.0, 1.0, 3.0, 40.0, -2.0])


def drawn(seed: int, n: int = 120, classes: int = 4, ties: bool = False) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.choice(LOGIT_STEPS, (n, classes)) if ties else 2 * rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 1.0
    return predictions(logits, labels, from_logits=True)


@pytest.mark.parametrize("convention", ["default", "tcpt", "dac"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 4, 30])
def test_resampled_metrics_equal_metrics_of_the_resample(convention: str, ties: bool, classes: int) -> None:
    given = drawn(0, classes=classes, ties=ties)
    counts = draw_counts(np.random.default_rng(1), 120, 20)
    counts[0] = 1  # the sample itself
    counts[1] = 0
    counts[1, 7] = 120  # one image, over and over
    assert (counts.sum(axis=1) == 120).all()
    found = ResampledMetrics(given, n_bins=10, convention=convention)(counts)
    assert set(found) == set(metrics.available())
    for row, count in enumerate(counts):
        expected = evaluate(given.take(np.repeat(np.arange(120), count)), n_bins=10, convention=convention)
        assert {name: values[row] for name, values in found.items()} == pytest.approx(expected, abs=1e-10)


def test_resampled_bins_with_dropped_or_weighed_ends() -> None:
    """Probabilities of exactly 0 and 1 under bins that treat them in every possible way."""
    probs = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    sample = predictions(probs, [0, 1, 2, 1, 2])
    counts = draw_counts(np.random.default_rng(2), 5, 30)
    for closed in ("left", "right"):
        for outermost in ("keep", "drop", "weigh"):
            rule = Convention(ece=EqualWidth(closed=closed, outermost=outermost))
            values = ResampledMetrics(sample, names=["classwise_ece", "ece"], convention=rule)(counts)
            for row, count in enumerate(counts):
                resample = sample.take(np.repeat(np.arange(5), count))
                expected = evaluate(resample, names=values, convention=rule)
                assert {name: drawn[row] for name, drawn in values.items()} == pytest.approx(expected, abs=1e-12)


Measure = Callable[[Predictions], float]


@pytest.fixture
def registered() -> Iterator[Callable[[str, Measure], None]]:
    names: list[str] = []

    def register(name: str, metric: Measure) -> None:
        metrics.register(name)(metric)
        names.append(name)

    yield register
    for name in names:
        del metrics._things[name], metrics._info[name]


def test_a_metric_of_the_user_gets_an_interval(registered: Callable[[str, Measure], None]) -> None:
    def error_rate(sample: Predictions) -> float:
        return float(1 - sample.correct.mean())

    registered("error_rate", error_rate)
    sample = drawn(6)
    intervals = bootstrap_intervals(sample, resamples=100, seed=3)
    low, high = intervals["accuracy"]
    assert set(intervals) == set(metrics.available()) - set(NOT_COVERED)
    assert intervals["error_rate"] == pytest.approx((1 - high, 1 - low), abs=0.03)  # the accuracy has Wilson's
    assert bootstrap_intervals(sample, names=["error_rate"], resamples=100, seed=3) == {
        "error_rate": intervals["error_rate"]
    }


def test_a_metric_that_is_undefined_on_a_resample_has_no_interval(
    registered: Callable[[str, Measure], None],
) -> None:
    def strict(sample: Predictions) -> float:
        return 0.5 if len(np.unique(sample.labels)) == 4 else float("nan")

    registered("strict", strict)
    assert set(bootstrap_intervals(drawn(0, n=8), names=["strict", "nll"], resamples=100)) == {"nll"}


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown metric 'ecee'"):
        bootstrap_intervals(drawn(0), names=["ecee"])


def test_the_seed_decides_and_holding_fewer_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(3)
    first = bootstrap_intervals(given, resamples=200, seed=(4, 1))
    assert first == bootstrap_intervals(given, resamples=200, seed=(4, 1))
    assert first != bootstrap_intervals(given, resamples=200, seed=(4, 2))
    monkeypatch.setattr("calprompt.evaluation.bootstrap.COUNTS_PER_CHUNK", 700)
    pieces = bootstrap_intervals(given, resamples=200, seed=(4, 1))
    for name, interval in first.items():
        assert pieces[name] == pytest.approx(interval, abs=1e-12), name


def test_intervals_have_their_stated_coverage() -> None:
    """Images whose predictions are right as often as the confidence says, on average; truth from a large sample."""
    truth = evaluate(drawn(99, n=100_000))
    names = ("accuracy", "nll", "brier", "confidence_gap", "mean_confidence")
    covered = dict.fromkeys(names, 0)
    for seed in range(200):
        found = bootstrap_intervals(drawn(seed, n=250), names=names, resamples=300, seed=seed)
        for name in names:
            covered[name] += found[name][0] <= truth[name] <= found[name][1]
    for name, times in covered.items():
        assert 0.88 <= times / 200 <= 0.995, (name, times)


def test_more_images_make_a_narrower_interval() -> None:
    widths = [
        np.diff(bootstrap_intervals(drawn(5, n=n), names=["nll"], resamples=200)["nll"])[0] for n in (100, 10_000)
    ]
    assert widths[1] < widths[0] / 4


def test_one_image_has_intervals_of_no_width_but_for_accuracy() -> None:
    intervals = bootstrap_intervals(drawn(0, n=1), resamples=10)
    low, high = intervals.pop("accuracy")
    assert high - low > 0.5
    assert all(low == high for low, high in intervals.values())


def test_calibration_errors_have_no_percentile_interval() -> None:
    """At a true ECE of 5 % it covered the truth in 6 % of samples of 50 images."""
    assert set(bootstrap_intervals(drawn(0), resamples=10)).isdisjoint(NOT_COVERED)
    assert bootstrap_intervals(drawn(0), names=["ece", "mce"], resamples=10) == {}


def test_accuracy_of_1_has_an_interval_below_1() -> None:
    sample = predictions([[0.9, 0.1]] * 30, [0] * 30)
    assert bootstrap_intervals(sample, names=["accuracy"], resamples=10)["accuracy"][0] == pytest.approx(
        0.886, abs=1e-3
    )


def test_the_interval_of_a_mean_contains_the_value_and_the_resamples() -> None:
    values = np.linspace(1, 3, 201)
    low, high = expected_interval(1.5, values)  # resamples are too large by 0.5
    assert (low, high) == pytest.approx((0.55, 2.95))
    assert expected_interval(2.0, values) == pytest.approx(percentile_interval(values))


def test_zero_resamples_raise() -> None:
    with pytest.raises(CalpromptError, match="resamples must be at least 1, got 0"):
        bootstrap_intervals(drawn(0), resamples=0)
