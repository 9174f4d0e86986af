"""Exported tiny models: every kind is written once, and the frozen tower of a backbone is shared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

import samples
from calprompt import tuners
from calprompt.export import graphs
from calprompt.export.exporter import export_predictor
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.kernel import class_scores, softmax
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule, OpenSetRule, SetRule
from calprompt.tuners import Tuner
from tiny import BASE, NOVEL, build, tiny_backbone

# Every export builds this table of operators again, which takes as long as all the rest of a tiny one.
ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
BACKBONES = {tower: tiny_backbone(tower=tower, layers=2) for tower in ("vit", "resnet", "timm")}
CLASSES = [*BASE, *NOVEL, "maine coon", "boeing 747"]  # more than fit one row of tokens
WRITE = {"write_tower": graphs.write_tower, "write_conditional": graphs.write_conditional}
SIZES = [(40, 36), (32, 32), (90, 31), (31, 77), (200, 3), (1, 1), (64, 48)]


def tuned(name: str, kind: str = "vit") -> Tuner:
    """A tuner whose prompts are not those it started with."""
    tuner = build(name, BACKBONES[kind], classes=CLASSES)
    generator = torch.Generator().manual_seed(7)
    for parameter in tuner.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return tuner


def pictures(n: int = 24) -> list[np.ndarray]:
    """Coloured noise of many sizes."""
    noise = np.random.default_rng(3)
    return [
        (noise.integers(0, 90, (*SIZES[i % len(SIZES)], 3)) + noise.integers(0, 160, 3)).astype(np.uint8)
        for i in range(n)
    ]


def between(values: np.ndarray) -> float:
    """The middle of the widest gap near the median, so that no rounding decides on which side a value is."""
    ordered = np.sort(np.unique(values))
    middle = ordered[len(ordered) // 5 : -(len(ordered) // 5) or None]
    widest = int(np.diff(middle).argmax())
    return float((middle[widest] + middle[widest + 1]) / 2)


def rule_for(logits: np.ndarray, probabilities: np.ndarray) -> DecisionRule:
    """A rule that has something to say of these images, and no ties among them."""
    confidence = between(probabilities.max(axis=1))
    z = logits.astype(np.float64)
    open_set = OpenSetRule("max_logit", 1.0, between(z.max(axis=1)), (0.1, 0.0, 0.2), None)
    sets = tuple(
        SetRule(coverage, False, score, 2.0, (between(class_scores(softmax(z / 2.0), score)),), (9,))
        for coverage, score in ((0.9, "lac"), (0.8, "aps"))
    )
    per_class = SetRule(0.9, True, "lac", 1.0, (float("inf"), *(0.5 for _ in range(z.shape[1] - 1))), (9,) * z.shape[1])
    return DecisionRule(confidence, 0.1, open_set, (*sets, per_class))


@cache
def graph(what: str, name: str, kind: str) -> Path:
    """The file that a function of `graphs` writes of a tuner."""
    path = samples.shared() / f"{what}-{name}-{kind}.onnx"
    WRITE[what](tuned(name, kind), path)
    return path


def copied(what: str) -> Callable[[Tuner, Path], None]:
    """A stand-in for a function of `graphs` that writes each graph of the tuners here, and each frozen tower, once."""

    def write(tuner: Tuner, path: Path) -> None:
        kinds = [kind for kind, backbone in BACKBONES.items() if backbone is tuner.backbone]
        tuned_tower = tuner.needs_pixels or what == "write_conditional"
        own = next(name for name in tuners.available() if tuners.get(name) is type(tuner))
        name = own if tuned_tower else "zero-shot"
        frozen = samples.shared() / f"tower of {tuner.backbone.fingerprint} in {tuner.backbone.dtype}.onnx"
        if kinds:
            shutil.copyfile(graph(what, name, kinds[0]), path)
        elif not tuned_tower and tuner.backbone.name != "tiny":  # those share a name and a fingerprint
            if not frozen.exists():
                WRITE[what](tuner, frozen)
            shutil.copyfile(frozen, path)
        else:
            WRITE[what](tuner, path)

    return write


def export(predictor: Predictor, out: Path, **options: Any) -> Path:
    """`export_predictor` with graphs that are written once."""
    with pytest.MonkeyPatch.context() as patch:
        for what in WRITE:
            patch.setattr(graphs, what, copied(what))
        return export_predictor(predictor, out, **{"rule": DecisionRule(), **options})


def folder(name: str = "coop", kind: str = "vit") -> Path:
    """An exported tuner with a rule that suits `pictures`; not to be changed."""
    return _folder(name, kind)


@cache
def _folder(name: str, kind: str) -> Path:
    predictor = Predictor(tuned(name, kind))
    batches = list(predictor.stream(pictures()))
    logits = torch.cat([batch.logits for batch in batches]).numpy()
    rule = rule_for(logits, np.concatenate([batch.probabilities for batch in batches]))
    labels = [f"label {number}" for number in range(len(predictor.class_names))]
    promises = ["at most one answer in ten is wrong"]
    out = samples.shared() / "exported" / f"{name}-{kind}"
    return export(predictor, out, rule=rule, labels=labels, promises=promises, card="# For tests\n")


def own_copy(out: Path, name: str = "coop", kind: str = "vit") -> Path:
    return Path(shutil.copytree(folder(name, kind), out))


def loaded(name: str = "coop", kind: str = "vit") -> OnnxPredictor:
    return OnnxPredictor(folder(name, kind), threads=1)
