"""The one training loop: SGD on prompts, with the schedule the public code uses, bit-reproducible and resumable.

All randomness of an epoch is drawn from generators made of (seed, epoch), never from global state, so a run stopped
after any epoch and continued from its `TrainingState` ends with the same bits on a CPU with as many threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from calprompt.diagnostics import diagnose, spread
from calprompt.errors import DataError, NonFiniteLossError
from calprompt.hardware import Stopwatch
from calprompt.losses import Objective
from calprompt.training_config import TrainingConfig, learning_rate
from calprompt.tuners import Tuner

HALF = torch.float16  # whose smallest number is 6e-8: gradients below it would be 0
READ_EVERY = 50  # steps between two looks at losses and gradients: on a GPU, a look waits for all work before it


class TrainingSet(Protocol):
    """Labelled images a tuner trains on: frozen features, or pixels if it learns visual prompts.

    Attributes:
        labels: Class indices [n].
    """

    labels: Tensor

    @property
    def views(self) -> int:
        """How many views of each image the epochs take in turn."""
        ...

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
        epoch: Number of finished epochs.
        prompts: The parameters of the tuner.
        momenta: The optimiser's momentum buffers, by parameter.
        tuner: The training state of the tuner.
        scale: That of the loss scale, in float16.
        steps: Measurements of every step diagnosed so far: its epoch, its number in it, loss, terms,
            gradient norms and their ratios.
    """

    epoch: int = 0
    prompts: dict[str, Tensor] = field(default_factory=dict)
    momenta: dict[str, Tensor] = field(default_factory=dict)
    tuner: dict[str, Tensor] = field(default_factory=dict)
    scale: dict[str, Tensor] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)


def batches(n: int, batch_size: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> list[Tensor]:
    """Indices of an epoch's batches, shuffled; an incomplete last batch is dropped unless it is the only one."""
    order = torch.randperm(n, generator=seeded(seed, epoch)).to(device)
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
        data: Training images and labels.
        objective: The objective to minimise.
        config: Epochs, batch size, learning rate and so on.
        state: Continue after its last epoch.
        after_epoch: Called with the state to save and the epoch's record.
        stopwatch: Measures every step and every epoch.

    Returns:
        A record per epoch: learning rate, accuracy, loss and its terms; if steps are diagnosed, the means of what was
        measured in them, and the spread of the ratios.

    Raises:
        DataError: if there are no training images.
        NonFiniteLossError: if the loss or a gradient is not finite; the prompts are those of the last good epoch.
    """
    if not tuner.learns:
        return []
    if config.autocast is not None:
        tuner = tuner.with_backbone(tuner.backbone.view(autocast=config.autocast))
    weights = {term.name: term.weight for term in objective.terms}
    tuner.check_objective(weights)
    if len(data.labels) == 0:
        raise DataError("there are no training images")
    if not tuner.needs_pixels:
        everything, views = torch.arange(len(data.labels)), range(1, data.views + 1)
        if tuner.begin(torch.stack([data.images(everything, view) for view in views]), data.labels, weights):
            return [_learned_at_once(tuner, data, objective, after_epoch)]
    parameters = dict(tuner.named_parameters())
    optimizer = torch.optim.SGD(
        parameters.values(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    scale = LossScale(tuner.backbone.device) if tuner.backbone.computes_in == HALF else None
    state, stopwatch = state or TrainingState(), stopwatch or Stopwatch()
    if state.epoch:
        tuner.load_state_dict(state.prompts)
        for name, momentum in state.momenta.items():
            optimizer.state[parameters[name]]["momentum_buffer"] = momentum.to(parameters[name].device).clone()
        tuner.load_training_state(state.tuner)
        if scale is not None:
            scale.load_state(state.scale)
    history: list[dict[str, float]] = []
    diagnosed, every = list(state.steps), config.diagnose_every
    for epoch in range(state.epoch + 1, config.epochs + 1):
        rate = learning_rate(epoch, config)
        for group in optimizer.param_groups:
            group["lr"] = rate
        stopwatch.begin_epoch()
        before = {name: tensor.detach().clone() for name, tensor in tuner.state_dict().items()}
        parts = batches(len(data.labels), config.batch_size, config.seed, epoch, data.labels.device)
        measured: dict[str, list[float]] = {}
        unread: dict[int, Step] = {}
        for number, indices in enumerate(parts, start=1):
            is_diagnosed = every > 0 and ((epoch - 1) * len(parts) + number - 1) % every == 0
            unread[number] = training_step(
                tuner,
                optimizer,
                objective,
                data.images(indices, epoch),
                data.labels[indices],
                frozen=data.frozen(indices, epoch),
                seed=mixed(config.seed, epoch, number),
                diagnosed=is_diagnosed,
                scale=scale,
            )
            if is_diagnosed or len(unread) == READ_EVERY or number == len(parts):
                try:
                    read = read_steps(unread, f"epoch {epoch}, step {{}} of {len(parts)}")
                except NonFiniteLossError:
                    tuner.load_state_dict(before)
                    raise
                for values in read:
                    for name, value in values.items():
                        measured.setdefault(name, []).append(value)
                if is_diagnosed:
                    diagnosed.append({"epoch": epoch, "step": number, **read[-1]})
                unread = {}
            stopwatch.end_step()
        tuner.end_epoch(epoch, config.epochs)
        stopwatch.end_epoch()
        record = {"epoch": float(epoch), "lr": rate}
        record |= {name: math.fsum(values) / len(values) for name, values in measured.items()}
        record |= spread([each for each in diagnosed if each["epoch"] == epoch])
        history.append(record)
        if after_epoch is not None:
            after_epoch(_state(epoch, tuner, optimizer, scale, diagnosed), record)
    return history


@torch.no_grad()
def _learned_at_once(
    tuner: Tuner,
    data: TrainingSet,
    objective: Objective,
    after_epoch: Callable[[TrainingState, dict[str, float]], None] | None,
) -> dict[str, float]:
    """The record of a tuner that `begin` has trained, which stands for all epochs."""
    outputs = tuner(data.images(torch.arange(len(data.labels)), 1), data.labels)
    loss, terms = objective(outputs)
    record = {"epoch": 1.0, "lr": 0.0, "loss": float(loss)} | {name: float(value) for name, value in terms.items()}
    record["accuracy"] = float(outputs.correct.float().mean())
    if not math.isfinite(record["loss"]):
        raise NonFiniteLossError(f"the loss of {type(tuner).__name__} is not finite; are all image features finite?")
    if after_epoch is not None:
        after_epoch(TrainingState(1, _copied(tuner.state_dict())), record)
    return record


def _state(
    epoch: int,
    tuner: Tuner,
    optimizer: torch.optim.Optimizer,
    scale: LossScale | None,
    diagnosed: list[dict[str, float]],
) -> TrainingState:
    momenta = {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in tuner.named_parameters()
        if optimizer.state[parameter].get("momentum_buffer") is not None
    }
    prompts, momenta, extra = map(_copied, (tuner.state_dict(), momenta, tuner.training_state()))
    return TrainingState(
        epoch, prompts, momenta, extra, {} if scale is None else _copied(scale.state()), list(diagnosed)
    )


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


class LossScale:
    """A power of two that the loss is multiplied with, and gradients are divided by, while towers compute in float16.

    The rule is that of torch's `GradScaler`, which the public code uses: a step whose gradients overflow leaves prompts
    and momenta as they were and halves the scale; after 2,000 steps in a row without one it is doubled. `GradScaler`
    waits for the device in every step; here the decision is made on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), 65536.0, device=device)
        self.good = torch.zeros((), device=device)  # steps since it last changed

    @torch.no_grad()
    def update(self, optimizer: torch.optim.Optimizer, fits: Tensor) -> None:
        """A step of the optimiser, undone where `fits` says that gradients have overflowed."""
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        momenta = [optimizer.state[each].get("momentum_buffer") for each in parameters]
        old = [parameter.clone() for parameter in parameters]
        old += [torch.zeros_like(p) if m is None else m.clone() for p, m in zip(parameters, momenta, strict=True)]
        optimizer.step()
        momenta = [optimizer.state[each].get("momentum_buffer") for each in parameters]
        for tensor, before in zip((*parameters, *momenta), old, strict=True):
            if tensor is not None:  # without momentum there is none
                tensor.copy_(torch.where(fits, tensor, before))
        self.good = torch.where(fits, self.good + 1, 0)
        grows = self.good >= 2000
        self.factor = torch.where(fits, torch.where(grows, 2 * self.factor, self.factor), 0.5 * self.factor)
        self.good = torch.where(grows, 0, self.good)

    def state(self) -> dict[str, Tensor]:
        """What it takes to continue."""
        return {"factor": self.factor, "good": self.good}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self.factor, self.good = (state[name].to(self.factor.device) for name in ("factor", "good"))


