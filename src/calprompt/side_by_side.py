"""Several trainings in one pass: runs that differ in seed, loss or learning rate share their steps.

    contexts of K runs ──▶ one pass through the text tower ──▶ text features [K, C, D]
                                                                 ├─ run 1: its images, its loss ─┐
                                                                 ├─ run 2: …                     ├─ gradients
                                                                 └─ run K: …                     ┘  [K, C, D]
    contexts' gradients ◀── one pass back through the text tower ◀───────────────────────────────┘

A small run is mostly the cost of starting operations, which K runs pay once instead of K times. Each run keeps its own
batches, optimiser, history and states, so that it ends with the prompts it would have had alone, up to the rounding of
matrix products whose number of rows differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from calprompt.errors import NonFiniteLossError
from calprompt.training import Step, Training, TrainingJob, step_values, update
from calprompt.tuners import Tuner


def are_stackable(first: TrainingJob, other: TrainingJob) -> bool:
    """Whether two trainings can share their steps.

    Args:
        first: A training.
        other: Another.
    """
    a, b = first.tuner, other.tuner
    return (
        is_stackable(first)
        and is_stackable(other)
        and type(a) is type(b)
        and a.backbone.model is b.backbone.model
        and a.backbone.chunk == b.backbone.chunk
        and first.config.autocast == other.config.autocast
        and a.layout.lengths == b.layout.lengths
        and a.layout.context_shape == b.layout.context_shape
        and all(torch.equal(getattr(a.layout, name), getattr(b.layout, name)) for name in ("frozen", "prefix", "rest"))
    )


def is_stackable(job: TrainingJob) -> bool:
    """Whether a training can share its steps with others at all: gradient norms of its terms need a pass of their own.

    Args:
        job: The training.
    """
    return bool(vars(type(job.tuner)).get("stackable")) and job.config.diagnose_every == 0


@dataclass
class _Member:
    """One of the trainings."""

    training: Training
    steps: Iterator[Step] = field(default_factory=lambda: iter(()))
    error: Exception | None = None

    @property
    def tuner(self) -> Tuner:
        return self.training.tuner


def train_side_by_side(jobs: Sequence[TrainingJob], *, exact: bool = False) -> list[Exception | None]:
    """Train several tuners in place, each as `train` would.

    One that fails leaves the others alone. One that continues after a later epoch joins them there.

    Args:
        jobs: Of which each two are stackable.
        exact: Share steps only where that gives the same bits as training alone. It does on processors whose matrix
            products do not depend on the number of rows, which is tried out for every number of trainings at work.

    Returns:
        Why each of them failed, or None.

    Raises:
        ValueError: if they are not stackable.
        DataError: if one has no training images.
    """
    if not all(are_stackable(jobs[0], job) for job in jobs):
        raise ValueError("these trainings cannot share their steps")
    members = [_Member(Training(job)) for job in jobs]
    same_bits: dict[int, bool] = {}
    epochs = [member.training.epochs() for member in members]
    for epoch in range(1, max(job.config.epochs for job in jobs) + 1):
        active = [member for member, own in zip(members, epochs, strict=True) if member.error is None and epoch in own]
        for member in active:
            member.steps = member.training.begin_epoch(epoch)
        while batch := _next_steps(active):
            if exact and len(batch) not in same_bits:
                same_bits[len(batch)] = _gives_same_bits([member.tuner for member, _ in batch])
            for part in [batch] if same_bits.get(len(batch), True) else [[each] for each in batch]:
                _step(part)
        for member in active:
            if member.error is None:
                member.training.end_epoch()
    return [member.error for member in members]


def _next_steps(members: Sequence[_Member]) -> list[tuple[_Member, Step]]:
    """The next step of each member that has one."""
    found = [(member, next(member.steps, None)) for member in members if member.error is None]
    return [(member, step) for member, step in found if step is not None]


def _gives_same_bits(tuners: Sequence[Tuner]) -> bool:
    """Whether text features and gradients of some tuners together are those of each alone."""
    together = type(tuners[0]).stacked_text_features(tuners)
    towards = torch.linspace(-1, 1, together.numel(), dtype=together.dtype, device=together.device).view_as(together)
    flat = [parameter for tuner in tuners for parameter in tuner.parameters()]
    gradients = torch.autograd.grad(together, flat, towards)
    alone = [type(tuner).stacked_text_features([tuner]) for tuner in tuners]
    own = [
        gradient
        for tuner, text, direction in zip(tuners, alone, towards, strict=True)
        for gradient in torch.autograd.grad(text, list(tuner.parameters()), direction[None])
    ]
    return torch.equal(together, torch.cat(alone)) and all(map(torch.equal, gradients, own))


def _step(batch: Sequence[tuple[_Member, Step]]) -> None:
    """One update of each member's prompts."""
    tuners = [member.tuner for member, _ in batch]
    text = type(tuners[0]).stacked_text_features(tuners)  # [K, C, D]
    leaves = text.detach().requires_grad_()
    parts: list[tuple[Tensor, ...]] = []
    values: dict[int, dict[str, float]] = {}
    for place, ((member, step), own) in enumerate(zip(batch, leaves, strict=True)):
        try:
            values[place], parts_of_loss = _evaluate(member, step, own)
        except Exception as error:  # of a loss, which is nothing to the others
            member.error = error
        else:
            parts.append(parts_of_loss)
    if not parts:
        return
    gradients = _gradients(tuners, text, leaves, parts)
    for place, (member, step) in enumerate(batch):
        if member.error is not None:
            continue
        for number, parameter in enumerate(member.tuner.parameters()):
            parameter.grad = member.tuner.combine_gradients(*(part[place][number] for part in gradients))
        try:
            update(member.tuner, member.training.optimizer, step.where)
        except NonFiniteLossError as error:
            member.error = error
            continue
        member.training.record(step, values[place])


def _evaluate(member: _Member, step: Step, text: Tensor) -> tuple[dict[str, float], tuple[Tensor, ...]]:
    """Numbers of a member's step, and what is differentiated."""
    tuner = member.tuner
    image = tuner.image_features(step.images)
    logits = tuner.logits(image, text)
    outputs = tuner.outputs(step.images, step.labels, image, text, logits, step.frozen, step.seed)
    loss, terms = member.training.job.objective(outputs)
    values = step_values(loss, terms, step.where) | {"accuracy": float(outputs.correct.float().mean())}
    return values, tuner.loss_parts(loss, outputs)


def _gradients(
    tuners: Sequence[Tuner], text: Tensor, leaves: Tensor, parts: Sequence[tuple[Tensor, ...]]
) -> list[list[list[Tensor]]]:
    """Gradients by part of the loss, member and parameter: one pass back through the text tower for each part."""
    parameters = [list(tuner.parameters()) for tuner in tuners]
    flat = [parameter for each in parameters for parameter in each]
    summed = [torch.stack(same).sum() for same in zip(*parts, strict=True)]
    found = []
    for number, part in enumerate(summed, start=1):
        (towards,) = torch.autograd.grad(part, leaves, retain_graph=True)
        gradients = iter(torch.autograd.grad(text, flat, towards, retain_graph=number < len(summed)))
        found.append([[next(gradients) for _ in each] for each in parameters])
    return found
