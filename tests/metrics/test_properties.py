"""What must hold for any predictions: order and repetition do not matter, bounds and inequalities hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calprompt.metrics import (
    DAC,
    TCPT,
    EqualWidth,
    calibration_errors_from_confidence,
    equal_mass_table,
    equal_width_table,
    evaluate,
    metrics,
    predictions,
    proximity_calibration_error,
)
from calprompt.metrics.binning import mass_index, width_edges, width_index

confidences = st.one_of(
    st.floats(0, 1, allow_subnormal=False),
    st.integers(0, 20).map(lambda k: k / 20),
    st.integers(0, 15).map(lambda k: float(np.linspace(0, 1, 16)[k])),
    st.sampled_from([0.0, 1.0, 0.1 + 0.2, float(np.float32(0.3)), float(np.nextafter(1, 0))]),
)
n_bins = st.integers(1, 25)
bin_rules = st.builds(
    EqualWidth,
    closed=st.sampled_from(["right", "left"]),
    edges=st.sampled_from(["fraction", "linspace", "float32"]),
    outermost=st.sampled_from(["keep", "drop", "weigh"]),
)


@st.composite
def outcomes(draw: st.DrawFn, max_size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """(confidence, correct) vectors, with confidences that love edges and ties."""
    pairs = draw(st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=max_size))
    confidence, correct = zip(*pairs, strict=True)
    return np.array(confidence, dtype=np.float64), np.array(correct)


@st.composite
def tables(draw: st.DrawFn, max_samples: int = 25, max_classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """(probs [N, C], labels [N]), with ties, zeros and ones."""
    shape = (draw(st.integers(1, max_samples)), draw(st.integers(1, max_classes)))
    weights = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.5, 17.0])))
    weights[weights.sum(axis=1) == 0] = 1.0
    labels = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[1] - 1)))
    return weights / weights.sum(axis=1, keepdims=True), labels


@given(confidences, n_bins, st.sampled_from(["fraction", "linspace", "float32"]), st.sampled_from(["right", "left"]))
def test_every_confidence_is_in_exactly_one_interval(confidence: float, n: int, kind: str, closed: str) -> None:
    edges = width_edges(n, kind)
    given = confidence
    if kind == "fraction":  # as float32 has them
        edges, confidence = edges.astype(np.float32), float(np.float32(confidence))
    lower, upper = edges[:-1], edges[1:]
    if closed == "right":
        inside = (lower < confidence) & (confidence <= upper)
        inside[0] |= confidence == 0
    else:
        inside = (lower <= confidence) & (confidence < upper)
        inside[-1] |= confidence == 1
    assert inside.sum() == 1
    found = width_index(np.array([given]), n, EqualWidth(closed=closed, edges=kind))[0]
    assert found == inside.argmax()


@given(outcomes(), n_bins, bin_rules)
def test_counts_add_up(sample: tuple[np.ndarray, np.ndarray], n: int, rule: EqualWidth) -> None:
    confidence, correct = sample
    table = equal_width_table(confidence, correct, n_bins=n, bins=rule)
    left_out = confidence == (0 if rule.closed == "right" else 1)
    assert len(table.count) == n
    assert table.total == len(confidence)
    assert table.count.sum() == len(confidence) - (left_out.sum() if rule.outermost == "drop" else 0)


@given(outcomes(), n_bins)
def test_table_gives_back_overall_means(sample: tuple[np.ndarray, np.ndarray], n: int) -> None:
    confidence, correct = sample
    for table in (equal_width_table(confidence, correct, n_bins=n), equal_mass_table(confidence, correct, n_bins=n)):
        filled = table.count > 0
        assert np.isnan(table.accuracy[~filled]).all()
        mean = (table.count * np.nan_to_num(table.confidence)).sum() / table.total
        hits = (table.count * np.nan_to_num(table.accuracy)).sum()
        assert mean == pytest.approx(confidence.mean(), abs=1e-12)
        assert hits == pytest.approx(correct.sum(), abs=1e-9)
        members = table.confidence[filled]
        rounding = np.finfo(np.float32).eps  # confidences are compared with edges as float32 has them
        assert (table.lower[filled] - rounding <= members).all()
        assert (members <= table.upper[filled] + rounding).all()


@given(outcomes(), n_bins, st.sampled_from(["midrank", "linear", "averaged_inverted_cdf"]))
def test_equal_mass_bins_keep_ties_together_and_in_order(
    sample: tuple[np.ndarray, np.ndarray], n: int, quantile: str
) -> None:
    confidence, _ = sample
    index = mass_index(confidence, n, quantile)
    assert index.min() >= 0
    assert index.max() < n
    order = np.argsort(confidence, kind="stable")
    assert (np.diff(index[order]) >= 0).all()
    for value in np.unique(confidence):
        assert len(set(index[confidence == value])) == 1


@given(st.integers(1, 200), n_bins)
def test_equal_mass_bins_are_even_without_ties(n_samples: int, n: int) -> None:
    counts = np.bincount(mass_index(np.arange(n_samples) / n_samples, n), minlength=n)
    assert counts.max() - counts.min() <= 1


@given(tables(), n_bins, st.randoms(use_true_random=False))
def test_order_of_samples_is_irrelevant(sample: tuple[np.ndarray, np.ndarray], n: int, random) -> None:
    probs, labels = sample
    order = list(range(len(labels)))
    random.shuffle(order)
    for convention in ("default", "tcpt", "dac"):
        there = evaluate(probs, labels, n_bins=n, convention=convention)
        back = evaluate(probs[order], labels[order], n_bins=n, convention=convention)
        assert back == pytest.approx(there, abs=1e-12)


@given(tables(), n_bins, st.integers(2, 5))
def test_repeating_every_sample_changes_nothing(sample: tuple[np.ndarray, np.ndarray], n: int, times: int) -> None:
    probs, labels = sample
    once = evaluate(probs, labels, n_bins=n)
    repeated = evaluate(np.tile(probs, (times, 1)), np.tile(labels, times), n_bins=n)
    assert repeated == pytest.approx(once, abs=1e-12)


@given(tables(max_classes=5), n_bins, st.randoms(use_true_random=False))
def test_names_of_classes_are_irrelevant(sample: tuple[np.ndarray, np.ndarray], n: int, random) -> None:
    """Renaming classes changes nothing, as long as no tie for the largest probability has to be broken."""
    probs, labels = sample
    probs = probs + np.linspace(0, 1e-4, probs.shape[1])
    probs /= probs.sum(axis=1, keepdims=True)
    to = list(range(probs.shape[1]))
    random.shuffle(to)
    renamed = np.empty_like(probs)
    renamed[:, to] = probs
    assert evaluate(renamed, np.array(to)[labels], n_bins=n) == pytest.approx(
        evaluate(probs, labels, n_bins=n), abs=1e-9
    )


@given(tables(), n_bins)
def test_bounds_and_inequalities(sample: tuple[np.ndarray, np.ndarray], n: int) -> None:
    probs, labels = sample
    values = evaluate(probs, labels, n_bins=n)
    assert set(values) == set(metrics.available())
    slack = 1e-12
    for name in set(values) - {"brier", "nll", "confidence_gap"}:
        assert -slack <= values[name] <= 1 + slack, name
    assert -slack <= values["brier"] <= 2 + slack
    assert values["nll"] >= 0
    assert abs(values["confidence_gap"]) <= values["ece"] + slack
    assert abs(values["confidence_gap"]) <= values["ace"] + slack
    assert values["weighted_mce"] <= values["ece"] + slack
    assert values["ece"] <= values["mce"] + slack
    assert values["ece"] <= n * values["weighted_mce"] + slack


@given(outcomes(), st.sampled_from([TCPT, DAC, "default"]), n_bins)
def test_conventions_stay_in_bounds(sample: tuple[np.ndarray, np.ndarray], convention, n: int) -> None:
    confidence, correct = sample
    errors = calibration_errors_from_confidence(
        confidence, correct, distances=confidence, n_bins=n, convention=convention
    )
    for name in set(errors) - {"confidence_gap"}:
        assert -1e-12 <= errors[name] <= 1 + 1e-12, name


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=6), n_bins)
def test_perfect_calibration_is_zero(groups: list[tuple[int, int]], n: int) -> None:
    """Groups of m samples with confidence k/m, k of them correct."""
    groups = [(m, min(k, m)) for m, k in groups]
    confidence = np.concatenate([np.full(m, k / m) for m, k in groups])
    correct = np.concatenate([np.arange(m) < k for m, k in groups])
    errors = calibration_errors_from_confidence(confidence, correct, n_bins=n)
    assert errors == pytest.approx(dict.fromkeys(errors, 0.0), abs=1e-12)


@given(outcomes())
def test_one_bin_is_the_absolute_gap(sample: tuple[np.ndarray, np.ndarray]) -> None:
    errors = calibration_errors_from_confidence(*sample, n_bins=1)
    for name in ("ece", "ace", "mce", "weighted_mce"):
        assert errors[name] == pytest.approx(abs(errors["confidence_gap"]), abs=1e-12)


@given(tables(), n_bins, st.integers(1, 8))
def test_proximity_refines_ece(sample: tuple[np.ndarray, np.ndarray], n: int, rows: int) -> None:
    """Cells are parts of bins, so PIECE ≥ ECE; with one distance bin they are equal."""
    probs, labels = sample
    far = probs[:, 0] ** 2
    ece = evaluate(probs, labels, n_bins=n, names=["ece"])["ece"]
    finer = proximity_calibration_error(probs, labels, distances=far, n_bins=n, n_distance_bins=rows)
    assert finer >= ece - 1e-12
    alone = proximity_calibration_error(probs, labels, distances=far, n_bins=n, n_distance_bins=1)
    assert alone == pytest.approx(ece, abs=1e-12)


@settings(max_examples=50)
@given(hnp.arrays(np.float64, (7, 4), elements=st.floats(-30, 30)), st.floats(-1e3, 1e3))
def test_logits_and_their_softmax_agree(logits: np.ndarray, shift: float) -> None:
    labels = np.arange(7) % 4
    probs = predictions(logits, labels, from_logits=True).probs
    probs = probs / probs.sum(axis=1, keepdims=True)
    direct = evaluate(logits + shift, labels, from_logits=True, names=["nll", "brier", "mean_confidence"])
    assert direct == pytest.approx(evaluate(probs, labels, names=direct), rel=1e-9, abs=1e-9)
