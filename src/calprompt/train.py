"""The one training loop: SGD on prompts, with the schedule the public code uses, bit-reproducible and resumable.

All randomness of an epoch is drawn from generators made of (seed, epoch), never from global state, so a run stopped
after any epoch and continued from its `TrainingState` ends with the same bits on a CPU with as many threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from calprompt.diagnostics import diagnose
from calprompt.errors import CalpromptError
from calprompt.losses import Objective
from calprompt.options import check_types
from calprompt.tuners import Tuner

LARGEST = torch.finfo(torch.float32).max  # of a rate that the optimiser can use


@dataclass(frozen=True)
class TrainingConfig:
    """How prompts are trained; the defaults are those of TCPT's CoOp, base to novel."""

    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.002
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    seed: int = 1
    diagnose_every: int = 0  # steps between looks at every term's gradient; 0: never
    autocast: str | None = None  # "bfloat16" or "float16": the frozen towers run in it, prompts stay as they are

    def __post_init__(self) -> None:
        check_types("setting", type(self).__init__, vars(self))
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_epochs", 0), ("seed", 0), ("diagnose_every", 0)):
            if getattr(self, name) < least:
                raise CalpromptError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed >= 2**32:
            raise CalpromptError(f"seed must be below {2**32}, got {self.seed}")
        if not 0 < self.lr < LARGEST:
            raise CalpromptError(f"lr must be a positive number that float32 can hold, got {self.lr}")
        for name in ("momentum", "weight_decay", "warmup_lr"):
            if not 0 <= getattr(self, name) < LARGEST:
                raise CalpromptError(f"{name} must be a number, 0 or more; got {getattr(self, name)}")
        if self.autocast not in (None, "bfloat16", "float16"):
            raise CalpromptError(f"autocast must be bfloat16, float16 or nothing, got {self.autocast!r}")


def learning_rate(epoch: int, config: TrainingConfig) -> float:
    """Of an epoch counted from 1: constant while warming up, then half a cosine that is cut before it reaches 0.

    >>> [round(learning_rate(e, TrainingConfig(epochs=5, lr=0.0035)), 6) for e in range(1, 6)]
    [1e-05, 0.0035, 0.003166, 0.002291, 0.001209]
    """
    if epoch <= config.warmup_epochs:
        return config.warmup_lr
    since = epoch - config.warmup_epochs - 1
    return 0.5 * config.lr * (1 + math.cos(math.pi * since / config.epochs))


class TrainingSet(Protocol):
    """Labelled images a tuner trains on: frozen features, or pixels if it learns visual prompts."""

    labels: Tensor  # [n]

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The images of this epoch's view, [len(indices), ...]."""
        ...

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """The frozen features of the same views, if `images` gives pixels and they are at hand."""
        ...


@dataclass
class TrainingState:
    """All that a run needs to go on after an epoch."""

    epoch: int = 0  # epochs done
    prompts: dict[str, Tensor] = field(default_factory=dict)
    momenta: dict[str, Tensor] = field(default_factory=dict)
    tuner: dict[str, Tensor] = field(default_factory=dict)  # what the tuner itself carries from step to step


class NonFiniteLossError(CalpromptError):
    """The loss or a gradient stopped being a number; the prompts are those of the last good step."""


def batches(n: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Indices of an epoch's batches: shuffled, an incomplete last one left out unless it is the only one."""
    order = torch.randperm(n, generator=seeded(seed, epoch))
    size = min(batch_size, n)
    return [order[start : start + size] for start in range(0, n - size + 1, size)]


def seeded(*numbers: int) -> torch.Generator:
    """A generator of its own for every tuple of numbers."""
    return torch.Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    """One number of many, by splitmix64: neighbouring seeds and epochs have unrelated streams."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63


def train(
    tuner: Tuner,
    data: TrainingSet,
    objective: Objective,
    config: TrainingConfig,
    *,
    state: TrainingState | None = None,
    after_epoch: Callable[[TrainingState, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train the tuner's prompts in place and return a record per epoch: learning rate, accuracy, loss and its terms.

    state        continue after its last epoch
    after_epoch  called with the state to keep and the epoch's record
    """
    parameters = dict(tuner.named_parameters())
    if not parameters:
        return []
    tuner.check_objective({term.name: term.weight for term in objective.terms})
    n = len(data.labels)
    if n == 0:
        raise CalpromptError("there are no training images")
    optimizer = torch.optim.SGD(
        parameters.values(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    done = 0
    if state is not None and state.epoch:
        tuner.load_state_dict(state.prompts)
        for name, momentum in state.momenta.items():
            optimizer.state[parameters[name]]["momentum_buffer"] = momentum.to(parameters[name].device).clone()
        tuner.load_training_state(state.tuner)
        done = state.epoch

    history, every = [], config.diagnose_every
    for epoch in range(done + 1, config.epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch, config)
        seen: dict[str, list[float]] = {}
        steps = batches(n, config.batch_size, config.seed, epoch)
        for step, indices in enumerate(steps, start=1):
            values = training_step(
                tuner,
                optimizer,
                objective,
                data.images(indices, epoch),
                data.labels[indices],
                frozen=data.frozen(indices, epoch),
                seed=mixed(config.seed, epoch, step),
                diagnosed=every > 0 and ((epoch - 1) * len(steps) + step - 1) % every == 0,
                autocast=config.autocast,
                where=f"epoch {epoch}, step {step} of {len(steps)}",
            )
            for name, value in values.items():
                seen.setdefault(name, []).append(value)
        tuner.end_epoch(epoch, config.epochs)
        record = {"epoch": float(epoch), "lr": learning_rate(epoch, config)}
        record |= {name: math.fsum(values) / len(values) for name, values in seen.items()}
        history.append(record)
        if after_epoch is not None:
            momenta = {
                name: optimizer.state[parameter]["momentum_buffer"].detach().cpu().clone()
                for name, parameter in parameters.items()
                if optimizer.state[parameter].get("momentum_buffer") is not None
            }
            prompts = {name: tensor.detach().cpu().clone() for name, tensor in tuner.state_dict().items()}
            own = {name: tensor.detach().cpu().clone() for name, tensor in tuner.training_state().items()}
            after_epoch(TrainingState(epoch, prompts, momenta, own), record)
    return history


def training_step(
    tuner: Tuner,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    images: Tensor,
    labels: Tensor,
    *,
    frozen: Tensor | None = None,
    seed: int = 0,
    diagnosed: bool = False,
    autocast: str | None = None,
    where: str = "this step",
) -> dict[str, float]:
    """One update of the prompts; returns the loss, its terms and the batch accuracy, and diagnostics if asked.

    A loss or gradient that is not finite raises before anything is updated.
    """
    optimizer.zero_grad(set_to_none=True)
    with tuner.backbone.autocasting(getattr(torch, autocast) if autocast else None):
        outputs = tuner(images, labels, frozen=frozen, seed=seed)
    loss, terms = objective(outputs)
    total = float(loss.detach())  # which no loss that is called so may take the place of
    values = {"loss": total, **{name: float(value.detach()) for name, value in terms.items()}} | {"loss": total}
    if not math.isfinite(values["loss"]):
        bad = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
        raise NonFiniteLossError(f"the loss is not finite at {where} ({bad}); lower the learning rate or the weights")
    if diagnosed:
        values |= diagnose(tuner, objective, outputs, terms)
    tuner.backward(loss, outputs)
    for name, parameter in tuner.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NonFiniteLossError(f"the gradient of {name} is not finite at {where}; lower the learning rate")
    optimizer.step()
    return {**values, "accuracy": float(outputs.correct.float().mean())}
