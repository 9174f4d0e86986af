"""A fit with costs of errors and a class that must not be missed: saved, loaded, evaluated, exported and served."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import samples
from calprompt import Classifier
from calprompt.cli import main
from calprompt.export import graphs
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.promises import DecisionRule, Watch
from calprompt.promises.rule import Guard
from calprompt.serve.feedback import FeedbackBook, Receipt
from classifier.fits import SHARED, classifier, picture_paths
from export.exported import copied
from serve.serving import numpy_model


@cache
def guarded() -> Classifier:
    """Ants must not be missed, and calling one a bee costs 20."""
    model = classifier(costs=("ant as bee: 20",), never_miss={"ant": 0.5}, target_error=0.0)
    return model.fit(samples.pictures(), resources=SHARED)


def test_the_promise_is_made_saved_and_loaded(tmp_path: Path) -> None:
    model = guarded()
    promise = next(each for each in model.promises_ if each.kind == "never miss")
    assert promise.status == "made"
    assert promise.text == "at most 50 % of the images of 'ant' are called something else"
    assert model.rule_.guards[0].promised
    assert model.rule_.costs[0][1] == 20
    loaded = Classifier.load(model.save(tmp_path / "model"))
    assert loaded.rule_ == model.rule_
    assert loaded.get_params()["costs"] == ("ant as bee: 20",)
    assert loaded.never_miss == {"ant": 0.5}
    with (tmp_path / "model" / "images.csv").open() as file:
        used = [row["used_for"] for row in csv.DictReader(file)]
    assert used.count("never-miss") == 5
    assert promise.sentence in (tmp_path / "model" / "README.md").read_text()


def test_answers_minimise_cost_and_keep_guarded_classes() -> None:
    model = guarded()
    paths = picture_paths()
    p = model.predict_proba(paths)
    expected = (p @ np.array(model.rule_.costs)).argmin(axis=1)
    assert model.predict(paths).tolist() == model.classes_[expected].tolist()
    held = p[:, 0] >= model.rule_.guards[0].threshold
    assert held.any()
    for answer, own in zip(model.answer(paths), held, strict=True):
        assert (answer.guarded == "ant") == own
        assert not own or answer.decision == "unsure" or answer.class_name == "ant"


def test_outcomes_count_what_is_missed_and_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, name in enumerate(samples.NAMES):
        for number in range(2):
            samples.picture(tmp_path / "fresh" / name / f"{number}.png", seed=9000 + 10 * label + number)
    found = guarded().evaluate(tmp_path / "fresh").outcomes
    assert found["never_miss"]["ant"]["images"] == 2
    assert found["never_miss"]["ant"]["promised"] == 0.5
    assert 0 <= found["cost"]["answers"] <= found["cost"]["every_image"]
    place = guarded().save(tmp_path / "model")
    assert main(["evaluate", str(place), str(tmp_path / "fresh")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Of 2 images of 'ant'" in out
    assert "Its answers cost" in out


def test_the_exported_script_makes_the_same_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "write_tower", copied("write_tower"))
    model = guarded()
    model.export(tmp_path / "exported")
    exported = OnnxPredictor(tmp_path / "exported")
    paths = picture_paths()
    p = model.predict_proba(paths)
    clear = np.abs(p[:, 0] - model.rule_.guards[0].threshold) > 1e-4  # not on the threshold itself
    ours, theirs = model.answer(paths), exported.answers(paths)
    for one, other in (pair for pair, far in zip(zip(ours, theirs, strict=True), clear, strict=True) if far):
        assert (one.decision, one.class_name, one.guarded) == (other.decision, other.class_name, other.guarded)


def test_more_classes_keep_costs_and_guards_without_promises() -> None:
    other = guarded().with_classes(["yak"])
    assert np.shape(other.rule_.costs) == (7, 7)
    assert other.rule_.costs[0][1] == 20
    assert all(each.status != "made" for each in other.promises_)
    assert Watch.of_classes(other.rule_, list("abcdefg")) == {}
    assert other.answer(picture_paths()[:2])


def test_feedback_on_a_class_is_watched_for_every_decision() -> None:
    rule = DecisionRule(guards=(Guard(1, 0.1, 0.05, promised=True),))
    book = FeedbackBook(replace(numpy_model(labels=("good", "scratched")), fingerprint="m", rule=rule))

    def mark(decision: str, answered: str, true: str, image: int) -> dict[str, object]:
        receipt = replace(Receipt.of("m", b"", decision, answered, False), image=str(image))
        book.add(receipt, answered == true, class_name=None if answered == true else true)
        return book.state()["classes"][0]

    assert mark("unsure", "good", "scratched", 0)["missed"] == 0
    assert mark("answer", "scratched", "scratched", 1)["missed"] == 0
    assert mark("answer", "good", "good", 2)["feedback"] == 2
    assert mark("answer", "good", "scratched", 3)["missed"] == 1
    assert mark("answer", "good", "scratched", 3)["feedback"] == 3, "an image counts once"
    state = [mark("answer", "good", "scratched", 10 + number) for number in range(8)][-1]
    assert state["status"] == "broken"
    assert "at most 5 % of the images of 'scratched' are called something else" in str(state["sentence"])
    assert Watch.from_dict(book.missed["scratched"].to_dict()) == book.missed["scratched"]
