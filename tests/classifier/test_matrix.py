"""Every tuner on each kind of image tower: fitted, saved, loaded and served, it predicts the same."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file

import samples
from calprompt import Classifier, tuners
from calprompt.kernel import resize_and_crop
from calprompt.serve.loading import load_served
from classifier.fits import QUICK, SHARED, picture_paths

SMALL = {
    "coop": {"context": 2},
    "cocoop": {"context": 2},
    "maple": {"context": 2},
    "kgcoop": {},
    "prograd": {},
    "proda": {"prompts": 4, "prompt_batch": 2, "context": 2},
    "promptsrc": {"context": 2},
    "zero-shot": {},
    "linear-probe": {"strength": 1.0},
    "clap": {},
    "taskres": {},
    "clip-adapter": {},
    "tip-adapter": {"alpha": 1.0, "beta": 5.5},
    "tip-adapter-f": {},
}
OTHER_TOWERS: dict[str, dict[str, object]] = {
    "resnet": {"width": 8, "head_width": 16, "layers": (1, 1, 1, 1)},
    "timm": {"timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear"},
}
PIXELS = [name for name in tuners.available() if tuners.get(name).needs_pixels]


@cache
def without_attention(tower: str) -> Path:
    """Folder of a tiny CLIP whose image tower is a residual network or one of timm."""
    vision = {"image_size": 32, **OTHER_TOWERS[tower]}
    config = {**samples.MODEL, "vision_cfg": vision}
    folder = samples.shared() / f"tiny-{tower}"
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CLIP(**config)
        model.logit_scale.data.fill_(np.log(samples.SCALE))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    return folder


def test_the_matrix_has_every_tuner() -> None:
    ours = {name for name in tuners.available() if tuners.get(name).__module__.startswith("calprompt.")}
    assert set(SMALL) == ours, "other tests may have registered more"


@pytest.mark.parametrize(
    ("tuner", "tower"),
    [(tuner, tower) for tuner in SMALL for tower in ("vit", *OTHER_TOWERS) if tower == "vit" or tuner not in PIXELS],
)
def test_saved_loaded_and_served_it_predicts_the_same(tuner: str, tower: str, tmp_path: Path) -> None:
    backbone = samples.backbone() if tower == "vit" else without_attention(tower)
    paths = picture_paths()[::2]
    labels = [Path(path).parent.name for path in paths]
    model = Classifier(**{**QUICK, "backbone": str(backbone), "tuner": tuner, "options": SMALL[tuner] or None})
    model.fit(paths, labels, resources=SHARED)
    loaded = Classifier.load(model.save(tmp_path / "model"))
    assert loaded.get_params()["tuner"] == tuner
    expected = model.predict_proba(paths[:9])
    assert np.abs(loaded.predict_proba(paths[:9]) - expected).max() <= 1e-5
    served = load_served(tmp_path / "model")
    pictures = [Image.open(path).convert("RGB") for path in paths[:9]]
    view = served.view
    levels = np.stack([resize_and_crop(each, view.size, view.interpolation, view.mode) for each in pictures])
    assert np.abs(served.predict(levels)[1] - expected).max() <= 1e-5, "the server answers the same"
    assert loaded.answer(paths[:9], coverage=0.9) == model.answer(paths[:9], coverage=0.9)
    assert loaded.rule_ == model.rule_
    assert loaded.promises_ == model.promises_
    held = model.model_.predicted.held_out
    if len(held):  # what was stored of held-out images is what it predicts
        again = loaded.predictor_.predict_proba(held.names)
        stored = model.model_.probabilities(held)
        assert np.abs(again - stored).max() <= 1e-5
