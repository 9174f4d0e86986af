"""The watch of a promise: false alarms no more often than stated, changes found, the same however marks arrive."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import bernoulli

from calprompt.errors import DamagedFileError, NewerFormatError, SettingError
from calprompt.kernel import softmax
from calprompt.promises import DecisionRule, Evidence, Requests, Watch, make_promises
from calprompt.promises.watch import RATIOS, telling_stretch, weight_from

marks = st.lists(st.booleans(), max_size=40)
targets = st.floats(0.001, 0.9)
QUIET = 1e-90  # of false alarms, so that there is no alarm and the evidence can be looked at


def after(watch: Watch, path: tuple[bool, ...]) -> Watch:
    return watch.mark_all(path)


@given(marks, targets)
def test_the_evidence_is_the_sum_over_sizes_and_beginnings_of_a_change(path: list[bool], target: float) -> None:
    """By its definition, in exact fractions."""
    error, n = Fraction(target), len(path)
    total = Fraction(weight_from(n + 1))
    for ratio, begin in itertools.product(map(Fraction, RATIOS), range(1, n + 1)):
        rate = ratio * error / (1 + error * (ratio - 1))
        term = (Fraction(weight_from(begin)) - Fraction(weight_from(begin + 1))) / len(RATIOS)
        for wrong in path[begin - 1 :]:
            term *= rate / error if wrong else (1 - rate) / (1 - error)
        total += term
    assert Watch(target, QUIET).mark_all(path).evidence == pytest.approx(float(total), rel=1e-12)


@pytest.mark.parametrize("target", [0.01, 0.1, 0.6])
def test_against_the_likelihoods_of_scipy(target: float) -> None:
    n = 1500
    wrong = np.random.default_rng(0).random(n) < target * 1.3
    weights = np.log(-np.diff(np.arange(1, n + 2) ** -0.25))
    rates = [odds / (1 + odds) for odds in np.array(RATIOS) * target / (1 - target)]
    gains = [bernoulli.logpmf(wrong, rate) - bernoulli.logpmf(wrong, target) for rate in rates]
    terms = [weights + np.cumsum(gain[::-1])[::-1] - math.log(len(RATIOS)) for gain in gains]
    found = math.log(Watch(target, QUIET).mark_all(wrong).evidence)
    assert found == pytest.approx(logsumexp([*np.concatenate(terms), math.log((n + 1) ** -0.25)]), abs=1e-9)


@pytest.mark.parametrize("target", [0.01, 0.1, 0.5])
def test_no_rate_that_keeps_the_promise_lets_evidence_grow(target: float) -> None:
    """After each of all paths of up to nine marks, the mean after the next mark is no larger than before it."""
    start = Watch(target, QUIET)
    for length in range(10):
        for path in itertools.product([False, True], repeat=length):
            watch = after(start, path)
            right, wrong = watch.mark(False).evidence, watch.mark(True).evidence
            for rate in (0.0, target / 2, target):
                assert rate * wrong + (1 - rate) * right <= watch.evidence * (1 + 1e-14)
            mean = target * wrong + (1 - target) * right
            assert mean == pytest.approx(watch.evidence, rel=1e-13), "at the promised rate nothing is given away"


@pytest.mark.parametrize(("target", "stated"), [(0.05, 0.5), (0.2, 0.3), (0.5, 0.1)])
def test_no_scheme_of_marks_that_keeps_the_promise_alarms_more_often_than_stated(target: float, stated: float) -> None:
    """The most likely false alarm within twelve marks, if whoever chooses the rates knows all marks before."""

    @cache
    def chance(path: tuple[bool, ...]) -> float:
        if after(Watch(target, stated), path).broken:
            return 1.0
        if len(path) == 12:
            return 0.0
        right, wrong = chance((*path, False)), chance((*path, True))
        return max(right, target * wrong + (1 - target) * right)

    assert 0 < chance(()) <= stated


@pytest.mark.parametrize(
    "rate",
    [lambda last: 0.1, lambda last: 0.1 if last else 0.05, lambda last: 0.0 if last else 0.1],
    ids=["steady", "errors attract errors", "errors repel errors"],
)
def test_false_alarms_are_as_rare_as_stated(rate: Callable[[bool], float]) -> None:
    rng = np.random.default_rng(3)
    streams, alarms = 300, 0
    for _ in range(streams):
        path: list[bool] = []
        for chance in rng.random(400):
            path.append(bool(chance < rate(bool(path and path[-1]))))
        alarms += Watch(0.1, 0.1).mark_all(path).broken
    assert alarms / streams <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / streams)


@pytest.mark.parametrize("clean", [0, 100, 3000])
def test_a_change_is_found_also_after_a_long_clean_time(clean: int) -> None:
    rng = np.random.default_rng(4)
    delays = []
    for _ in range(20):
        watch = Watch(0.05).mark_all(rng.random(clean) < 0.05)
        assert not watch.broken
        later = watch.mark_all(rng.random(1000) < 0.25)
        assert later.broken_at is not None
        delays.append(later.broken_at - clean)
    assert np.median(delays) < 100


def test_a_hundred_thousand_correct_marks_raise_no_alarm_and_lose_no_power() -> None:
    rng = np.random.default_rng(5)
    watch = Watch(0.05).mark_all(rng.random(100_000) < 0.045)
    assert not watch.broken
    later = watch.mark_all([True] * 20)
    assert later.broken_at is not None
    assert len(json.dumps(watch.to_dict())) < 500, "the record does not grow"
    far = Watch(0.05, marked=10**12, recent="0" * 100, sums=(1e-20,) * len(RATIOS))
    assert far.mark_all([True] * 30).broken


@given(st.lists(st.lists(st.booleans(), max_size=60), max_size=6), targets, st.sampled_from([0.01, 0.3]))
def test_it_does_not_matter_how_marks_are_bundled(bundles: list[list[bool]], target: float, stated: float) -> None:
    """The same to the last bit, so that a list of marks can be played again."""
    path = [mark for bundle in bundles for mark in bundle]
    start = Watch(target, stated)
    in_bundles = one_by_one = start
    for bundle in bundles:
        in_bundles = in_bundles.mark_all(bundle)
    for mark in path:
        one_by_one = one_by_one.mark(mark)
    at_once = start.mark_all(path)
    assert in_bundles == one_by_one == at_once == start.mark_all(np.array(path, dtype=bool))
    assert (at_once.marked, at_once.wrong) == (len(path), sum(path))
    assert at_once.recent == "".join(str(int(mark)) for mark in path[: at_once.broken_at])[-100:]


@given(marks, marks, targets)
def test_json_record_restores_the_watch(before: list[bool], later: list[bool], target: float) -> None:
    watch = Watch(target, 0.05).mark_all(before)
    read = Watch.from_dict(json.loads(json.dumps(watch.to_dict(), allow_nan=False)))
    assert read == watch
    assert read.mark_all(later) == watch.mark_all(later)


@settings(deadline=None)
@given(
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(1e-100, 0.5),
    st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=5),
)
def test_no_marks_break_the_arithmetic(target: float, stated: float, runs: list[tuple[bool, int]]) -> None:
    watch = Watch(target, stated)
    for wrong, length in runs:
        watch = watch.mark_all([wrong] * length)
        assert math.isfinite(watch.evidence)
        assert watch.evidence > 0
        assert Watch.from_dict(watch.to_dict()) == watch
        assert "nan" not in watch.sentence


@given(marks, st.integers(0, 39), targets)
def test_one_more_error_never_speaks_for_the_model(path: list[bool], place: int, target: float) -> None:
    if place < len(path):
        worse = [*path[:place], True, *path[place + 1 :]]
        assert Watch(target, QUIET).mark_all(worse).evidence >= Watch(target, QUIET).mark_all(path).evidence
    assert not Watch(target, 0.5).mark_all([False] * len(path)).broken


def test_an_alarm_stays() -> None:
    watch = Watch(0.1).mark_all([False] * 50 + [True] * 10)
    assert watch.broken_at is not None
    later = watch.mark_all([False] * 1000)
    assert (later.broken, later.broken_at, later.evidence) == (True, watch.broken_at, watch.evidence)
    assert (later.marked, later.wrong) == (1060, 10)
    assert later.recent == watch.recent, "what led to the alarm can be told later"


def test_sentences() -> None:
    promise = "'at most 10 % of its answers are wrong'"
    watch = Watch(0.1)
    assert watch.sentence == f"No answer was marked yet, so nothing is known about {promise}."
    assert watch.mark(False).sentence == (
        f"Of 1 answer that was marked, 0 were wrong; nothing speaks against {promise}."
    )
    assert watch.mark(True).sentence == (
        f"Of 1 answer that was marked, 1 was wrong; that is more than {promise} allows on average, but may still be "
        "chance."
    )
    good = watch.mark_all([True] * 3 + [False] * 117)
    assert good.sentence == (
        f"Of 120 answers that were marked, 3 were wrong (0 of the last 100); nothing speaks against {promise}."
    )
    doubtful = good.mark_all([True] * 6)
    assert 10 <= doubtful.evidence < 100
    assert doubtful.sentence == (
        f"Of 126 answers that were marked, 9 were wrong, 6 of the last 6; that speaks against {promise}, but may "
        "still be chance."
    )
    broken = doubtful.mark_all([True] * 4 + [False] * 300)
    assert broken.sentence == (
        f"Of 430 answers that were marked, 13 were wrong: the promise {promise} no longer holds (the alarm came with "
        f"mark {broken.broken_at}, when 7 of the last 7 were wrong; if the promise did hold, an alarm would come at "
        "most once in 100 models)."
    )
    assert broken.broken_at == 127
    exactly = Watch(0.29).mark_all([True, False, False] * 29 + [False] * 13)
    assert exactly.sentence.endswith("nothing speaks against 'at most 29 % of its answers are wrong'.")


@given(st.text("01", min_size=1, max_size=100), targets)
def test_the_stretch_in_the_sentence_is_worse_than_promised(recent: str, target: float) -> None:
    wrong, length = telling_stretch(recent, target)
    assert wrong == recent[-length:].count("1")
    if recent[-1] == "1":
        assert wrong > target * length, "an alarm comes with an error, and is explained by errors"


def test_the_watch_of_a_fitted_model() -> None:
    """Answers like the held-out images keep the promise; blurred ones break it, and the watch says so."""
    rng = np.random.default_rng(6)

    def images(n: int, strength: float) -> Evidence:
        labels = rng.integers(0, 5, n)
        logits = rng.normal(size=(n, 5))
        logits[np.arange(n), labels] += rng.uniform(0, strength, n)
        return Evidence.of(logits, softmax(1.5 * logits), labels)

    rule, (promise,) = make_promises(Requests(0.1), images(200, 6.0), images(400, 6.0))
    assert promise.status == "made"
    watch = Watch.of(rule)
    assert watch.target_error == 0.1

    def marks_of(world: Evidence) -> Any:
        return ~world.correct[rule.answered(world.logits, world.probabilities)]

    usual = watch.mark_all(marks_of(images(2000, 6.0)))
    assert not usual.broken
    assert usual.mark_all(marks_of(images(2000, 1.0))).broken
    assert promise.text in usual.sentence


def test_watch_needs_a_promise() -> None:
    with pytest.raises(SettingError, match="the model promises no error rate"):
        Watch.of(DecisionRule(min_confidence=0.9))
    with pytest.raises(SettingError, match="no error rate: classes were added"):
        Watch.of(DecisionRule(0.9, 0.1).without_promises("classes were added"))


@pytest.mark.parametrize("mark", ["wrong", "", None, 2, -1, 0.0, 1.0, math.nan, [True], np.float64(1.0)])
def test_marks_are_true_or_false(mark: Any) -> None:
    """The word "right" is true for Python, and must not count as an error."""
    watch = Watch(0.1).mark(True)
    with pytest.raises(SettingError, match="a mark must be True"):
        watch.mark(mark)
    with pytest.raises(SettingError, match="a mark must be True"):
        watch.mark_all([False, mark])


def test_marks_from_arrays_tables_and_generators_count_the_same() -> None:
    path = [True, False, False, True]
    expected = Watch(0.1).mark_all(path)
    for given_as in (
        np.array(path),
        np.array(path, dtype=np.uint8),
        tuple(path),
        [1, 0, 0, 1],
        (mark for mark in path),
    ):
        assert Watch(0.1).mark_all(given_as) == expected
    assert Watch(0.1).mark_all([]) == Watch(0.1)
    with pytest.raises(SettingError, match="use mark for one"):
        Watch(0.1).mark_all(True)  # type: ignore[arg-type]


def test_shares_that_are_fractions_can_be_written_down() -> None:
    assert json.loads(json.dumps(Watch(Fraction(1, 10)).to_dict())) == Watch(0.1).to_dict()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target_error": 0}, "target_error must be a fraction"),
        ({"target_error": 5}, "target_error must be a fraction"),
        ({"target_error": math.nan}, "target_error must be a fraction"),
        ({"target_error": 0.1, "false_alarms": 0}, "false_alarms must be a fraction"),
        ({"target_error": 0.1, "false_alarms": 0.6}, "false_alarms must be between"),
        ({"target_error": 0.1, "false_alarms": 1e-200}, "false_alarms must be between"),
    ],
)
def test_invalid_settings_raise(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        Watch(**options)


def changed(**values: Any) -> dict[str, Any]:
    return {**Watch(0.1).mark_all([False] * 150 + [True] * 3).to_dict(), **values}


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        None,
        changed(format=0),
        changed(format=None),
        changed(target_error=2),
        changed(target_error="0.1"),
        changed(target_error=True),
        changed(false_alarms=None),
        changed(marked=2),
        changed(marked=153.0),
        changed(marked=-1),
        changed(marked=True),
        changed(marked=10**400),
        changed(wrong=154),
        changed(wrong=2),
        changed(wrong=99),
        changed(recent="0"),
        changed(recent="x" * 100),
        changed(recent=None),
        changed(recent=["0"] * 97 + ["1"] * 3),
        changed(sums=[0.1]),
        changed(sums=None),
        changed(sums=[math.nan] * len(RATIOS)),
        changed(sums=[-0.1] * len(RATIOS)),
        changed(sums=[1e6] * len(RATIOS)),
        changed(broken_at=5),
        changed(broken_at=500, sums=[1e6] * len(RATIOS)),
        changed(broken_at=0, sums=[1e6] * len(RATIOS)),
        changed(broken_at="5", sums=[1e6] * len(RATIOS)),
        changed(more=1),
    ],
)
def test_a_damaged_record_is_refused(values: Any) -> None:
    with pytest.raises(DamagedFileError, match="begin one from the marks"):
        Watch.from_dict(values)


def test_a_newer_record_is_refused_as_such() -> None:
    with pytest.raises(NewerFormatError, match="update calprompt"):
        Watch.from_dict(changed(format=2))
