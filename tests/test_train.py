"""The training loop: its schedule, its batches, and how it stops."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calprompt.errors import CalpromptError
from calprompt.losses import Objective
from calprompt.training import (
    LossScale,
    NonFiniteLossError,
    TrainingConfig,
    batches,
    learning_rate,
    read_steps,
    seeded,
    train,
    training_step,
)
from calprompt.tuners import CoOp, ZeroShot
from tiny import tiny_backbone

BACKBONE = tiny_backbone()
NAMES = ["cat", "dog", "tree"]


@dataclass
class Features:
    features: Tensor
    labels: Tensor
    views: int = 1

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        return self.features[indices]

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        return None


def data(n: int = 6) -> Features:
    return Features(torch.randn(n, 32, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 1000), st.integers(1, 300))
def test_batches_are_a_shuffle_without_repeats(n: int, size: int, seed: int, epoch: int) -> None:
    drawn = batches(n, size, seed, epoch)
    taken = torch.cat(drawn).tolist()
    assert len(drawn) == max(1, n // size), "at least one step; an incomplete last batch is left out"
    assert len(set(taken)) == len(taken) <= n
    assert all(len(batch) == min(size, n) for batch in drawn)
    assert all(torch.equal(a, b) for a, b in zip(drawn, batches(n, size, seed, epoch), strict=True))


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    orders = {tuple(batches(20, 20, seed, epoch)[0].tolist()) for seed in range(20) for epoch in range(1, 21)}
    assert len(orders) == 400


def test_generators_depend_on_every_number() -> None:
    first = {
        torch.randint(2**62, (1,), generator=seeded(*key)).item() for key in [(0,), (0, 0), (1, 0), (0, 1), (1, 1)]
    }
    assert len(first) == 5


def test_global_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = CoOp(BACKBONE, NAMES, context=4)
    train(one, data(), Objective.parse("tcpt"), TrainingConfig(epochs=2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    other = CoOp(BACKBONE, NAMES, context=4)
    train(other, data(), Objective.parse("tcpt"), TrainingConfig(epochs=2))
    assert torch.equal(one.context, other.context)


def test_schedule_without_warm_up_is_the_plain_cosine() -> None:
    config = TrainingConfig(epochs=10, lr=1.0, warmup_epochs=0)
    rates = [learning_rate(e, config) for e in range(1, 11)]
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        cosine.step()
    assert rates == pytest.approx(expected)


def test_history_has_every_term() -> None:
    history = train(CoOp(BACKBONE, NAMES, context=4), data(), Objective.parse("tcpt"), TrainingConfig(epochs=3))
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert set(history[0]) == {"epoch", "lr", "loss", "ce", "margin", "moments", "accuracy"}


def test_nothing_to_learn_is_no_training() -> None:
    assert train(ZeroShot(BACKBONE, NAMES), data(), Objective.parse("ce"), TrainingConfig()) == []


def test_non_finite_loss_names_the_step_and_keeps_good_prompts() -> None:
    tuner, broken = CoOp(BACKBONE, NAMES, context=4), data(4)
    good: list[Tensor] = []
    broken.features = broken.features.clone()

    def poison(state: object, record: dict) -> None:
        good.append(tuner.context.detach().clone())
        if record["epoch"] == 2:
            broken.features[:] = float("nan")

    with pytest.raises(NonFiniteLossError, match=r"epoch 3, step 1 of 2 \(loss = nan, ce = nan"):
        train(tuner, broken, Objective.parse("tcpt"), TrainingConfig(batch_size=2), after_epoch=poison)
    assert torch.equal(tuner.context, good[-1])


def test_non_finite_gradient_stops_before_the_update() -> None:
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(context: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:
            return gradient * float("inf")

    tuner = CoOp(BACKBONE, NAMES, context=4)
    before = tuner.context.detach().clone()
    tuner.logits = lambda image, text: Steep.apply(20 * image @ text.T)  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLossError, match="the gradient of context is not finite at epoch 1, step 1 of 2"):
        train(tuner, data(4), Objective.parse("ce"), TrainingConfig(batch_size=2))
    assert torch.equal(tuner.context, before)


def test_no_images_is_an_error() -> None:
    with pytest.raises(CalpromptError, match="no training images"):
        train(CoOp(BACKBONE, NAMES, context=4), data(0), Objective.parse("ce"), TrainingConfig())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"lr": 0.0}, "lr must be a positive number"),
        ({"lr": float("inf")}, "lr must be a positive number"),
        ({"autocast": "int8"}, "autocast must be bfloat16, float16 or nothing"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings_are_answered(setting: dict, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        TrainingConfig(**setting)


HALF = BACKBONE.view(autocast=torch.float16)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight", [0.01, 100], ids=["fits", "overflows"])
def test_float16_trains_as_with_the_gradient_scaler_of_torch(weight: float, momentum: float) -> None:
    ours, theirs = CoOp(HALF, NAMES, context=4, seed=1), CoOp(HALF, NAMES, context=4, seed=1)
    images, objective = data(4), Objective.parse(f"{weight}*ce")
    optimizers = [torch.optim.SGD(t.parameters(), lr=1e-4, momentum=momentum, weight_decay=0.1) for t in (ours, theirs)]
    scale, reference = LossScale(HALF.device), torch.amp.GradScaler("cpu")
    skipped = []
    for _ in range(12):
        step = training_step(ours, optimizers[0], objective, images.features, images.labels, scale=scale)
        skipped += [row["skipped"] for row in read_steps({1: step}, "step {}")]
        optimizers[1].zero_grad()
        reference.scale(objective(theirs(images.features, images.labels))[0]).backward()
        reference.step(optimizers[1])
        reference.update()
        assert float(scale.factor) == reference.get_scale()
        assert torch.equal(ours.context, theirs.context)
    assert (sum(skipped) > 0) == (weight > 1)
    assert skipped[-1] == 0


def test_the_loss_scale_doubles_after_2000_steps_that_fit() -> None:
    scale, parameter = LossScale(torch.device("cpu")), torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    parameter.grad = torch.ones(())
    scale.good += 1998
    for expected in (65536, 131072, 131072):
        scale.update(optimizer, torch.tensor(True))
        assert float(scale.factor) == expected


def test_small_gradients_survive_float16() -> None:
    gradients = []
    for scale in (None, LossScale(HALF.device)):
        tuner = CoOp(HALF, NAMES, context=4, seed=1)
        optimizer = torch.optim.SGD(tuner.parameters(), lr=1e-4)
        training_step(tuner, optimizer, Objective.parse("1e-9*ce"), data(4).features, data(4).labels, scale=scale)
        gradients.append(float(tuner.context.grad.abs().max()))
    assert gradients[0] == 0
    assert gradients[1] > 0


def test_an_interrupted_run_in_float16_ends_with_the_same_bits() -> None:
    config = TrainingConfig(epochs=3, batch_size=2, lr=1e-4, autocast="float16")
    objective, states = Objective.parse("2000*ce"), []
    whole, again = CoOp(BACKBONE, NAMES, context=4, seed=1), CoOp(BACKBONE, NAMES, context=4, seed=1)
    history = train(whole, data(8), objective, config, after_epoch=lambda state, _: states.append(state))
    train(again, data(8), objective, config, state=states[0])
    assert history[0]["skipped"] > 0
    assert torch.equal(whole.context, again.context)


def test_gradients_that_overflow_at_any_scale_are_an_error() -> None:
    config = TrainingConfig(epochs=20, batch_size=2, lr=1e-4, autocast="float16")
    with pytest.raises(NonFiniteLossError, match="the gradient of context is not finite"):
        train(CoOp(BACKBONE, NAMES, context=4), data(8), Objective.parse("1e9*ce"), config)