@dataclass(frozen=True)
class Step:
    """What a step measured, as scalars that stay on their device until somebody reads them.

    Attributes:
        values: The loss, its terms, what was diagnosed, the accuracy, and, in float16, whether the step was skipped.
        finite: Whether the gradient of each parameter is finite, or the loss scale can still be lowered.
    """

    values: dict[str, Tensor]
    finite: dict[str, Tensor]


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
    scale: LossScale | None = None,
) -> Step:
    """One update of the prompts, without waiting for the device."""
    optimizer.zero_grad(set_to_none=True)
    outputs = tuner(images, labels, frozen=frozen, seed=seed)
    loss, terms = objective(outputs)
    values = {"loss": loss} | terms | {"loss": loss}  # also if a term has this name
    if diagnosed:
        found = diagnose(tuner, objective, outputs, terms)
        values |= {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}
    tuner.backward(loss, outputs, None if scale is None else scale.factor)
    finite = {
        name: torch.isfinite(parameter.grad).all()
        for name, parameter in tuner.named_parameters()
        if parameter.grad is not None
    }
    if scale is None:
        optimizer.step()
    else:
        fits = torch.stack([torch.isfinite(loss), *finite.values()]).all()
        finite = {name: each | (scale.factor > 1) for name, each in finite.items()}
        scale.update(optimizer, fits)
        values["skipped"] = (~fits).float()
    values["accuracy"] = outputs.correct.float().mean()
    return Step({name: value.detach() for name, value in values.items()}, finite)


def read_steps(steps: Mapping[int, Step], where: str) -> list[dict[str, float]]:
    """The values of some steps by their numbers, in one transfer from the device; `where` names a step in an error."""
    scalars = [value for step in steps.values() for value in (*step.values.values(), *step.finite.values())]
    device = scalars[0].device
    numbers = iter(torch.stack([scalar.to(device, torch.float64) for scalar in scalars]).tolist())
    rows = []
    for number, step in steps.items():
        values, finite = ({name: next(numbers) for name in part} for part in (step.values, step.finite))
        bad = ", ".join(f"{name} = {value}" for name, value in values.items() if not math.isfinite(value))
        if not math.isfinite(values["loss"]):
            raise NonFiniteLossError(
                f"the loss is not finite at {where.format(number)} ({bad}); lower the learning rate or the weights"
            )
        for name in (name for name, is_finite in finite.items() if not is_finite):
            raise NonFiniteLossError(
                f"the gradient of {name} is not finite at {where.format(number)}; lower the learning rate"
            )
        rows.append(values)
    return rows
