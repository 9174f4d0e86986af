"""Costs of errors, and classes that must not be missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from calprompt.classifier.settings import cost_matrix
from calprompt.errors import CalpromptError, SettingError
from calprompt.promises import DecisionRule, Evidence, OpenSetRule, Requests, divide, make_answers, make_promises
from calprompt.promises.rule import Guard

NAMES = ["good", "scratched"]
COSTS = ((0.0, 1.0), (20.0, 0.0))


def test_answers_have_the_smallest_expected_cost() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=200)
    costs = rng.uniform(0, 10, (4, 4))
    chosen = DecisionRule(costs=tuple(map(tuple, costs.tolist()))).chosen(p)
    expected = np.array([[sum(row[y] * costs[y, a] for y in range(4)) for a in range(4)] for row in p])
    assert chosen.tolist() == expected.argmin(axis=1).tolist()


def test_a_cheap_error_is_preferred_and_shown_with_its_own_probability() -> None:
    p = np.array([[0.9, 0.1], [0.97, 0.03]])
    answers = make_answers(["a", "b"], np.log(p), p, NAMES, DecisionRule(costs=COSTS))
    assert [(each.class_name, each.runner_up) for each in answers] == [("scratched", "good"), ("good", "scratched")]
    assert answers[0].probability == pytest.approx(0.1)
    unsure = make_answers(["a"], np.log(p[:1]), p[:1], NAMES, DecisionRule(min_confidence=0.8, costs=COSTS))
    assert unsure[0].decision == "unsure"


def test_costs_are_read_from_words_and_from_a_file(tmp_path: Path) -> None:
    assert cost_matrix([], NAMES) is None
    file = tmp_path / "costs.csv"
    file.write_text("truth,answer,cost\nscratched,good,20\n")
    assert cost_matrix(["scratched as good: 20"], NAMES) == cost_matrix([str(file)], NAMES) == COSTS
    for text, message in (
        ("scratched is good: 20", "scratched as good: 20"),
        ("scratch as good: 20", "Did you mean 'scratched'"),
        ("scratched as good: lots", "numbers of at least 0"),
        ("scratched as good: -1", "numbers of at least 0"),
        (str(tmp_path / "none.csv"), "cannot read"),
    ):
        with pytest.raises(CalpromptError, match=message):
            cost_matrix([text], NAMES)


def test_guarded_classes_have_their_own_threshold() -> None:
    p = np.array([[0.99, 0.01], [0.95, 0.05], [0.2, 0.8], [0.95, 0.05]])
    open_set = OpenSetRule("max_logit", 1.0, -1.0, (0.0, 0.0, 0.0), None)
    logits = np.log(p)
    logits[3] -= 5  # which none of these would take
    rule = DecisionRule(min_confidence=0.5, open_set=open_set, guards=(Guard(1, 0.05, 0.01, True),))
    assert rule.decide(logits, p) == ["answer", "unsure", "answer", "unsure"]
    answers = make_answers("abcd", logits, p, NAMES, rule)
    assert [each.guarded for each in answers] == [None, "scratched", "scratched", "scratched"]
    assert DecisionRule.from_dict(rule.to_dict()) == rule


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_how_many_may_be_missed_is_the_exact_binomial(share: float) -> None:
    requests = Requests()
    fewest = requests.fewest_of_class(share)
    assert fewest is not None
    assert (1 - share) ** fewest <= 0.05 < (1 - share) ** (fewest - 1)
    for n in (fewest, 2 * fewest, 3 * fewest + 7):
        k = requests.most_missed(share, n)
        assert k is not None
        assert binom.cdf(k, n, share) <= 0.05 < binom.cdf(k + 1, n, share)
    assert requests.most_missed(share, fewest, unseen=1) is None


def folder(counts: list[int]) -> list[int]:
    return [label for label, count in enumerate(counts) for _ in range(count)]


def test_guard_images_are_used_for_nothing_else() -> None:
    labels = folder([200, 300])
    requests = Requests(target_error=0.1, never_miss=(("scratched", 0.05),))
    found = divide(labels, NAMES, requests, most_tuned=64)
    parts = [found.tune, found.promise, found.unused, found.guard]
    assert sorted(index for part in parts for index in part) == list(range(500))
    assert {labels[index] for index in found.guard} == {1}
    assert len(found.guard) >= 59
    assert divide(labels, NAMES, Requests(target_error=0.1), most_tuned=64).guard == ()


def test_one_image_of_a_group_and_groups_of_two_classes_count_as_missed() -> None:
    labels = [*folder([100, 400]), 0, 1]
    groups = [*range(100), *(1000 + number // 2 for number in range(400)), 5000, 5000]
    found = divide(labels, NAMES, Requests(target_error=0.1, never_miss=(("scratched", 0.05),)), groups=groups)
    assert len({groups[index] for index in found.guard}) == len(found.guard) >= 59
    assert 5000 not in {groups[index] for index in found.guard}
    assert found.unguarded == (1 / 401,)


def test_too_few_images_are_refused_with_how_many_it_takes() -> None:
    requests = Requests(target_error=0.1, never_miss=(("scratched", 0.01),))
    found = divide(folder([100, 100]), NAMES, requests)
    refusal = next(each for each in found.refusals if each.kind == "never miss")
    assert "299" in refusal.detail
    assert refusal.needed == 598
    assert "'scratched'" in refusal.text
    with pytest.raises(CalpromptError, match="Did you mean 'scratched'"):
        divide(folder([100, 100]), NAMES, Requests(never_miss=(("scratch", 0.01),)))
    with pytest.raises(SettingError):
        Requests(never_miss=(("scratched", 0.0),))


def evidence(n: int, rng: np.random.Generator) -> Evidence:
    labels = rng.integers(0, 2, n)
    logits = np.stack([np.zeros(n), 2 * rng.normal(size=n) + 3 * (2 * labels - 1)], axis=1)
    return Evidence.of(logits, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), labels)


def test_never_miss_promises_are_broken_within_their_level() -> None:
    rng = np.random.default_rng(1)
    requests = Requests(never_miss=(("scratched", 0.05),))
    world = evidence(200_000, rng)
    own = np.sort(world.probabilities[world.labels == 1, 1])
    missed = []
    for _ in range(400):
        rule, (promise,) = make_promises(
            requests, evidence(40, rng), evidence(100, rng), class_names=NAMES, guard=evidence(260, rng)
        )
        assert promise.status == "made"
        missed.append(float(np.searchsorted(own, rule.guards[0].threshold) / len(own)))
    assert np.mean(np.array(missed) > 0.05) <= 0.08  # 5 % and three standard errors
    assert np.mean(missed) > 0.01  # and not by calling everything scratched


def test_too_few_images_set_a_threshold_without_a_promise() -> None:
    rng = np.random.default_rng(2)
    requests = Requests(never_miss=(("scratched", 0.05),))
    rule, (promise,) = make_promises(requests, evidence(100, rng), evidence(50, rng), class_names=NAMES)
    assert promise.status == "refused"
    assert not rule.guards[0].promised
    assert 0 < rule.guards[0].threshold < 1
