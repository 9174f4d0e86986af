"""An exported model answers as the predictor that it was made of, for every tuner on every kind of tower."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from calprompt import tuners
from calprompt.errors import CalpromptError, SettingError
from calprompt.export import graphs
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule, make_answers
from export.exported import BACKBONES, export, folder, loaded, pictures, tuned
from tiny import tiny_backbone

EVERY = [  # with towers that are not ViTs, logits of a tuner's own are computed as with one
    pytest.param(name, kind, marks=[pytest.mark.long] if kind != "vit" and own else [], id=f"{name}-{kind}")
    for kind in BACKBONES
    for name, own in ((name, graphs.needs_logits(tuned(name))) for name in tuners.available())
    if kind == "vit" or not tuners.get(name).needs_pixels
]
CLOSE = 1e-4  # probabilities of two programs in float32, with logits of some twenty


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_probabilities_decisions_and_sets_are_the_predictors(name: str, kind: str) -> None:
    predictor, ours = Predictor(tuned(name, kind)), loaded(name, kind)
    batches = list(predictor.stream(pictures()))
    probabilities = np.concatenate([batch.probabilities for batch in batches])
    logits = torch.cat([batch.logits for batch in batches]).numpy()
    np.testing.assert_allclose(ours.predict_proba(pictures()), probabilities, atol=CLOSE, rtol=0)
    assert ours.class_names == predictor.class_names
    names = [name for batch in batches for name in batch.names]
    for coverage, per_class in ((None, False), (0.9, False), (0.8, False), (0.9, True)):
        set_rule = None if coverage is None else ours.rule.set_rule(coverage, per_class)
        wanted = make_answers(names, logits, probabilities, ours.labels, ours.rule, set_rule=set_rule)
        given = ours.answers(pictures(), coverage=coverage, per_class=per_class)
        assert [(a.name, a.decision, a.promised) for a in given] == [(a.name, a.decision, a.promised) for a in wanted]
        for a, b in zip(given, wanted, strict=True):
            assert a.class_name == b.class_name
            assert set(a.prediction_set or ()) == set(b.prediction_set or ())
            assert abs(a.probability - b.probability) < CLOSE
    assert len({answer.decision for answer in given}) > 1
    assert set(ours.record["difference"]) == {"features", "probabilities"}
    assert max(ours.record["difference"].values()) < CLOSE


def test_graphs_take_any_batch_and_name_no_local_path() -> None:
    for path in (folder("cocoop") / "model.onnx", folder("cocoop") / "logits.onnx"):
        model = onnx.load(path)
        (given,), (made,) = model.graph.input, model.graph.output
        assert given.type.tensor_type.shape.dim[0].dim_param
        assert (given.name, made.name) in (("pixels", "features"), ("features", "logits"))
        assert not re.search(rb"\.py\b|calprompt", path.read_bytes())


def test_export_leaves_a_tuner_in_training_unchanged(tmp_path: Path) -> None:
    tuner = tuned("coop").train()
    export(Predictor(tuner), tmp_path / "out")
    assert tuner.training
    assert all(parameter.requires_grad for parameter in tuner.parameters())


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    for backbone in (tiny_backbone(dtype=torch.float64), BACKBONES["vit"].view(autocast="bfloat16")):
        predictor = Predictor(tuners.create("zero-shot", backbone, ["cat", "dog"]))
        with pytest.raises(SettingError, match=r"computes in float32, and this backbone in (float64|bfloat16)"):
            export(predictor, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = tuned("coop")
    monkeypatch.setattr(tuner, "logits", lambda image, text: 30.0 * image @ text.T, raising=False)
    with pytest.raises(CalpromptError, match=r"its probabilities differ by .*, and 1e-04 is the most"):
        export(Predictor(tuner), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(
        CalpromptError, match="the image tower of CoOp on backbone 'tiny' cannot be written as ONNX: no"
    ):
        graphs.write_tower(tuned("coop"), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"labels": ["a"]}, "labels must be one for each of 10 classes, got 1"),
        ({"labels": [object()] * 10}, "labels must be text or numbers"),
        ({"rule": None}, "rule must be a DecisionRule"),
    ],
)
def test_incompatible_settings_are_refused_first(tmp_path: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        export(Predictor(tuned("coop")), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_labels_of_numpy_become_plain(tmp_path: Path) -> None:
    out = export(Predictor(tuned("coop")), tmp_path / "out", labels=list(np.arange(10)), rule=DecisionRule())
    assert json.loads((out / "model.json").read_text())["labels"] == list(range(10))
    assert OnnxPredictor(out).labels == tuple(range(10))


def test_upright_is_exported(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "turned.jpg"
    picture = Image.fromarray(pictures(3)[2])
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(path, exif=exif, quality=95)
    tuner = tuned("zero-shot")
    for upright in (False, True):
        predictor = Predictor(tuner, upright=upright)
        ours = OnnxPredictor(export(predictor, tmp_path / f"upright {upright}"), threads=1)
        np.testing.assert_allclose(ours.predict_proba(path), predictor.predict_proba(path), atol=CLOSE, rtol=0)
