"""The script decides as the library's rules do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calprompt.export import runtime
from calprompt.kernel import softmax
from calprompt.promises import DecisionRule, OpenSetRule, SetRule
from calprompt.promises.conformal import SCORES as SET_SCORES
from calprompt.promises.open_set import SCORES as OPEN_SET_SCORES
from calprompt.promises.rule import Guard

EXACT = 1e-12  # the same arithmetic in float64


def drawn_logits(seed: int, n: int, classes: int) -> np.ndarray:
    """With ties among them."""
    return np.random.default_rng(seed).normal(0, 3, (n, classes)).round(1).astype(np.float32)


@pytest.mark.parametrize("score", OPEN_SET_SCORES)
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(0, 6), classes=st.integers(1, 6), confidence=st.floats(0, 1))
def test_decisions(score: str, seed: int, n: int, classes: int, confidence: float) -> None:
    z = drawn_logits(seed, n, classes)
    p = softmax(z.astype(np.float64)) if n else np.empty((0, classes))
    costs = tuple(map(tuple, np.random.default_rng(seed).integers(0, 9, (classes, classes)).astype(float).tolist()))
    guards = (Guard(0, 0.2, 0.05, promised=True), Guard(classes - 1, 0.4, 0.01))
    for threshold in (0.4, 2.05, -math.inf):
        open_set = OpenSetRule(score, 1.7, threshold, (0.1, 0.0, 0.2), (0.1, 0.0, 0.3))
        for rule in (
            DecisionRule(confidence, open_set=open_set),
            DecisionRule(open_set=open_set),
            DecisionRule(confidence, 0.1),
            DecisionRule(confidence, 0.1, open_set, costs=costs, guards=guards),
        ):
            plain = rule.to_dict()
            assert DecisionRule.from_dict(plain) == rule
            chosen, guarded = runtime.chosen_classes(p, plain)
            assert chosen.tolist() == rule.chosen(p).tolist()
            assert guarded.tolist() == rule.guarded(p).tolist()
            ours = runtime.decide(z, p, plain["min_confidence"], plain["open_set"], chosen, guarded)
            assert ours == (rule.decide(z, p) if n else [])


@pytest.mark.parametrize("score", SET_SCORES)
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n=st.integers(1, 6), classes=st.integers(1, 6), quantile=st.floats(0, 1))
def test_sets(score: str, seed: int, n: int, classes: int, quantile: float) -> None:
    z = drawn_logits(seed, n, classes)
    quantiles: list[tuple[float, ...]] = [(quantile,), (math.inf,), (math.inf, *[quantile] * (classes - 1))]
    for each in quantiles:
        rule = SetRule(0.9, len(each) > 1, score, 1.3, each, (9,) * len(each))
        np.testing.assert_array_equal(runtime.prediction_sets(z, rule.to_dict()), rule.sets(z))


def test_scores_of_a_newer_version_are_refused() -> None:
    z, none = np.zeros((1, 2)), np.zeros(1, dtype=np.int64)
    newer: list[Any] = [
        lambda: runtime.decide(z, z, None, {"score": "other", "temperature": 1.0, "threshold": 0.5}, none, none - 1),
        lambda: runtime.prediction_sets(z, {"score": "other", "temperature": 1.0, "quantiles": [0.5]}),
    ]
    for call in newer:
        with pytest.raises(runtime.NewerModelError, match=r"use the predict\.py that was exported with the model"):
            call()
