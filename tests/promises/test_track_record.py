"""What a confidence has meant so far, from images that the model did not learn from."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from calprompt.errors import DamagedFileError
from calprompt.metrics import expected_calibration_error, risk_coverage
from calprompt.metrics.binomial import chance_band
from calprompt.promises import TrackRecord


def record(n: int = 400, *, seed: int = 0, bias: float = 0.0) -> TrackRecord:
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.uniform(0.2, 1.0, n))
    return TrackRecord("held out", confidence, rng.random(n) < confidence - bias, np.ones(n, dtype=bool))


@given(st.floats(0, 1), st.integers(1, 300), st.integers(0, 5), st.floats(-0.3, 0.3))
def test_an_interval_uses_images_on_both_sides_of_a_confidence(
    confidence: float, n: int, seed: int, bias: float
) -> None:
    """Each bound is Clopper and Pearson's of the nearest images below or above, as scipy has it."""
    found = record(n, seed=seed, bias=bias)
    meaning = found.meaning(confidence)
    if meaning.share is None or meaning.interval is None:
        assert meaning.sentence().startswith("Too few held-out images")
        return
    assert meaning.interval[0] <= meaning.share <= meaning.interval[1]
    below, above = found.correct[found.confidence <= confidence][::-1], found.correct[found.confidence >= confidence]
    k, m = (np.arange(1, 1 + len(side)) for side in (below, above))
    lows, highs = (
        beta.ppf(0.025, below.cumsum(), k - below.cumsum() + 1),
        beta.ppf(0.975, above.cumsum() + 1, m - above.cumsum()),
    )
    ends = np.nan_to_num(np.concatenate([[0, 1], lows, np.nan_to_num(highs, nan=1)]))
    assert all(np.abs(ends - end).min() < 1e-9 for end in meaning.interval)


def calibrated(n: int, draws: int) -> Iterator[TrackRecord]:
    """Records of a model that is right exactly as often as it says; most of its answers are rather sure."""
    rng = np.random.default_rng(n)
    for _ in range(draws):
        confidence = np.sort(0.25 + 0.75 * rng.beta(3, 1.2, n))
        yield TrackRecord("held out", confidence, rng.random(n) < confidence, np.ones(n, dtype=bool))


@pytest.mark.parametrize(("n", "confidence"), [(30, 0.97), (60, 0.9), (200, 0.97), (1000, 0.7)])
def test_the_interval_contains_the_truth(n: int, confidence: float) -> None:
    meanings = [found.meaning(confidence) for found in calibrated(n, 400)]
    said = [each.interval for each in meanings if each.interval is not None]
    assert len(said) > 300
    assert np.mean([low <= confidence <= high for low, high in said]) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / len(said))


def test_images_of_other_confidences_say_nothing() -> None:
    far = TrackRecord("held out", np.linspace(0.3, 0.5, 500), np.arange(500) % 2 == 0, np.ones(500, dtype=bool))
    assert far.meaning(0.95).share is None
    assert far.meaning(0.4).share == pytest.approx(0.5, abs=0.05)
    assert record(5).meaning(0.9).share is None


def test_unanswered_images_do_not_count_for_answers() -> None:
    sure = np.full(100, 0.9)
    wrong_ones_rejected = TrackRecord("held out", sure, np.arange(100) < 90, np.arange(100) < 90)
    assert wrong_ones_rejected.meaning(0.9).images == 90
    assert wrong_ones_rejected.meaning(0.9).share == pytest.approx(1.0)


def test_no_images_are_no_record() -> None:
    assert TrackRecord.of("test", np.empty((0, 3)), []) is None


def test_summary_equals_the_metrics() -> None:
    found = record(bias=0.2)
    probabilities = np.stack([found.confidence, 1 - found.confidence], axis=1)
    keep = found.confidence >= 0.5
    part = TrackRecord("held out", found.confidence[keep], found.correct[keep], found.taken[keep])
    labels = np.where(part.correct, 0, 1)
    summary = part.summary
    assert summary["ece"] == pytest.approx(expected_calibration_error(probabilities[keep], labels))
    assert summary["accuracy"] == part.correct.mean()
    assert summary["chance_ece"] < summary["ece"]
    assert sum(row["images"] for row in summary["reliability"]) == len(part)
    below = [row["accuracy"] < row["chance"][0] for row in summary["reliability"]]
    assert any(below)  # a model that is 20 points too sure falls out of the band
    curve, whole = summary["risk_coverage"], risk_coverage(part.confidence, part.correct)
    assert len(curve["threshold"]) <= 200
    assert (curve["threshold"][0], curve["threshold"][-1]) == (whole.threshold[0], whole.threshold[-1])
    assert curve["risk"][-1] == whole.risk[-1]
    assert all(np.diff(curve["coverage"]) > 0)


def test_images_that_are_taken_for_none_of_the_classes_are_never_answered() -> None:
    probabilities = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    found = TrackRecord.of("held out", probabilities, [0, 1, 0, 0], [True, False, True, True])
    assert found is not None
    curve = found.summary["risk_coverage"]
    assert (curve["threshold"], curve["coverage"], curve["risk"]) == ([0.9, 0.7, 0.6], [0.25, 0.5, 0.75], [0, 0, 0])
    none = TrackRecord.of("held out", probabilities, [0, 1, 0, 0], [False] * 4)
    assert none is not None
    assert none.summary["risk_coverage"]["coverage"] == []


def test_the_band_of_chance_holds_95_percent_of_the_bins_of_a_calibrated_model() -> None:
    confidence = np.random.default_rng(1).uniform(0, 1, 300)
    band = chance_band(confidence)
    inside = []
    for seed in range(300):
        correct = np.random.default_rng(seed + 10).random(300) < confidence
        cells = np.ceil(confidence * 10).astype(int) - 1
        inside += [band[cell][0] <= correct[cells == cell].mean() <= band[cell][1] for cell in range(10)]
    assert 0.93 <= np.mean(inside) <= 0.99  # shares of few images are coarse, so that the band is rather too wide


def test_many_images_in_a_bin_are_as_good_as_normal() -> None:
    few, many = np.full(500, 0.65), np.full(501, 0.65)
    assert chance_band(few)[6] == pytest.approx(chance_band(many)[6], abs=0.01)
    assert np.isnan(chance_band(few)[0]).all()


def test_it_goes_through_json() -> None:
    found = record(30)
    again = TrackRecord.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.summary == found.summary
    for damage in ({"source": "guesses"}, {"correct": [1]}, {"confidence": "high"}):
        with pytest.raises(DamagedFileError, match="track record of the model is damaged"):
            TrackRecord.from_dict({**found.to_dict(), **damage})
