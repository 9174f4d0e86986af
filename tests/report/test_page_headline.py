"""The headline: it says what the predictions say, and whether a difference may be chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calprompt.metrics import Predictions, predictions
from calprompt.report.page.comparisons import compare_datasets, sure_shares, sure_table
from calprompt.report.page.document import ReportSettings, RunIdentity
from calprompt.report.page.headline import headline
from calprompt.report.page.measured import METRICS, Measurements, Result
from calprompt.report.table import Number
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
        gap = float(predicted.confidence.mean() - predicted.correct.mean())
        values |= {"confidence_gap": Number(gap), "ece": Number(abs(gap))}  # all have one confidence
        found.results.append(Result(row, method, (0,), values, predicted))
    return found


def two(plain: float, other: float, confidence: float = 0.95, dataset: str = "toys") -> Measurements:
    parts = [(PLAIN, dataset, seed, sample(plain, confidence, seed=seed)) for seed in (1, 2, 3)]
    parts += [(OTHER, dataset, seed, sample(other, confidence, seed=10 + seed)) for seed in (1, 2, 3)]
    return measured(*parts)


def told(results: Measurements) -> tuple[list[str], list[str]]:
    return headline(results, sure_shares(results, QUICK), compare_datasets(results, QUICK), QUICK)


def test_headline_names_ece_and_accuracy_first() -> None:
    results = two(0.7, 0.9)
    sentences, fine = told(results)
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "On classes it never saw (toys), TCPT lowers the ECE of CoOp (25.00 to 5.00: -20.00 [-2"
    )
    assert "It raises its accuracy (70.00 to 90.00: +20.00 [+1" in sentences[0]
    assert "over 10 bins: less is better" in fine[0]
    assert "CoOp is right 70 times out of 100 when it says that it is 90 % sure or more; with TCPT 90 times." in fine[1]
    assert "CoOp was at least 90 % sure on 1,200 of 1,200 images (it said 95 % on average" in fine[1]
    table = sure_table(sure_shares(results, QUICK))
    assert table is not None
    assert [row.cells[7].value for row in table.rows] == pytest.approx([0.7, 0.9])  # type: ignore[union-attr]


def test_headline_says_what_may_be_chance() -> None:
    sentences, fine = told(two(0.80, 0.81))
    assert "TCPT does not clearly change the ECE of CoOp (15.00 to 14.00: -1.00 [" in sentences[0]
    assert "It does not clearly change its accuracy (80.00 to 81.00: +1.00 [" in sentences[0]
    assert "with TCPT 81 times, a difference that may be chance." in fine[1]


def test_headline_shows_datasets_that_get_worse() -> None:
    """Lower on one dataset and higher on another: both, in the same sentence."""
    results = two(0.7, 0.9)
    results.results += two(0.9, 0.7, dataset="tools").results
    (sentence,), _ = told(results)
    assert "lowers the ECE of CoOp on toys (25.00 to 5.00: " in sentence
    assert "and raises it on tools (5.00 to 25.00: +20.00 [" in sentence
    assert "raises accuracy on toys (" in sentence
    assert "lowers it on tools (" in sentence


def test_confidence_level_is_the_highest_with_enough_predictions() -> None:
    results = two(0.7, 0.75, confidence=0.72)
    assert {share.level for share in sure_shares(results, QUICK)} == {0.7}
    few = measured(
        (PLAIN, "toys", 1, sample(0.5, 0.95, n=20)),
        (OTHER, "toys", 1, sample(0.6, 0.95, n=20)),
    )
    assert sure_shares(few, QUICK) == []
    sentences, fine = told(few)
    assert "the ECE of CoOp (45.00 to 35.00: -10.00 [" in sentences[0]
    assert len(fine) == 1


def test_many_datasets_have_one_sentence_with_datasets_as_the_unit() -> None:
    parts = []
    for number, dataset in enumerate("abcde"):
        parts.append((PLAIN, dataset, 1, sample(0.6 + 0.02 * number, 0.95)))
        parts.append((OTHER, dataset, 1, sample(0.8 + 0.01 * number, 0.95)))
    (sentence,), fine = told(measured(*parts))
    gaps = [(0.15 - 0.01 * n) - (0.35 - 0.02 * n) for n in range(5)]
    half = 100 * stats.t.ppf(0.975, 4) * np.std(gaps, ddof=1) / np.sqrt(5)
    ends = f"[{-18 - half:+.2f}, {-18 + half:+.2f}]"
    assert f"(5 datasets), TCPT lowers the ECE of CoOp (31.00 to 13.00: -18.00 {ends}; lower on 5 of 5" in sentence
    assert "with datasets as the unit" in fine[0]
    assert "(5 datasets), CoOp is right 64 times out of 100" in fine[1]
    assert "above 0 on 5 of 5" in fine[1]


def test_one_method_is_compared_with_the_untuned_model_or_with_nothing() -> None:
    results = measured((OTHER, "toys", 1, sample(0.9, 0.95)), (ZERO, "toys", 1, sample(0.5, 0.95)))
    (sentence,), fine = told(results)
    assert "CoOp + TCPT lowers the ECE of the untuned model (45.00 to 5.00: -40.00 [-4" in sentence
    assert "the untuned model is right 50 times" in fine[1]
    alone = measured((PLAIN, "toys", 1, sample(0.9, 0.95)))
    sentences, fine = told(alone)
    assert "CoOp is right 90 times out of 100" in sentences[0]
    assert "Its ECE is 5.00 points." in sentences[0]
    assert "nothing comparable" in fine[0]
    assert headline(measured(), [], {}, QUICK)[0] == ["There is no finished run with results in this report."]


def test_methods_of_the_same_name_are_distinguished() -> None:
    row = {"tuner": "coop", "loss": "ce", "model": "tuned", "calibrator": "none", "shots": 16, "epochs": 5}
    names = [method.name for method in methods_of([row, {**row, "shots": 4}, {**row, "loss": "tcpt"}])]
    assert names == ["CoOp (shots 16)", "CoOp (shots 4)", "CoOp + TCPT"]
    many = methods_of([row, {**row, "shots": 4}, {**row, "loss": "tcpt", "shots": 4}])
    assert plain_of(many[2], many) == many[1]
    assert plain_of(many[0], many) is None
    assert headline_pairs(many) == [(many[1], many[2])]
