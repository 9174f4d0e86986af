"""Every option of every tuner, loss, calibrator and run says something: changed, it changes what comes out."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

import samples
from calibrators.drawn import complete, drawn
from calprompt import calibrators, losses, tuners
from calprompt.losses import Objective
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.planning import plan
from calprompt.runs.preparation import prepare
from calprompt.sealed_files import read_tensor_file
from calprompt.training import TrainingConfig, train
from calprompt.tuners import create
from calprompt.tuners.base import option_names
from losses.test_objective import outputs
from tiny import BACKBONES, BASE, SMALL, everything, images

WORDS = {"words": "an old picture with", "template": "one {}.", "seed": 5}
UNDRAWN: dict[str, Any] = {"template": "one {}.", "seed": None}  # None: nothing in it is drawn
TUNERS: dict[str, dict[str, Any]] = {
    "zero-shot": UNDRAWN,
    "coop": {**WORDS, "context": 3, "class_specific": True, "position": "middle"},
    "cocoop": {**WORDS, "context": 2, "text_of": "last"},
    "maple": {**WORDS, "context": 3, "depth": 2},
    "kgcoop": {
        **WORDS,
        "seed": None,
        "context": 3,
        "class_specific": True,
        "position": "middle",
        "pull": "orthogonality",
        "weight": 2.0,
    },
    "proda": {
        "template": "one {}.",
        "seed": 5,
        "context": 3,
        "keep_underscores": True,
        "prompt_batch": 2,
        "prompts": 4,
        "similarity": 3.0,
    },
    "prograd": {
        "template": "one {}.",
        "seed": None,
        "context": 6,
        "class_specific": True,
        "position": "middle",
        "from_template": False,
        "projection": False,
        "regularisers": "distillation",
        "strength": 0.3,
        "temperature": 3.0,
    },
    "promptsrc": {
        **WORDS,
        "context": 3,
        "visual": 3,
        "depth": 2,
        "visual_depth": 2,
        "text_weight": 3.0,
        "image_weight": 3.0,
        "logit_weight": 30.0,
        "teacher": 80,
        "average": None,
    },
    "linear-probe": {**UNDRAWN, "strength": 3.0},
    "clap": {**UNDRAWN, "weight": 30.0},
    "taskres": {**UNDRAWN, "alpha": 2.0},
    "clip-adapter": {**UNDRAWN, "seed": 5, "ratio": 0.5, "reduction": 2},
    "tip-adapter": {**UNDRAWN, "alpha": 3.0, "beta": 2.0},
    "tip-adapter-f": {**UNDRAWN, "alpha": 3.0, "beta": 2.0},
}
LOSSES: dict[str, dict[str, Any]] = {
    "focal": {"gamma": 1.0},
    "label_smoothing": {"epsilon": 0.3},
    "margin": {"alpha": 0.2, "beta": 0.02},
    "mbls": {"margin": 1.0, "cosine_margin": 0.01},
    "moments": {"mean_weight": 0.5, "covariance_weight": 0.5, "classes": 3},
}
CALIBRATORS: dict[str, dict[str, Any]] = {
    "dac": {"k": 2, "threshold": 0.9, "divisor": "k"},
    "histogram": {"n_bins": 7},
    "temperature_fixed": {"temperature": 2.0},
    "temperature_sgd": {
        "initial": 2.0,
        "lr": 0.5,
        "epochs": 3,
        "batch_size": 10,
        "momentum": 0.0,
        "weight_decay": 0.1,
        "warmup_lr": 0.1,
    },
    "vector": {"ridge": 0.5},
}
RUN: dict[str, Any] = {
    "tuner": "kgcoop",
    "options": {"context": 3},
    "loss": "ce",
    "protocol": "few-shot",
    "shots": 2,
    "anchor": True,
    "views": 1,
    "crop": 0.9,
    "template": "one {}.",
    "dtype": "bfloat16",
}
TRAINING: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 4,
    "lr": 0.02,
    "momentum": 0.5,
    "weight_decay": 0.5,
    "warmup_epochs": 2,
    "warmup_lr": 0.005,
    "seed": 2,
    "autocast": "bfloat16",
}
PLACES = {"backbone", "backbone_config", "data", "root", "classes", "base", "device", "imports", "exif", "skip_bad"}


def pairs(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [pytest.param(name, option, id=f"{name}-{option}") for name, options in table.items() for option in options]


def differ(a: Tensor, b: Tensor) -> bool:
    """By more than the same numbers added up in another order."""
    return a.shape != b.shape or float((a - b).abs().max()) > samples.rounding(samples.SCALE, samples.EMBED)


def ours(registry: ModuleType) -> dict[str, Any]:
    """What the package registers itself; other tests may have added to it."""
    kinds = {name: registry.get(name) for name in registry.available()}
    return {name: kind for name, kind in kinds.items() if kind.__module__.startswith("calprompt.")}


def test_the_tables_have_every_option() -> None:
    found = {name: set(option_names(kind)) for name, kind in ours(tuners).items()}
    assert found == {name: set(options) for name, options in TUNERS.items()}
    for registry, table in ((losses, LOSSES), (calibrators, CALIBRATORS)):
        found = {name: {field.name for field in fields(kind) if field.init} for name, kind in ours(registry).items()}
        assert {name: options for name, options in found.items() if options} == {n: set(table[n]) for n in table}
    assert {field.name for field in fields(RunConfig)} == PLACES | set(RUN) | {
        "training",
        "chunk",
        "val_shots",
        "validation",
    }
    assert {field.name for field in fields(TrainingConfig)} == set(TRAINING) | {"diagnose_every"}


@cache
def trained(name: str, **options: Any) -> Tensor:
    """What a tuner predicts after three epochs."""
    tuner = create(name, BACKBONES["vit"], BASE, **SMALL.get(name, {}) | options)
    data = images(tuner)
    config = TrainingConfig(epochs=3, batch_size=4, lr=0.02, warmup_epochs=0)
    train(tuner, data, Objective.parse("ce + 5*moments"), config)
    return tuner.predict([everything(data)])


@pytest.mark.parametrize(("name", "option"), pairs(TUNERS))
def test_options_of_tuners(name: str, option: str) -> None:
    value = TUNERS[name][option]
    changed = trained(name, **{option: 5 if value is None and option == "seed" else value})
    assert differ(trained(name), changed) is (option != "seed" or value is not None)


@pytest.mark.parametrize(("name", "option"), pairs(LOSSES))
def test_options_of_losses(name: str, option: str) -> None:
    value = LOSSES[name][option]
    (usual,), (changed,) = (Objective.parse(f"1*{text}").terms for text in (name, f"{name}({option}={value})"))
    assert differ(usual.loss(outputs()), changed.loss(outputs()))


@pytest.mark.parametrize(("name", "option"), pairs(CALIBRATORS))
def test_options_of_calibrators(name: str, option: str) -> None:
    val, test = complete(*drawn(0), base=3), complete(drawn(1)[0], None, base=3)
    kind = calibrators.get(name)
    assert differ(*(each.fit(val)(test) for each in (kind(), kind(**{option: CALIBRATORS[name][option]}))))


@cache
def predicted(**changed: Any) -> dict[str, Tensor]:
    """All that a run on pictures keeps of its test images."""
    usual = samples.config(samples.pictures())
    training = {name: changed.pop(name) for name in TRAINING if name in changed}
    changed |= {"options": {"context": 3}} if changed.pop("longer", False) else {}
    config = replace(usual, **changed, training=replace(usual.training, **training))
    return read_tensor_file(run(config, samples.shared() / "options").folder / "logits.safetensors")[0]


@pytest.mark.filterwarnings("ignore:the .* training images do not determine the logit scale")
@pytest.mark.parametrize("setting", [*RUN, *TRAINING])
def test_settings_of_runs(setting: str) -> None:
    changed = {"longer": True} if setting == "options" else {setting: (RUN | TRAINING)[setting]}
    usual, now = predicted(), predicted(**changed)
    kinds = ("zero_shot_logits",) if setting == "template" else ("logits",)
    assert usual.keys() != now.keys() or all(differ(usual[f"base/{kind}"], now[f"base/{kind}"]) for kind in kinds)


def test_settings_that_change_no_result() -> None:
    usual = samples.config(samples.pictures())
    assert prepare(usual).backbone.chunk is None
    assert prepare(replace(usual, chunk=2)).backbone.chunk == 2
    assert len(plan(replace(usual, val_shots=1)).base.val) == 3 < len(plan(usual).base.val)
    assert plan(replace(usual, validation="test")).base.val == plan(usual).base.test
    assert not plan(usual).base.test.images.upright
    assert plan(replace(usual, exif=True)).base.test.images.upright
    looking = replace(usual, training=replace(usual.training, diagnose_every=1))
    assert "grad/ce" in run(looking, samples.shared() / "options").history()[0]
