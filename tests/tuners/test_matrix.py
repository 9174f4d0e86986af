"""Every registered tuner × what every tuner must do. A new one joins by registering itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from calprompt import tuners
from calprompt.errors import CalpromptError
from calprompt.losses import Objective
from calprompt.training import TrainingConfig, TrainingState, train, training_step
from calprompt.tuners import Tuner, create
from samples import rounding
from tiny import AT_ONCE, BACKBONES, BASE, LEARNED, NOVEL, Images, build, everything, images, tiny_backbone

NAMES = tuners.available()
BY_CLASS = [name for name in NAMES if tuners.get(name).learns_by_class]
CONFIG = TrainingConfig(epochs=4, batch_size=4, lr=0.02, warmup_epochs=0, seed=3)


@pytest.fixture(params=LEARNED)
def tuner(request: pytest.FixtureRequest) -> Tuner:
    return build(request.param)


@pytest.fixture(params=[name for name in LEARNED if name not in AT_ONCE])
def stepwise(request: pytest.FixtureRequest) -> Tuner:
    return build(request.param)


def cross_entropy(tuner: Tuner, data: Images) -> float:
    return float(torch.nn.functional.cross_entropy(tuner.predict([everything(data)]), data.labels))


@pytest.mark.parametrize("objective", ["ce", "tcpt"])
def test_cross_entropy_falls(tuner: Tuner, objective: str) -> None:
    config = TrainingConfig(epochs=12, batch_size=12, lr=0.02, warmup_epochs=0)
    data = images(tuner)
    before = cross_entropy(tuner, data)
    train(tuner, data, Objective.parse(objective), config)
    assert cross_entropy(tuner, data) < before - 0.02


def test_gradient_reaches_every_prompt_and_no_weight(stepwise: Tuner) -> None:
    tuner, data = stepwise, images(stepwise)
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.0)
    moved = set()
    for _ in range(3):  # ProDA takes some of its prompts at a time; a meta-net may start dead in some units
        training_step(tuner, optimizer, Objective.parse("tcpt"), everything(data), data.labels)
        moved |= {name for name, p in tuner.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}
    assert moved == {name for name, _ in tuner.named_parameters()}
    assert all(p.grad is None and not p.requires_grad for p in tuner.backbone.model.parameters())


def test_only_what_is_learned_is_saved(tuner: Tuner) -> None:
    saved = tuner.state_dict()
    assert set(saved) == {name for name, _ in (*tuner.named_parameters(), *tuner.named_buffers())}
    assert sum(map(torch.numel, saved.values())) < sum(map(torch.numel, tuner.backbone.model.parameters()))
    assert all(p.dtype == torch.float32 for p in tuner.parameters())


def test_saved_prompts_predict_the_same(tuner: Tuner, tmp_path: Path) -> None:
    data = images(tuner)
    train(tuner, data, Objective.parse("tcpt"), CONFIG)
    save_file(tuner.state_dict(), tmp_path / "prompts.safetensors")
    other = build(tuners_name(tuner), seed=99)
    assert not torch.equal(other.predict([everything(data)]), tuner.predict([everything(data)]))
    other.load_state_dict(load_file(tmp_path / "prompts.safetensors"))
    assert torch.equal(other.predict([everything(data)]), tuner.predict([everything(data)]))


def tuners_name(tuner: Tuner) -> str:
    return next(name for name in NAMES if tuners.get(name) is type(tuner))


def test_novel_classes_with_one_call(tuner: Tuner) -> None:
    data = images(tuner)
    train(tuner, data, Objective.parse("ce"), CONFIG)
    before = tuner.predict([everything(data)])
    novel = tuner.with_classes(NOVEL)
    assert novel.predict([everything(data)]).shape == (12, len(NOVEL))
    assert novel.frozen_text.shape[0] == len(NOVEL)
    assert torch.equal(tuner.predict([everything(data)]), before), "the base classes must stay as they were"
    if tuners_name(tuner) in BY_CLASS:  # nothing was learned of these
        share = getattr(tuner, "share", torch.ones(()))
        same = create("zero-shot", tuner.backbone, NOVEL)
        torch.testing.assert_close(novel.predict([everything(data)]), share * same.predict([everything(data)]))
    else:
        same = build(tuners_name(tuner), classes=NOVEL)
        same.load_state_dict(tuner.state_dict())
        torch.testing.assert_close(novel.predict([everything(data)]), same.predict([everything(data)]))


@pytest.mark.parametrize("name", BY_CLASS)
def test_added_classes_leave_what_was_learned_of_the_others(name: str) -> None:
    tuner = build(name)
    data = images(tuner)
    train(tuner, data, Objective.parse("ce"), CONFIG)
    more = tuner.with_classes([NOVEL[0], *BASE[::-1], NOVEL[1]])
    torch.testing.assert_close(
        more.predict([everything(data)])[:, 1:-1].flip(1), tuner.predict([everything(data)]), rtol=0, atol=1e-4
    )
    again = tuner.with_classes([*BASE, BASE[0]])  # a name that stands twice was learned once
    assert not torch.allclose(again.predict([everything(data)])[:, 0], again.predict([everything(data)])[:, -1])


def test_one_image_and_classes_missing_from_the_batch(tuner: Tuner) -> None:
    data = images(tuner, 1)
    history = train(tuner, data, Objective.parse("tcpt"), CONFIG)
    assert len(history) == (1 if tuners_name(tuner) in AT_ONCE else CONFIG.epochs)
    assert all(torch.isfinite(p).all() for p in tuner.parameters())


def test_two_classes(tuner: Tuner) -> None:
    two = build(tuners_name(tuner), classes=BASE[:2])
    data = images(two, 4)
    data.labels = torch.tensor([0, 1, 0, 1])
    train(two, data, Objective.parse("tcpt"), CONFIG)
    assert two.predict([everything(data)]).shape == (4, 2)


def test_batches_of_prediction_do_not_matter(tuner: Tuner) -> None:
    data = everything(images(tuner))
    near = rounding(float(tuner.backbone.logit_scale), tuner.backbone.embed_dim)
    torch.testing.assert_close(tuner.predict(data.split(5)), tuner.predict([data]), rtol=0, atol=near)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(tuner: Tuner, dtype: torch.dtype) -> None:
    other = build(tuners_name(tuner), tiny_backbone(dtype=dtype))
    data = images(other)
    train(other, data, Objective.parse("tcpt"), TrainingConfig(epochs=2, batch_size=4, lr=0.002))
    expected = torch.promote_types(dtype, torch.float32)
    assert all(p.dtype == expected and torch.isfinite(p).all() for p in other.parameters())
    assert other.predict([everything(data)]).dtype == expected


def test_autocast_leaves_prompts_and_logits_in_float32(tuner: Tuner) -> None:
    data = images(tuner)
    train(tuner, data, Objective.parse("tcpt"), TrainingConfig(epochs=2, batch_size=4, lr=0.002, autocast="bfloat16"))
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in tuner.parameters())
    assert tuner.predict([everything(data)]).dtype == torch.float32


def test_training_twice_gives_the_same_bits(tuner: Tuner) -> None:
    other = build(tuners_name(tuner))
    histories = [train(each, images(each), Objective.parse("tcpt"), CONFIG) for each in (tuner, other)]
    assert histories[0] == histories[1]
    for name, tensor in tuner.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize("stop", [1, 3])
def test_resumed_training_gives_the_same_bits(stepwise: Tuner, stop: int) -> None:
    tuner = stepwise
    states: list[TrainingState] = []
    objective = Objective.parse("ce + margin + 5*moments(classes=3)")
    train(tuner, images(tuner), objective, CONFIG, after_epoch=lambda state, record: states.append(state))
    other = build(tuners_name(tuner), seed=42 if tuners_name(tuner) != "proda" else 0)
    train(other, images(other), objective, CONFIG, state=states[stop - 1])
    for name, tensor in tuner.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize("tower", ["resnet", "timm"])
def test_other_image_towers(tuner: Tuner, tower: str) -> None:
    name = tuners_name(tuner)
    if tuner.needs_pixels:
        with pytest.raises(CalpromptError, match=rf"{type(tuner).__name__} needs CLIP's vision transformer"):
            build(name, BACKBONES[tower])
    else:
        other = build(name, BACKBONES[tower])
        train(other, images(other), Objective.parse("tcpt"), CONFIG)
        assert all(torch.isfinite(p).all() for p in other.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_and_bad_templates_are_answered(name: str) -> None:
    with pytest.raises(CalpromptError, match=rf"unknown option of tuner '{name}': 'templat'.* Did you mean 'template'"):
        create(name, BACKBONES["vit"], BASE, templat="x")
    with pytest.raises(CalpromptError, match="exactly once"):
        create(name, BACKBONES["vit"], BASE, template="a photo.")
