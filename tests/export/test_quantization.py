"""An int8 model is smaller, has been measured, and is refused if it is not good enough."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import samples
from calprompt import calibrators, pocket
from calprompt.calibrators import StoredLogits
from calprompt.clip.load import load_backbone
from calprompt.errors import CalpromptError, SettingError
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.export.quantization import EARLY_CONVOLUTIONS, check_quality, nodes_to_keep, quantize_folder
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule, SetRule
from calprompt.tuners import create
from export.exported import export, folder, pictures

LOOSE = {"max_accuracy_drop": 1.0, "max_ece_rise": 1.0}
RULE = DecisionRule(min_confidence=0.5)


@cache
def clothes() -> tuple[list[str], list[Path], list[int]]:
    """Names, some test images of each class and their labels."""
    names = sorted(path.name for path in (pocket.folder("clothes") / "test").iterdir())
    images = [sorted((pocket.folder("clothes") / "test" / name).iterdir())[:10] for name in names]
    return names, [path for each in images for path in each], [n for n, each in enumerate(images) for _ in each]


def temperature(logits: np.ndarray) -> list[dict[str, Any]]:
    fitted = calibrators.parse("temperature").fit(logits, clothes()[2])
    return fitted.export(StoredLogits(torch.from_numpy(logits[:0])))


def refit(
    logits: np.ndarray, zero_shot: np.ndarray | None = None
) -> tuple[list[dict[str, Any]], DecisionRule, list[str]]:
    return temperature(logits), RULE, ["a promise"]


@cache
def float_model() -> Path:
    """The embedded model, zero-shot, with a fitted temperature."""
    names, images, labels = clothes()
    tuner = create("zero-shot", load_backbone("pocket"), names)
    logits = torch.cat([batch.logits for batch in Predictor(tuner).stream(images)])
    calibrator = calibrators.parse("temperature").fit(logits, torch.tensor(labels))
    out = samples.shared() / "float pocket"
    return export(Predictor(tuner, calibrator=calibrator), out, card="# Pocket\n")


def test_the_pocket_in_int8(tmp_path: Path) -> None:
    _, images, labels = clothes()
    measured = quantize_folder(float_model(), tmp_path / "int8", images, labels, refit=refit, **LOOSE)
    before, after = OnnxPredictor(float_model()), OnnxPredictor(tmp_path / "int8")
    assert measured["bytes"]["after"] < 0.4 * measured["bytes"]["before"]
    assert abs(measured["accuracy"]["after"] - measured["accuracy"]["before"]) <= 0.05
    p, q = before.predict_proba(images), after.predict_proba(images)
    assert measured["accuracy"]["before"] == pytest.approx((p.argmax(axis=1) == labels).mean())
    assert measured["accuracy"]["after"] == pytest.approx((q.argmax(axis=1) == labels).mean(), abs=0.01)
    assert np.abs(p - q).mean() < 0.02
    assert all(value > 0 for value in measured["images_per_second"].values())
    assert after.record["quantization"] == json.loads(json.dumps(measured))
    assert after.record["quantization"]["operators"] == ["MatMul", "Gemm"]
    assert after.rule == RULE
    assert after.promises == ("a promise",)
    assert (tmp_path / "int8" / "card.md").read_text() == "# Pocket\n"
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]
    with pytest.raises(SettingError, match="is in int8 already"):
        quantize_folder(tmp_path / "int8", tmp_path / "again", images, labels, refit=refit)


def test_worse_int8_model_is_refused_with_numbers(tmp_path: Path) -> None:
    _, images, labels = clothes()

    def overconfident(
        logits: np.ndarray, zero_shot: np.ndarray | None = None
    ) -> tuple[list[dict[str, Any]], DecisionRule, list[str]]:
        return [*temperature(logits), {"step": "multiply", "by": 5.0, "keeps_argmax": True}], RULE, []

    with pytest.raises(CalpromptError, match=r"calibration error \d+\.\d\d % before and \d+\.\d\d % after"):
        quantize_folder(float_model(), tmp_path / "out", images, labels, refit=overconfident)
    assert not list(tmp_path.iterdir())


def test_int8_limits_on_accuracy_and_ece_are_inclusive() -> None:
    def measured(right: float, error: float) -> dict[str, dict[str, float]]:
        return {"accuracy": {"before": 0.625, "after": right}, "ece": {"before": 0.04, "after": error}}

    check_quality(measured(0.615, 0.05), max_accuracy_drop=0.01, max_ece_rise=0.01)
    for worse in (measured(0.61, 0.04), measured(0.7, 0.06)):
        with pytest.raises(
            CalpromptError, match=r"was not written: accuracy 62\.50 % before and .* error 4\.00 % before"
        ):
            check_quality(worse, max_accuracy_drop=0.01, max_ece_rise=0.01)


@pytest.mark.parametrize(("name", "kind"), [("coop", "resnet"), ("coop", "timm"), ("cocoop", "vit")])
def test_other_towers(name: str, kind: str, tmp_path: Path) -> None:
    images, labels = pictures(), [number % 10 for number in range(24)]
    steps = [{"step": "divide", "by": 2.0, "keeps_argmax": True}]
    measured = quantize_folder(
        folder(name, kind), tmp_path / "out", images, labels, refit=lambda *logits: (steps, RULE, []), **LOOSE
    )
    assert ("Conv" in measured["operators"]) == (kind != "vit")
    kept = nodes_to_keep(onnx.load(folder(name, kind) / "model.onnx"))
    assert len(kept) == (EARLY_CONVOLUTIONS if kind == "timm" else 0), "of those with depthwise convolutions"
    ours = OnnxPredictor(tmp_path / "out").predict_proba(images)
    assert ours.shape == (24, 10)
    np.testing.assert_allclose(ours.sum(axis=1), 1)


def test_quantize_refuses_bad_labels_steps_rules_and_images(tmp_path: Path) -> None:
    images = pictures(3)
    for labels, says in (
        ([0, 1], "labels must have one entry per sample, got 2 for 3 samples"),
        ([0, 1, 10], r"labels must lie in 0\.\.9 for 10 classes, got 10"),
        ([0.0, 1.0, 2.0], "labels must be integers, got float64"),
    ):
        with pytest.raises(SettingError, match=says):
            quantize_folder(folder(), tmp_path / "out", images, labels, refit=refit)  # type: ignore[arg-type]
    unknown = [{"step": "new", "keeps_argmax": True}]
    with pytest.raises(SettingError, match="refit gives the step"):
        quantize_folder(folder(), tmp_path / "out", images, [0, 1, 2], refit=lambda *logits: (unknown, RULE, []))
    other = DecisionRule(sets=(SetRule(0.9, True, "lac", 1.0, (0.5,) * 4, (9,) * 4),))
    with pytest.raises(SettingError, match="for 4 classes, and the predictor has 10"):
        quantize_folder(folder(), tmp_path / "out", images, [0, 1, 2], refit=lambda *logits: ([], other, []))
    with pytest.raises(CalpromptError, match="there is no folder"):
        quantize_folder(tmp_path / "none", tmp_path / "out", images, [0, 1, 2], refit=refit)
    with pytest.raises(CalpromptError, match=r"image 1 \(text, not an image"):
        quantize_folder(folder(), tmp_path / "out", [images[0], b"text"], [0, 1], refit=refit)
    assert not list(tmp_path.iterdir())
