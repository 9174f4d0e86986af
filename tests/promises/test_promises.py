"""Promises on held-out images: kept over many draws, refused with the reason, withdrawn when classes are added."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.errors import UnknownNameError
from calprompt.kernel import open_set_scores, softmax
from calprompt.promises import (
    DecisionRule,
    Evidence,
    OpenSetRule,
    Promise,
    Requests,
    Unseen,
    class_rate_interval,
    make_answers,
    make_promises,
    rejection_threshold,
)


def images(n: int, seed: int, strength: float = 2.5, classes: int = 5) -> Evidence:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += rng.uniform(0, 2 * strength, n)
    return Evidence.of(logits, softmax(logits), labels)


@pytest.mark.parametrize("open_set", [False, True])
def test_the_promise_on_errors_is_kept(open_set: bool) -> None:
    """In at most 5 % of draws is the error among answered images above the target."""
    rule = OpenSetRule("max_logit", 1.0, 1.5, (0.05, 0, 1), None) if open_set else None
    world = images(20_000, seed=1)
    requests = Requests(0.1, None)
    broken = made = 0
    trials = 600
    for trial in range(trials):
        found, (promise,) = make_promises(
            requests, images(80, seed=10_000 + trial), images(120, seed=20_000 + trial), open_set=rule
        )
        if promise.status == "made":
            made += 1
            answered = found.answered(world.logits, world.probabilities)
            broken += (~world.correct[answered]).mean() > 0.1
    assert made > trials / 2
    assert broken / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_a_promise_that_fails_says_what_would_help() -> None:
    rule, promises = make_promises(Requests(0.05, 0.9), images(60, 1, 8.0), images(40, 3, 8.0), total=100)
    error, sets = promises
    assert error.status == "refused"
    assert error.needed is not None
    assert error.needed > 100
    assert "held-out images with a confidence of" in error.detail
    assert f"about {error.needed} images in all would do" in error.sentence
    assert rule.min_confidence == 0.95, "calibrated answers below it are called unsure"
    assert not rule.promised
    assert sets.status == "made"
    unclear = make_promises(Requests(0.05), images(60, 1), images(40, 2), total=100)[1][0]
    assert "which are too few images to tell" in unclear.detail
    hopeless = make_promises(Requests(0.05), images(60, 1, 0.1), images(400, 2, 0.1))[1][0]
    assert hopeless.status == "refused"
    assert hopeless.needed is None


def test_classes_never_held_out_are_counted_and_named() -> None:
    requests = Requests(0.2, 0.9)
    few, many = Unseen(("emu", "yak"), 0.02), Unseen(("emu", "yak"), 0.5)
    error, sets = make_promises(requests, images(100, 1), images(200, 2), unseen=few)[1]
    for promise in (error, sets):
        assert promise.status == "made"
        assert promise.whole
        assert promise.excluded == ("emu", "yak")
        assert "the images of emu, yak (2 % of the images), of which none could be held out, count" in promise.sentence
    assert "count as wrong, like 5 more held-out images" in error.sentence
    error, sets = make_promises(requests, images(100, 1), images(200, 2), unseen=many)[1]
    assert error.status == "refused"
    assert "emu, yak (50 % of the images)" in error.sentence
    assert sets.status == "made"
    assert not sets.whole
    assert sets.text.endswith("90 % of the time, for images of the other classes than emu, yak")
    assert "nothing is promised for images of emu, yak (50 % of the images)" in sets.sentence
    assert Promise.from_dict(json.loads(json.dumps(sets.to_dict()))) == sets


def test_a_promise_holds_even_if_every_unseen_image_is_wrong() -> None:
    """Five per cent of the images are of a class that is always wrong, and never held out."""
    unseen, requests, trials = Unseen(("emu",), 0.05), Requests(0.2, 0.9), 300
    world = images(4_000, seed=1)
    covered, broken = [], 0
    for trial in range(trials):
        rule, (error, _) = make_promises(requests, images(80, 30_000 + trial), images(100, trial), unseen=unseen)
        inside = rule.sets[0].sets(world.logits)[np.arange(len(world)), world.labels]
        covered.append(0.95 * inside.mean())
        if error.status == "made":
            answered = rule.answered(world.logits, world.probabilities)
            right = 0.95 * (world.correct & answered).mean()
            broken += 1 - right / (0.95 * answered.mean() + 0.05) > 0.2
    assert np.mean(covered) >= 0.9 - 3 * np.std(covered) / math.sqrt(trials)
    assert broken / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_sets_for_this_very_model() -> None:
    requests = Requests(coverage=0.9, coverage_level=0.95)
    rule, (promise,) = make_promises(requests, images(60, 1), images(60, 2))
    assert promise.sentence.startswith(
        "Promised: the set contains the truth at least 90 % of the time for this very model (95 % sure; from 60"
    )
    assert rule.sets[0].level == 0.95
    assert DecisionRule.from_dict(rule.to_dict()) == rule
    (refused,) = make_promises(requests, images(60, 1), images(28, 2))[1]
    assert refused.status == "refused"
    world = images(4_000, seed=1)
    kept = []
    for trial in range(300):
        rule, _ = make_promises(requests, images(60, 30_000 + trial), images(60, trial))
        kept.append(rule.sets[0].sets(world.logits)[np.arange(len(world)), world.labels].mean() >= 0.9)
    assert np.mean(kept) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 300)


def test_nothing_held_out_promises_nothing() -> None:
    empty = images(0, 0)
    rule, promises = make_promises(Requests(0.1, 0.9), images(60, 1), empty)
    assert [promise.status for promise in promises] == ["refused", "refused"]
    assert rule.sets[0].sets(images(3, 1).logits).all()


def test_withdrawing_is_visible_in_every_answer() -> None:
    known = images(200, 2)
    rule, promises = make_promises(Requests(0.2, 0.9), images(100, 1), known)
    assert promises[0].status == "made"
    names = list("abcde")
    answers = make_answers(["x"] * 200, known.logits, known.probabilities, names, rule, set_rule=rule.sets[0])
    assert all(answer.promised == (answer.decision == "answer") for answer in answers), "of nothing else"
    assert {answer.decision for answer in answers} == {"answer", "unsure"}
    assert all(answer.prediction_set[0] == answer.class_name for answer in answers if answer.prediction_set)
    after = make_answers(["x"] * 200, known.logits, known.probabilities, names, rule.without_promises("other classes"))
    assert not any(answer.promised for answer in after)
    assert (
        promises[0].withdrawn("other classes").sentence.startswith("Withdrawn: at most 20 % of its answers are wrong")
    )
    own = rule.with_threshold(0.99)
    assert not own.promised
    assert DecisionRule.from_dict(rule.to_dict()) == rule


@given(st.lists(st.floats(0, 1), min_size=0, max_size=60), st.sampled_from([0.01, 0.05, 0.2]))
def test_few_known_images_are_rejected(scores: list[float], rejects: float) -> None:
    threshold = rejection_threshold(scores, rejects)
    assert sum(score < threshold for score in scores) <= rejects * (len(scores) + 1)


def test_the_share_of_rejects_holds_for_the_next_image() -> None:
    rng = np.random.default_rng(0)
    below = np.mean([rng.random() < rejection_threshold(rng.random(30), 0.1) for _ in range(20_000)])
    assert below == pytest.approx(3 / 31, abs=0.01)


def test_the_interval_of_classes_covers_another_set_of_classes() -> None:
    rng = np.random.default_rng(1)
    trials, covered = 2000, 0
    for _ in range(trials):
        rates, other = rng.beta(2, 4, 12), rng.beta(2, 4, 12)
        interval = class_rate_interval(rates)
        assert interval is not None
        covered += interval[1] <= other.mean() <= interval[2]
    assert covered / trials >= 0.93
    assert class_rate_interval([0.5]) is None
    same = class_rate_interval([0.0, 0.0, 0.0])
    assert same is not None
    assert same[2] > 0.1, "three classes without an error are no certainty"


def test_scores_of_none_of_these() -> None:
    logits = np.random.default_rng(0).normal(size=(20, 6))
    assert open_set_scores(logits, "energy", 1e-3) == pytest.approx(open_set_scores(logits, "max_logit"), abs=1e-2)
    assert open_set_scores(logits, "probability") == pytest.approx(softmax(logits).max(axis=1))
    with pytest.raises(UnknownNameError, match="max_logit"):
        open_set_scores(logits, "maxlogit")
