"""The one training loop: SGD on prompts, with the schedule the public code uses, bit-reproducible and resumable.

All randomness of an epoch is drawn from generators made of (seed, epoch), never from global state, so a run stopped
after any epoch and continued from its `TrainingState` ends with the same bits on a CPU with as many threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from calprompt.diagnostics import diagnose, spread
from calprompt.errors import DataError, NonFiniteLossError
from calprompt.losses import Objective
from calprompt.stopwatch import Stopwatch
from calprompt.training_config import TrainingConfig, learning_rate
from calprompt.tuners import Tuner


class TrainingSet(Protocol):
    """Labelled images a tuner trains on: frozen features, or pixels if it learns visual prompts.

    Attributes:
        labels: Class indices [n].
    """

    labels: Tensor

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The views of some images in this epoch, [len(indices), ...]."""
        ...

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """The frozen features of the same views, if `images` returns pixels and the features are stored."""
        ...


@dataclass
class TrainingState:
    """All that a run needs to continue after an epoch.

    Attributes:
        epoch: How many epochs are done.
        prompts: The parameters of the tuner.
        momenta: Of the optimiser, by parameter.
        tuner: The training state of the tuner.
        steps: What was measured in every step that was diagnosed so far: its epoch, its number in it, loss, terms,
            gradient norms and their ratios.
    """

    epoch: int = 0
    prompts: dict[str, Tensor] = field(default_factory=dict)
    momenta: dict[str, Tensor] = field(default_factory=dict)
    tuner: dict[str, Tensor] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)


