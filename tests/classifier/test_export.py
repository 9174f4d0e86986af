"""Exported models: the same answers without torch, promises made again for int8, refusals with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import samples
from calprompt import CalpromptError, Classifier, SettingError
from calprompt.cli import main
from calprompt.export import OnnxPredictor
from classifier.fits import classifier, fitted, picture_paths, saved


def test_it_answers_as_the_classifier_does(tmp_path: Path) -> None:
    model = fitted()
    model.export(tmp_path / "exported")
    exported = OnnxPredictor(tmp_path / "exported")
    paths = picture_paths()[:12]
    assert np.abs(exported.predict_proba(paths) - model.predict_proba(paths)).max() <= 1e-4
    ours, theirs = model.answer(paths, coverage=0.9), exported.answers(paths, coverage=0.9)
    assert [(one.decision, one.class_name, one.promised) for one in ours] == [
        (one.decision, one.class_name, one.promised) for one in theirs
    ]
    assert [set(one.prediction_set or ()) for one in ours] == [set(one.prediction_set or ()) for one in theirs]
    assert list(exported.promises) == [promise.sentence for promise in model.promises_]
    assert "## Promises and their limits" in (tmp_path / "exported" / "card.md").read_text()


def test_added_classes_are_exported_without_promises(tmp_path: Path) -> None:
    fitted().with_classes(["yak"]).export(tmp_path / "exported")
    exported = OnnxPredictor(tmp_path / "exported")
    assert exported.predict_proba(picture_paths()[0]).shape == (1, 7)
    assert not any(answer.promised for answer in exported.answers(picture_paths()[:3]))
    assert exported.rule.withdrawn is not None


def test_int8_makes_its_promises_again(tmp_path: Path) -> None:
    model = fitted()
    measured = model.export(
        tmp_path / "small", int8=True, data=samples.pictures(), max_accuracy_drop=1.0, max_ece_rise=1.0
    )
    assert measured["bytes"]["after"] < measured["bytes"]["before"]
    record = json.loads((tmp_path / "small" / "model.json").read_text())
    assert record["quantization"]["images"] == sum(held for _, held in model.model_.counts)
    assert record["rule"]["sets"][0]["images"] == [record["quantization"]["images"]]
    assert len(record["promises"]) == len(model.promises_)
    assert OnnxPredictor(tmp_path / "small").predict_proba(picture_paths()[:2]).shape == (2, 6)


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


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(saved()), str(out), "--quiet"]) == 0
    assert f"python {out}/predict.py IMAGES" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(saved()), str(out), "--quiet"]) == 2
    assert "exists already" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(tmp_path), str(out)]) == 2
    assert "is not the folder of a model" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(saved()), str(tmp_path / "i"), "--int8"]) == 2
    assert "--data DATA" in " ".join(capsys.readouterr().err.split())
    assert isinstance(Classifier.load(saved()), Classifier)
