"""The headline: it says what the predictions say, and whether a difference may be chance."""

from __future__ import annotations

import numpy as np
import pytest

from calprompt.metrics import Predictions, predictions
from calprompt.report.page.document import Number, RunIdentity
from calprompt.report.page.headline import headline
from calprompt.report.page.measured import METRICS, Measurements, Result
from calprompt.report.page.settings import ReportSettings
from calprompt.report.page.sure import sure_shares, sure_table
from calprompt.results.methods import Method, headline_pairs, methods_of, plain_of

PLAIN, OTHER, ZERO = (
    Method("coop", "ce", "none", ()),
    Method("coop", "tcpt", "none", ()),
    Method("zero-shot", "", "none", ()),
)
QUICK = ReportSettings(bootstrap=200)


def sample(right: float, confidence: float, n: int = 400, seed: int = 0) -> Predictions:
    """Predictions of one confidence, a share of which is right."""
    labels = np.zeros(n, dtype=int)
    order = np.random.default_rng(seed).permutation(n)
    probs = np.tile([confidence, 1 - confidence], (n, 1))
    probs[order[: round((1 - right) * n)]] = [1 - confidence, confidence]
    return predictions(probs, labels)


def measured(*parts: tuple[Method, str, int, Predictions], split: str = "novel") -> Measurements:
    found = Measurements([RunIdentity("run", "abc", "a run")], 200)
    for method, dataset, seed, predicted in parts:
        row = {"dataset": dataset, "split": split, "seed": seed, "images": len(predicted.labels)}
        values = dict.fromkeys(METRICS, Number(0.1))
        values |= {"accuracy": Number(float(predicted.correct.mean()))}
        values |= {"confidence_gap": Number(float(predicted.confidence.mean() - predicted.correct.mean()))}
        found.results.append(Result(row, method, (0,), values, predicted))
    return found


def two(plain: float, other: float, confidence: float = 0.95, dataset: str = "toys") -> Measurements:
    parts = [(PLAIN, dataset, seed, sample(plain, confidence, seed=seed)) for seed in (1, 2, 3)]
    parts += [(OTHER, dataset, seed, sample(other, confidence, seed=10 + seed)) for seed in (1, 2, 3)]
    return measured(*parts)


def test_a_clear_difference_is_told_without_a_doubt() -> None:
    results = two(0.7, 0.9)
    shares = sure_shares(results, QUICK)
    sentences, fine = headline(results, shares)
    assert sentences == [
        "On classes it never saw (toys), CoOp is right 70 times out of 100 when it says that it is 90 % sure or more; "
        "with TCPT 90 times."
    ]
    assert "1,200 of 1,200 predictions (it said 95 % on average" in fine[0]
    assert "The difference is +20 of 100 (95 % interval +1" in fine[0]
    table = sure_table(shares)
    assert table is not None
    assert [row.cells[7].value for row in table.rows] == pytest.approx([0.7, 0.9])  # type: ignore[union-attr]


def test_what_may_be_chance_is_called_that() -> None:
    results = two(0.80, 0.81)
    sentences, _ = headline(results, sure_shares(results, QUICK))
    assert sentences[0].endswith("with TCPT 81 times, a difference that may be chance.")


def test_the_level_is_the_highest_with_enough_predictions() -> None:
    results = two(0.7, 0.75, confidence=0.72)
    assert {share.level for share in sure_shares(results, QUICK)} == {0.7}
    few = measured(
        (PLAIN, "toys", 1, sample(0.5, 0.95, n=20)),
        (OTHER, "toys", 1, sample(0.6, 0.95, n=20)),
    )
    assert sure_shares(few, QUICK) == []
    sentences, fine = headline(few, [])
    assert "CoOp is right 50 times out of 100 and says 95" in sentences[0]
    assert "one dataset cannot show what others would" in fine[0]


def test_many_datasets_have_one_sentence_with_datasets_as_the_unit() -> None:
    parts = []
    for number, dataset in enumerate("abcde"):
        parts.append((PLAIN, dataset, 1, sample(0.6 + 0.02 * number, 0.95)))
        parts.append((OTHER, dataset, 1, sample(0.8 + 0.01 * number, 0.95)))
    results = measured(*parts)
    sentences, fine = headline(results, sure_shares(results, QUICK))
    assert len(sentences) == 1
    assert "(5 datasets), CoOp is right 64 times out of 100" in sentences[0]
    assert "above 0 on 5 of 5" in fine[0]
    assert "chance" not in sentences[0]


def test_one_method_is_compared_with_the_untuned_model_or_with_nothing() -> None:
    results = measured((OTHER, "toys", 1, sample(0.9, 0.95)), (ZERO, "toys", 1, sample(0.5, 0.95)))
    sentences, _ = headline(results, sure_shares(results, QUICK))
    assert "the untuned model is right 50 times" in sentences[0]
    assert "CoOp + TCPT 90 times" in sentences[0]
    alone = measured((PLAIN, "toys", 1, sample(0.9, 0.95)))
    sentences, fine = headline(alone, [])
    assert "CoOp is right 90 times out of 100" in sentences[0]
    assert "nothing of the same kind" in fine[0]
    assert headline(measured(), [])[0] == ["There is no finished run with results in this report."]


def test_methods_of_one_name_are_told_apart() -> None:
    row = {"tuner": "coop", "loss": "ce", "model": "tuned", "calibrator": "none", "shots": 16, "epochs": 5}
    names = [method.name for method in methods_of([row, {**row, "shots": 4}, {**row, "loss": "tcpt"}])]
    assert names == ["CoOp (shots 16)", "CoOp (shots 4)", "CoOp + TCPT"]
    many = methods_of([row, {**row, "shots": 4}, {**row, "loss": "tcpt", "shots": 4}])
    assert plain_of(many[2], many) == many[1]
    assert plain_of(many[0], many) is None
    assert headline_pairs(many) == [(many[1], many[2])]
