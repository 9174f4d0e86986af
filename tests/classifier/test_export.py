"""Exported models: the same answers without torch, promises made again for int8, refusals with the reason."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import samples
from calprompt import CalpromptError, SettingError
from calprompt.classifier.fitted_model import PROMISED, left_out_rates
from calprompt.cli import main
from calprompt.export import graphs
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.promises import fit_sets
from calprompt.serve.loading import load_served
from classifier.fits import classifier, fitted, picture_paths, saved
from export.exported import copied


@pytest.fixture
def one_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image tower, which is the same in all of these models, is written once."""
    monkeypatch.setattr(graphs, "write_tower", copied("write_tower"))


def test_it_answers_as_the_classifier_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = fitted(), tmp_path / "exported"
    assert main(["export", str(saved()), str(out), "--quiet"]) == 0
    assert f"python {out}/predict.py IMAGES" in " ".join(capsys.readouterr().out.split())
    exported = OnnxPredictor(out)
    paths = picture_paths()[:12]
    assert np.abs(exported.predict_proba(paths) - model.predict_proba(paths)).max() <= 1e-4
    ours, theirs = model.answer(paths, coverage=0.9), exported.answers(paths, coverage=0.9)
    assert [(one.decision, one.class_name, one.promised) for one in ours] == [
        (one.decision, one.class_name, one.promised) for one in theirs
    ]
    assert not any(one.promised for one in theirs if one.decision != "answer")
    assert [set(one.prediction_set or ()) for one in ours] == [set(one.prediction_set or ()) for one in theirs]
    assert list(exported.promises) == [promise.sentence for promise in model.promises_]
    assert exported.image_watch().to_dict() == model.image_watch().to_dict()
    assert "## Promises and their limits" in (out / "card.md").read_text()
    assert main(["export", str(saved()), str(out), "--quiet"]) == 2
    assert "exists already" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("one_tower")
def test_exported_models_are_served_with_their_weak_classes(tmp_path: Path) -> None:
    model = fitted().model_
    per_class = {name: (5, 1 if name == "bee" else 5) for name in model.checks[0].per_class}
    checks = (replace(model.checks[0], per_class=per_class), *model.checks[1:])
    for name, each in (("whole", fitted()), ("more", fitted().with_classes(["yak"]))):
        weaker = copy(each)
        weaker.model_ = replace(model, checks=checks)
        weaker.export(tmp_path / name)
    assert load_served(tmp_path / "whole").weak == ("bee",)
    assert load_served(tmp_path / "more").weak == ()


@pytest.mark.usefixtures("one_tower")
def test_added_classes_are_exported_without_promises(tmp_path: Path) -> None:
    fitted().with_classes(["yak"]).export(tmp_path / "exported")
    exported = OnnxPredictor(tmp_path / "exported")
    assert exported.predict_proba(picture_paths()[0]).shape == (1, 7)
    assert not any(answer.promised for answer in exported.answers(picture_paths()[:3]))
    assert exported.rule.withdrawn is not None
    card = (tmp_path / "exported" / "card.md").read_text()
    assert "Promised:" not in card
    assert "no image was seen: yak" in card


@pytest.mark.usefixtures("one_tower")
def test_int8_makes_its_promises_again(tmp_path: Path) -> None:
    """On the probabilities that it gives, also where a calibrator compares with the untuned model."""
    model = classifier(tuner="kgcoop", calibrator="sals").fit(samples.pictures())
    loose = {"max_accuracy_drop": 1.0, "max_ece_rise": 1.0}
    measured = model.export(tmp_path / "small", int8=True, data=samples.pictures(), **loose)
    assert measured["bytes"]["after"] < measured["bytes"]["before"]
    record = json.loads((tmp_path / "small" / "model.json").read_text())
    assert record["quantization"]["images"] == sum(held for _, held in model.model_.counts)
    assert record["rule"]["sets"][0]["images"] == [record["quantization"]["images"]]
    assert len(record["promises"]) == len(model.promises_)
    assert record["image_watch"]["held_out"] == record["quantization"]["images"]
    assert record["image_watch"]["reference"] != model.image_watch().reference, "its scores are those of int8"
    assert not (tmp_path / "small" / "card.md").exists(), "what it says was measured on another model"
    small = OnnxPredictor(tmp_path / "small")
    held = model.model_.predicted.take(model.model_.predicted.fold == PROMISED)
    logits = np.concatenate(
        [batch.logits for batch in small.stream([samples.pictures() / name for name in held.names])]
    )
    expected = fit_sets(logits, held.labels, 0.9, temperature=small.rule.sets[0].temperature, by_class=True)
    assert small.rule.sets[0].quantiles == pytest.approx(expected.quantiles, abs=samples.rounding(1.0, 100))
    open_set = small.rule.open_set
    assert open_set is not None
    assert open_set.false_rejects[0] == pytest.approx(1 - open_set.accepts(logits).mean()), "measured on the int8 model"
    others = replace(held, logits=logits.astype(np.float32))
    assert open_set.false_accepts is not None
    assert open_set.false_accepts[0] == pytest.approx(np.mean(left_out_rates(others, open_set.threshold)), abs=0.05)
    assert open_set.images == len(held)


@pytest.mark.usefixtures("one_tower")
def test_int8_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match=r"\d"):
        fitted().export(
            tmp_path / "small", int8=True, data=samples.pictures(), max_accuracy_drop=-1.0, max_ece_rise=-1.0
        )
    assert not (tmp_path / "small").exists()
    with pytest.raises(SettingError, match="give data=DATA"):
        fitted().export(tmp_path / "small", int8=True)
    other = samples.picture_folder(tmp_path / "other", samples.NAMES, each=1)
    (other / "ant" / "0.png").write_bytes((other / "bee" / "0.png").read_bytes())
    with pytest.raises(SettingError, match="cannot be found in other"):
        fitted().export(tmp_path / "small", int8=True, data=other)
    few = classifier(tuner="zero-shot", held_out=0.0).fit(samples.pictures())
    with pytest.raises(SettingError, match="this model has none"):
        few.export(tmp_path / "small", int8=True, data=samples.pictures())
    with pytest.raises(SettingError, match="nothing can be measured for int8"):
        fitted().with_classes(["yak"]).export(tmp_path / "small", int8=True, data=samples.pictures())


def test_export_command_refuses_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "is not the folder of a model" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(saved()), str(tmp_path / "i"), "--int8"]) == 2
    assert "--data DATA" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "i").exists()
