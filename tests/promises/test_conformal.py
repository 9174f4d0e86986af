"""Prediction sets: the exact quantile, the promise by simulation and by enumeration, and MAPIE on what both define."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta

from calprompt.errors import SettingError, UnknownNameError
from calprompt.kernel import class_scores, softmax
from calprompt.promises import SetRule, choose_temperature, conformal_quantile, fit_sets, images_needed
from calprompt.promises.conformal import rank_needed

shares = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])
logit_arrays = arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(2, 6)), elements=st.floats(-8, 8, width=32))


@given(st.integers(0, 60), shares)
def test_the_quantile_is_the_k_th_smallest_score(n: int, coverage: float) -> None:
    scores = np.random.default_rng(n).permutation(n) / max(n, 1)
    k = math.ceil((n + 1) * Fraction(str(coverage)))
    expected = np.sort(scores)[k - 1] if k <= n else math.inf
    assert conformal_quantile(scores, coverage) == expected
    assert math.isinf(conformal_quantile(scores, coverage)) == (n < images_needed(coverage))


@pytest.mark.parametrize(("n", "coverage"), [(4, 0.95), (16, 0.95), (8, 0.9), (9, 0.9), (19, 0.95), (50, 0.9)])
def test_the_promise_holds_with_few_images(n: int, coverage: float) -> None:
    """Exactly k / (n + 1) for continuous scores; everything with fewer images than any set needs."""
    rng = np.random.default_rng(n)
    trials = 20_000
    covered = np.mean([rng.random() <= conformal_quantile(rng.random(n), coverage) for _ in range(trials)])
    exact = min(1.0, math.ceil((n + 1) * Fraction(str(coverage))) / (n + 1))
    assert exact >= coverage
    assert covered == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / trials) + 1e-12)


def test_images_drawn_class_by_class_are_covered_too() -> None:
    """All scores of the first class are below all of the second: then the coverage is known exactly."""

    def covered(k: int, first: int, n: int) -> float:
        if k > n:
            return 1.0
        if k <= first:
            return k / (first + 1) * first / n
        return (first + (n - first) * (k - first) / (n - first + 1)) / n

    for coverage in (0.5, 0.8, 0.9, 0.95):
        least = [
            min(covered(rank_needed(n, coverage, by_class=True), first, n) for first in range(1, n))
            for n in range(2, 120)
        ]
        assert min(least) >= coverage
    assert covered(rank_needed(19, 0.9), 18, 19) < 0.9, "which the usual rank does not do"


@pytest.mark.parametrize(("n", "coverage"), [(29, 0.9), (60, 0.9), (200, 0.9), (100, 0.95), (40, 0.5)])
def test_sets_for_this_draw_hold_with_the_stated_probability(n: int, coverage: float) -> None:
    """The coverage of the k-th smallest of n scores has the distribution Beta(k, n + 1 − k)."""
    k = rank_needed(n, coverage, level=0.95)
    assert k <= n
    assert beta(k, n + 1 - k).cdf(coverage) <= 0.05 + 1e-12
    assert beta(k - 1, n + 2 - k).cdf(coverage) > 0.05, "and no smaller rank does"
    assert rank_needed(28, 0.9, level=0.95) > 28, "28 images are too few"


def test_too_few_images_give_sets_of_all_classes() -> None:
    rng = np.random.default_rng(0)
    rule = fit_sets(rng.normal(size=(16, 5)), rng.integers(0, 5, 16), 0.95)
    assert not rule.useful
    assert rule.sets(rng.normal(size=(7, 5))).all()
    nothing = fit_sets(np.empty((0, 5)), np.empty(0, dtype=int), 0.9)
    assert nothing.sets(rng.normal(size=(3, 5))).all()


def test_per_class_the_promise_holds_for_each_class() -> None:
    """A class that is hard has larger sets; one quantile for all covers it too rarely."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 3, n)
        logits = rng.normal(size=(n, 3))
        logits[np.arange(n), labels] += np.array([4.0, 2.0, 0.2])[labels]
        return logits, labels

    logits, labels = draw(600)
    test_logits, test_labels = draw(60_000)

    def covered(rule: SetRule) -> np.ndarray:
        inside = rule.sets(test_logits)[np.arange(len(test_labels)), test_labels]
        return np.array([inside[test_labels == label].mean() for label in range(3)])

    assert covered(fit_sets(logits, labels, 0.9))[2] < 0.85
    assert (covered(fit_sets(logits, labels, 0.9, per_class=True)) > 0.87).all()