def batches(n: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Indices of an epoch's batches, shuffled; an incomplete last batch is dropped unless it is the only one."""
    order = torch.randperm(n, generator=seeded(seed, epoch))
    size = min(batch_size, n)
    return [order[start : start + size] for start in range(0, n - size + 1, size)]


def seeded(*numbers: int) -> torch.Generator:
    """A generator whose seed is made of all numbers."""
    return torch.Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    """One seed from several numbers, by splitmix64, so that neighbouring seeds and epochs have unrelated streams."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63


@dataclass(frozen=True)
class TrainingJob:
    """What is to be trained, and on what.

    Attributes:
        tuner: Whose prompts are trained, in place.
        data: What they are trained on.
        objective: What is minimised.
        config: Epochs, batch size, learning rate and so on.
        state: Continue after its last epoch.
        after_epoch: Called with the state to save and the epoch's record.
        stopwatch: Measures every step and every epoch.
    """

    tuner: Tuner
    data: TrainingSet
    objective: Objective
    config: TrainingConfig
    state: TrainingState | None = None
    after_epoch: Callable[[TrainingState, dict[str, float]], None] | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def train(self) -> list[dict[str, float]]:
        """Train by itself; see `calprompt.training.train`."""
        return train(
            self.tuner,
            self.data,
            self.objective,
            self.config,
            state=self.state,
            after_epoch=self.after_epoch,
            stopwatch=self.stopwatch,
        )


def train(
    tuner: Tuner,
    data: TrainingSet,
    objective: Objective,
    config: TrainingConfig,
    *,
    state: TrainingState | None = None,
    after_epoch: Callable[[TrainingState, dict[str, float]], None] | None = None,
    stopwatch: Stopwatch | None = None,
) -> list[dict[str, float]]:
    """Train the tuner's prompts in place.

    Args:
        tuner: Whose prompts are trained.
        data: What they are trained on.
        objective: What is minimised.
        config: Epochs, batch size, learning rate and so on.
        state: Continue after its last epoch.
        after_epoch: Called with the state to save and the epoch's record.
        stopwatch: Measures every step and every epoch.

    Returns:
        A record per epoch: learning rate, accuracy, loss and its terms; if steps are diagnosed, the means of what was
        measured in them, and the spread of the ratios.

    Raises:
        DataError: if there are no training images.
        NonFiniteLossError: if the loss or a gradient is not finite; the prompts are those of the last good step.
    """
    if not any(True for _ in tuner.parameters()):
        return []
    training = Training(TrainingJob(tuner, data, objective, config, state, after_epoch, stopwatch or Stopwatch()))
    for epoch in training.epochs():
        for step in training.begin_epoch(epoch):
            values = training_step(
                training.tuner,
                training.optimizer,
                objective,
                step.images,
                step.labels,
                frozen=step.frozen,
                seed=step.seed,
                diagnosed=step.diagnosed,
                where=step.where,
            )
            training.record(step, values)
        training.end_epoch()
    return training.history


@dataclass(frozen=True)
class Step:
    """A batch of a training.

    Attributes:
        images: Pixels or frozen features.
        labels: Of the images.
        frozen: Frozen features of the same pixels, if there are any.
        seed: Of everything drawn in the step.
        number: In its epoch, counted from 1.
        diagnosed: Whether to add gradient norms and their ratios.
        where: Which step this is, for errors.
    """

    images: Tensor
    labels: Tensor
    frozen: Tensor | None
    seed: int
    number: int
    diagnosed: bool
    where: str


class Training:
    """The bookkeeping of a training: batches, learning rate, optimiser, history and states to continue from.

    Args:
        job: What is to be trained.

    Attributes:
        job: What is trained.
        tuner: Whose prompts are trained, over the backbone in the precision of the training.
        optimizer: Updates them.
        history: A record per epoch.

    Raises:
        DataError: if there are no training images.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job, config = job, job.config
        self.tuner = job.tuner
        if config.autocast is not None:
            self.tuner = job.tuner.with_backbone(job.tuner.backbone.view(autocast=config.autocast))
        self.tuner.check_objective({term.name: term.weight for term in job.objective.terms})
        if len(job.data.labels) == 0:
            raise DataError("there are no training images")
        self._parameters = dict(self.tuner.named_parameters())
        self.optimizer = torch.optim.SGD(
            self._parameters.values(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.history: list[dict[str, float]] = []
        self._epoch = 0
        self._per_step: dict[str, list[float]] = {}
        self._diagnosed = [] if job.state is None else list(job.state.steps)
        if job.state is not None and job.state.epoch:
            self._continue_from(job.state)

    def _continue_from(self, state: TrainingState) -> None:
        self.tuner.load_state_dict(state.prompts)
        for name, momentum in state.momenta.items():
            parameter = self._parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device).clone()
        self.tuner.load_training_state(state.tuner)
        self._epoch = state.epoch

    def epochs(self) -> range:
        """Those that are left, counted from 1."""
        return range(self._epoch + 1, self.job.config.epochs + 1)

    def begin_epoch(self, epoch: int) -> Iterator[Step]:
        """Set the learning rate, and give the steps of an epoch."""
        config, data = self.job.config, self.job.data
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(epoch, config)
        self._epoch, self._per_step = epoch, {}
        self.job.stopwatch.begin_epoch()
        parts, every = batches(len(data.labels), config.batch_size, config.seed, epoch), config.diagnose_every
        for number, indices in enumerate(parts, start=1):
            yield Step(
                images=data.images(indices, epoch),
                labels=data.labels[indices],
                frozen=data.frozen(indices, epoch),
                seed=mixed(config.seed, epoch, number),
                number=number,
                diagnosed=every > 0 and ((epoch - 1) * len(parts) + number - 1) % every == 0,
                where=f"epoch {epoch}, step {number} of {len(parts)}",
            )

    def record(self, step: Step, values: Mapping[str, float]) -> None:
        """Note what a step returned."""
        for name, value in values.items():
            self._per_step.setdefault(name, []).append(value)
        if step.diagnosed:
            self._diagnosed.append({"epoch": self._epoch, "step": step.number, **values})
        self.job.stopwatch.end_step()

    def end_epoch(self) -> None:
        """Add the means of the steps to the history, and hand out the state to continue from."""
        config = self.job.config
        self.tuner.end_epoch(self._epoch, config.epochs)
        self.job.stopwatch.end_epoch()
        record = {"epoch": float(self._epoch), "lr": learning_rate(self._epoch, config)}
        record |= {name: math.fsum(values) / len(values) for name, values in self._per_step.items()}
        record |= spread([each for each in self._diagnosed if each["epoch"] == self._epoch])
        self.history.append(record)
        if self.job.after_epoch is not None:
            self.job.after_epoch(self._state(), record)

    def _state(self) -> TrainingState:
        momenta = {
            name: self.optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._parameters.items()
            if self.optimizer.state[parameter].get("momentum_buffer") is not None
        }
        tuner = self.tuner
        prompts, momenta, extra = map(_copied, (tuner.state_dict(), momenta, tuner.training_state()))
        return TrainingState(self._epoch, prompts, momenta, extra, list(self._diagnosed))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


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
    where: str = "this step",
) -> dict[str, float]:
    """One update of the prompts.

    Args:
        tuner: Whose prompts are updated.
        optimizer: Updates them.
        objective: What is minimised.
        images: Pixels or frozen features of the batch.
        labels: Of the batch.
        frozen: Frozen features of the same pixels, if there are any.
        seed: Of this step.
        diagnosed: Whether to add gradient norms and their ratios.
        where: Which step this is, for errors.

    Returns:
        The loss, its terms, the batch accuracy, and diagnostics.

    Raises:
        NonFiniteLossError: if the loss or a gradient is not finite; nothing is updated then.
    """
    optimizer.zero_grad(set_to_none=True)
    outputs = tuner(images, labels, frozen=frozen, seed=seed)
    loss, terms = objective(outputs)
    values = step_values(loss, terms, where)
    if diagnosed:
        values |= diagnose(tuner, objective, outputs, terms)
    tuner.backward(loss, outputs)
    update(tuner, optimizer, where)
    return {**values, "accuracy": float(outputs.correct.float().mean())}


def step_values(loss: Tensor, terms: Mapping[str, Tensor], where: str) -> dict[str, float]:
    """The loss of a step and its terms as numbers.

    Raises:
        NonFiniteLossError: if the loss is not finite.
    """
    total = float(loss.detach())
    values = {"loss": total, **{name: float(value.detach()) for name, value in terms.items()}}
    values["loss"] = total  # also if a term has this name
    if not math.isfinite(total):
        bad = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
        raise NonFiniteLossError(f"the loss is not finite at {where} ({bad}); lower the learning rate or the weights")
    return values


def update(tuner: Tuner, optimizer: torch.optim.Optimizer, where: str) -> None:
    """Move the prompts along their gradients.

    Raises:
        NonFiniteLossError: if a gradient is not finite; nothing is moved then.
    """
    for name, parameter in tuner.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NonFiniteLossError(f"the gradient of {name} is not finite at {where}; lower the learning rate")
    optimizer.step()
