"""Every tuner × every loss × every calibrator: trained, applied to base and novel classes, finite. New ones join."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from calprompt import calibrators, losses, metrics
from calprompt.calibrators import StoredLogits
from calprompt.clip.backbone import unit
from calprompt.losses import NAMED, Objective
from calprompt.training import TrainingConfig, train
from calprompt.tuners import Tuner
from tiny import LEARNED, NOVEL, Images, build, everything, images

ONE_EPOCH = TrainingConfig(epochs=1, batch_size=4, lr=0.002, warmup_epochs=0)
LOSSES = sorted({*losses.available(), *NAMED})


def partly_right(logits: Tensor) -> Tensor:
    """Labels that three predictions in four agree with, so that there is something to fit."""
    predicted = logits.argmax(dim=1)
    return torch.where(torch.arange(len(logits)) % 4 > 0, predicted, (predicted + 1) % logits.shape[1])


@torch.no_grad()
def results(tuner: Tuner, base: Tuner, data: Images) -> StoredLogits:
    """What a run stores of a model."""
    logits = tuner.predict([everything(data)])
    return StoredLogits(
        logits,
        partly_right(logits),
        text=tuner.text_features(),
        frozen_text=tuner.frozen_text,
        base_text=base.text_features(),
        base_frozen_text=base.frozen_text,
        zero_shot_logits=tuner.backbone.logit_scale * unit(data.features) @ tuner.frozen_text.T,
        logit_scale=float(tuner.backbone.logit_scale),
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", LEARNED)
def test_every_cell_is_finite(name: str, loss: str) -> None:
    tuner = build(name)
    data = images(tuner, 8)
    objective = Objective.parse(loss if loss in NAMED or loss == "ce" else f"ce + {loss}")
    history = train(tuner, data, objective, ONE_EPOCH)
    assert len(history) == 1
    assert all(bool(torch.isfinite(prompt).all()) for prompt in tuner.parameters())
    base, novel = results(tuner, tuner, data), results(tuner.with_classes(NOVEL), tuner, data)
    for each in calibrators.available():
        calibrator = calibrators.parse(each).fit(base)
        for record in (base, novel) if calibrator.novel else (base,):
            logits = calibrator(replace(record, labels=None))
            assert logits.shape == record.logits.shape, each
            values = metrics.evaluate(logits, record.labels, from_logits=True)
            assert torch.isfinite(torch.tensor(list(values.values()))).all(), (each, values)


def test_the_product_is_of_all_there_is() -> None:
    assert len(LEARNED) >= 7
    assert len(LOSSES) >= 20
    assert len(calibrators.available()) >= 7