@given(logit_arrays, st.sampled_from(["lac", "aps"]))
def test_scores_order_classes_as_probabilities_do(logits: np.ndarray, score: str) -> None:
    scores = class_scores(softmax(logits), score)
    for row, own in zip(softmax(logits), scores, strict=True):
        order = np.argsort(-row, kind="stable")
        assert (np.diff(own[order]) >= -1e-12).all()
        for a in range(len(row)):
            for b in range(len(row)):
                if row[a] == row[b]:
                    assert own[a] == own[b]


@given(logit_arrays, shares)
def test_a_set_has_the_most_probable_class_and_grows_with_coverage(logits: np.ndarray, coverage: float) -> None:
    labels = np.arange(len(logits)) % logits.shape[1]
    rule, wider = fit_sets(logits, labels, coverage), fit_sets(logits, labels, 0.995)
    inside = rule.sets(logits)
    assert inside[np.arange(len(logits)), logits.argmax(axis=1)].all()
    assert (wider.sets(logits) >= inside).all()
    assert (inside >= rule.sets(logits, allow_empty=True)).all()
    assert SetRule.from_dict(rule.to_dict()) == rule


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_against_mapie(coverage: float) -> None:
    """Sets of MAPIE's split conformal classifier, on as many images as its quantile is exact for."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    rng = np.random.default_rng(7)
    logits, labels = rng.normal(size=(199, 4)) * 2, rng.integers(0, 4, 199)
    new = rng.normal(size=(300, 4)) * 2

    class Stored(ClassifierMixin, BaseEstimator):
        """Gives the stored probabilities of rows by number."""

        classes_ = np.arange(4)
        fitted_ = True

        def fit(self, X: np.ndarray, y: np.ndarray) -> Stored:
            return self

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return softmax(np.concatenate([logits, new])[X[:, 0].astype(int)])

        def predict(self, X: np.ndarray) -> np.ndarray:
            return self.predict_proba(X).argmax(axis=1)

    theirs = SplitConformalClassifier(Stored(), confidence_level=coverage, conformity_score="lac", prefit=True)
    theirs.conformalize(np.arange(199)[:, None], labels)
    _, found = theirs.predict_set(np.arange(199, 499)[:, None])
    ours = fit_sets(logits, labels, coverage).sets(new, allow_empty=True)
    assert (found[:, :, 0] == ours).all()


def test_the_temperature_of_sets_makes_them_smaller() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 10, 3000)
    logits = rng.normal(size=(3000, 10))
    logits[np.arange(3000), labels] += rng.choice([0.5, 6.0], 3000)
    chosen = choose_temperature(logits[:1000], labels[:1000], 0.9, around=1.0)

    def size(temperature: float) -> float:
        rule = fit_sets(logits[1000:2000], labels[1000:2000], 0.9, temperature=temperature)
        return float(rule.sets(logits[2000:]).sum(axis=1).mean())

    assert size(chosen) <= min(size(0.25), size(4.0)) + 0.05
    assert choose_temperature(logits[:5], labels[:5], 0.9, around=2.0) == 2.0  # too few to choose on


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, True, "0.9"])
def test_coverage_is_a_share(coverage: object) -> None:
    with pytest.raises(SettingError, match="coverage must be a fraction above 0 and below 1"):
        conformal_quantile([0.1], coverage)  # type: ignore[arg-type]


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="lac"):
        class_scores([[0.5, 0.5]], "lca")
