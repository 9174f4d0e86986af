"""Every calibrator in its exported form gives the numbers that torch gives; one without such a form is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrators.drawn import complete, drawn
from calprompt import calibrators, kernel
from calprompt.calibrators import Calibrator, Chain, StoredLogits
from calprompt.errors import CalpromptError, DamagedFileError, SettingError
from calprompt.evaluation.settings import create_calibrator
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.predictor import Predictor
from export.exported import CLASSES, export, pictures, tuned

CHAINS = ["temperature -> dac", "histogram -> temperature", "dac -> sals", "isotonic -> vector(ridge=0.01)"]
OPTIONS = ["dac(k=3)", "dac(divisor='k')", "temperature_fixed(temperature=0.5)", "histogram(n_bins=4)", "none"]
FLOAT64 = 1e-9  # two programs in float64


def classes_only(record: StoredLogits) -> StoredLogits:
    """What an exporter knows: the classes, and no image."""
    none = record.logits[:0]
    return replace(record, logits=none, labels=None, zero_shot_logits=none)


def well_posed(calibrator: Calibrator, record: StoredLogits, wanted: Tensor) -> np.ndarray:
    """Images whose result does not hang on the last digits of their logits: maps with steps and steep slopes exist."""
    rows = np.ones(len(wanted), dtype=bool)
    for nudge in (-3e-14, 1e-14, 2e-14):
        moved = calibrator(replace(record, logits=record.logits.double() * (1 + nudge))) - wanted
        rows &= (moved.abs().amax(dim=1) < 1e-7).numpy()
    return rows


@pytest.mark.parametrize("spec", [*calibrators.available(), *CHAINS, *OPTIONS])
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 9), scale=st.floats(0.01, 30))
def test_steps_give_what_torch_gives(spec: str, seed: int, classes: int, scale: float) -> None:
    if "isotonic" in spec:
        scale = min(scale, 2.0)  # near 1, probabilities have few digits to tell the corners of its map apart
    val, record = (complete(*drawn(each, n=40, classes=classes, scale=scale), seed=seed) for each in (seed, seed + 1))
    calibrator = create_calibrator(spec)
    try:
        calibrator.fit(val)
    except CalpromptError as error:
        assert any(text in str(error) for text in ("no temperature fits", "images are classified"))  # noqa: PT017
        return
    steps = json.loads(json.dumps(calibrator.export(classes_only(record)), allow_nan=False))
    assert {step["step"] for step in steps} <= set(kernel.STEPS)
    assert record.zero_shot_logits is not None
    ours = kernel.calibrated_logits(steps, record.logits.numpy(), record.zero_shot_logits.numpy())
    wanted = calibrator(record).double()
    rows = well_posed(calibrator, record, wanted)
    assert rows.mean() > 0.5
    np.testing.assert_allclose(ours[rows], wanted.numpy()[rows], rtol=FLOAT64, atol=FLOAT64)
    if calibrator.keeps_argmax:
        np.testing.assert_array_equal(ours.argmax(axis=1), record.logits.numpy().argmax(axis=1))


def test_every_step_of_a_chain_is_a_calibrator() -> None:
    record = complete(*drawn(0))
    steps = [calibrators.parse(name).fit(record).export(record) for name in calibrators.available()]
    assert {step["step"] for each in steps for step in each} == set(kernel.STEPS)


def test_ties_that_rounding_makes_are_given_back() -> None:
    flat = [{"step": "multiply", "by": 0.0, "keeps_argmax": True}]
    assert kernel.calibrated_logits(flat, np.array([[1.0, 3.0, 2.0]])).argmax() == 1
    assert kernel.calibrated_logits(flat, np.empty((0, 3))).shape == (0, 3)


def test_an_image_without_a_range_is_refused() -> None:
    sals = [{"step": "zero-shot range", "keeps_argmax": True}]
    with pytest.raises(SettingError, match="the same logit for every class"):
        kernel.calibrated_logits(sals, np.ones((1, 3)), np.array([[1.0, 2.0, 3.0]]))
    with pytest.raises(DamagedFileError, match="needs zero-shot logits"):
        kernel.calibrated_logits(sals, np.array([[1.0, 2.0, 3.0]]))


@pytest.mark.parametrize(
    ("tuner", "spec"), [("coop", "sals"), ("cocoop", "temperature -> sals"), ("proda", "dac"), ("maple", "vector")]
)
def test_calibrated_probabilities_are_the_predictors(tuner: str, spec: str, tmp_path: Path) -> None:
    model = tuned(tuner)
    logits, labels = drawn(1, classes=len(CLASSES))
    if tuner == "proda":
        model = model.with_classes(CLASSES[5:])
        logits, labels = drawn(1, classes=5)
    with torch.no_grad():
        base, base_frozen = tuned(tuner).text_features(), tuned(tuner).frozen_text
    calibrator = calibrators.parse(spec).fit(complete(logits, labels))
    predictor = Predictor(model, calibrator=calibrator, base_text=base, base_frozen_text=base_frozen)
    ours = OnnxPredictor(export(predictor, tmp_path / "out"), threads=1)
    np.testing.assert_allclose(ours.predict_proba(pictures()), predictor.predict_proba(pictures()), atol=1e-4, rtol=0)
    assert ours.record["calibrator"]["name"] == calibrator.name


def test_zero_shot_logits_need_the_frozen_tower(tmp_path: Path) -> None:
    for name in ("maple", "promptsrc"):
        predictor = Predictor(tuned(name), calibrator=calibrators.parse("temperature_fixed -> sals"))
        with pytest.raises(SettingError, match=r"'temperature_fixed -> sals' compares with the untuned model, and"):
            export(predictor, tmp_path / "out")


class Own(Calibrator):
    """Somebody's."""

    keeps_argmax = True

    def apply(self, record: StoredLogits) -> Tensor:
        return 0.5 * record.logits.double()


class Strange(Own):
    def as_step(self, record: StoredLogits) -> dict[str, object]:
        return {"step": "halve"}


def test_a_calibrator_without_an_exported_form_is_refused(tmp_path: Path) -> None:
    for calibrator in (Own(), Chain([calibrators.parse("temperature_fixed"), Own()])):
        with pytest.raises(SettingError, match="'Own' cannot be exported: it has no method as_step"):
            export(Predictor(tuned("coop"), calibrator=calibrator), tmp_path / "out")
    with pytest.raises(SettingError, match=r"'Strange' gives the step .*'halve'.*, which cannot be exported: expected"):
        export(Predictor(tuned("coop"), calibrator=Strange()), tmp_path / "out")
    with pytest.raises(SettingError, match="fit the temperature calibrator on validation logits before exporting it"):
        export(Predictor(tuned("coop"), calibrator=calibrators.parse("temperature")), tmp_path / "out")
    other = calibrators.parse("vector").fit(*drawn(0, classes=4))
    with pytest.raises(SettingError, match="fitted on 4 classes and cannot be applied to 10"):
        export(Predictor(tuned("coop"), calibrator=other), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_factors_of_images_are_refused() -> None:
    text = torch.nn.functional.normalize(torch.randn(2, 3, 4), dim=-1)
    record = StoredLogits(torch.randn(2, 3), text=text, frozen_text=text[0], base_text=text, base_frozen_text=text[0])
    with pytest.raises(SettingError, match="dac cannot be exported with text features that depend on the image"):
        calibrators.parse("dac").export(record)
