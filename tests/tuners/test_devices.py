"""Every tuner and loss on a device that is not the CPU, without one: see `benchmarks/launches.py`."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import Tensor

from benchmarks.launches import Device, second_step
from calprompt import losses, tuners
from calprompt.clip.backbone import Backbone
from calprompt.errors import SettingError
from calprompt.features.frozen import FeatureBank
from calprompt.outputs import Outputs
from calprompt.tuners.coop import CoOp
from tiny import AT_ONCE, BASE, LEARNED, NOVEL, build, tiny_backbone

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BACKBONES = {name: tiny_backbone(dtype=dtype, layers=2).to("meta") for name, dtype in PRECISIONS.items()}
B = 4


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", sorted({*LEARNED} - {*AT_ONCE}))
def test_a_step_stays_on_the_device(name: str, precision: str) -> None:
    tuner = build(name, BACKBONES[precision])
    device = second_step(tuner, "tcpt", B)
    assert {(p.grad.device.type, p.grad.dtype) for p in tuner.parameters() if p.grad is not None} == {
        ("meta", torch.float32)
    }
    assert device.copied <= 64, "a step copies a few indices from the host, no tables"


@pytest.mark.parametrize("loss", losses.available())
def test_every_loss_stays_on_the_device(loss: str) -> None:
    tuner = build("coop", BACKBONES["float32"])
    try:
        second_step(tuner, loss if loss == "ce" else f"ce + {loss}", B)
    except SettingError:  # it replaces cross-entropy
        second_step(tuner, loss, B)


@pytest.mark.parametrize("name", ["cocoop", "maple"])
def test_the_sum_of_all_losses_stays_on_the_device(name: str) -> None:
    """Of those that can be added to cross-entropy, for tuners whose text features depend on the image, or pixels."""
    tuner = build(name, BACKBONES["float32"])
    terms = ["ce"]
    for loss in losses.available():
        with suppress(SettingError):
            tuner.check_objective({term.name: term.weight for term in losses.Objective.parse(f"ce + {loss}").terms})
            terms.append(loss)
    assert len(terms) > len(losses.available()) / 2
    second_step(tuner, " + ".join(terms), B)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", tuners.available())
def test_prediction_stays_on_the_device(name: str, precision: str) -> None:
    tuner = build(name, BACKBONES[precision])
    for each in (tuner, tuner.with_classes(NOVEL)):
        shape = (3, 32, 32) if each.needs_pixels else (each.backbone.embed_dim,)
        with Device():
            logits = each.predict([torch.empty(B, *shape, device="meta")])
        assert logits.device.type == "meta"
        assert logits.dtype == torch.float32
        assert logits.shape == (B, len(each.class_names))


@pytest.mark.parametrize("name", sorted({*LEARNED} - {*AT_ONCE, "proda"}))
def test_two_steps_are_the_same_operations(name: str) -> None:
    """So a CUDA graph of one step would do for all; ProDA draws prompts of other class positions in every step."""
    tuner = build(name, BACKBONES["float32"])
    first, second = (second_step(tuner, "tcpt", B).launches for _ in range(2))
    assert first == second


def test_features_that_live_on_the_device_are_picked_there() -> None:
    bank = FeatureBank(torch.empty(2, 8, 32), torch.zeros(8, dtype=torch.long)).to(torch.device("meta"))
    with Device() as device:
        picked = bank.images(torch.tensor([1, 5]).to("meta"), epoch=2)
    assert picked.shape == (2, 32)
    assert device.copied == 2


class FromTheHost(CoOp):
    """Adds a tensor that it forgot on the CPU."""

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return super().text_features(image) + torch.zeros(len(self.class_names), 1)


class Waits(CoOp):
    """Reads a number in every step."""

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        return {"own": outputs.logits.mean() * outputs.logits.max().item()}


class Filters(CoOp):
    """Picks rows by a condition, so that the shape depends on numbers."""

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        return {"own": outputs.logits[outputs.correct].sum()}


@pytest.mark.parametrize(
    ("kind", "error"),
    [(FromTheHost, "mixes tensors of cpu and meta"), (Waits, "item"), (Filters, "nonzero|meta")],
)
def test_broken_tuners_are_caught(kind: type[CoOp], error: str) -> None:
    backbone: Backbone = BACKBONES["float32"]
    with pytest.raises((RuntimeError, NotImplementedError), match=error):
        second_step(kind(backbone, BASE, context=4), "ce", B)
