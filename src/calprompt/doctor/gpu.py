"""All tuners on an accelerator against the same steps on the CPU: whether they agree, and how long a step takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from calprompt import pocket, tuners
from calprompt.clip.backbone import Backbone
from calprompt.doctor.examination import OK, PROBLEM, Finding, note, problem
from calprompt.doctor.models import load_embedded
from calprompt.errors import CalpromptError
from calprompt.losses import Objective
from calprompt.training import LossScale, mixed, read_steps, training_step

STEPS, WARM_UP, BATCH = 20, 3, 8
AGREEMENT = {
    None: 1e-3,
    torch.bfloat16: 0.02,
    torch.float16: 0.01,
}  # relative, of losses over 20 steps: a few roundings
REPORT = "Please report this with the output of 'calprompt doctor --gpu --json'."


@dataclass(frozen=True)
class Training:
    """The losses of some steps, and the milliseconds of one."""

    losses: list[float]
    milliseconds: float


def check_gpu() -> Iterator[Finding]:
    """Verify the accelerator that torch finds, if there is one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        yield note("GPU", "torch finds no GPU, so there is nothing to verify", "Install a build of torch for it.")
        return
    yield from verify_device(str(accelerator))


def verify_device(device: str) -> Iterator[Finding]:
    """Train every tuner of the pocket on the CPU and on a device, in float32 and in half precision on the device."""
    host = load_embedded("pocket")
    there = host.to(device)
    for name in tuners.available():
        if not tuners.get(name).learns:
            continue
        expected = None
        for dtype, tolerance in AGREEMENT.items():
            label = f"{name}, {str(dtype or torch.float32).removeprefix('torch.')}"
            try:
                expected = expected or train_steps(name, host)
                found = train_steps(name, there.view(autocast=dtype))
            except (CalpromptError, RuntimeError) as error:
                yield problem(label, " ".join(str(error).split())[:300], REPORT)
                continue
            pairs = zip(expected.losses, found.losses, strict=True)
            gap = max(abs(theirs - ours) / max(abs(ours), 1e-6) for ours, theirs in pairs)
            value = (
                f"losses within {gap:.1e} of the CPU's (up to {tolerance:g} is rounding); "
                f"{found.milliseconds:.1f} ms a step, {expected.milliseconds:.1f} ms on the CPU"
            )
            fine = gap <= tolerance
            yield Finding(label, OK if fine else PROBLEM, value, "" if fine else REPORT)


def train_steps(name: str, backbone: Backbone) -> Training:
    """Some steps of a tuner with TCPT on random images, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    classes = pocket.sheet("objects").class_names[:10]
    tuner = tuners.create(name, backbone, classes)
    size = backbone.preprocessing.size
    shape = (3, size, size) if tuner.needs_pixels else (backbone.embed_dim,)
    images = torch.randn(BATCH, *shape, generator=generator).to(backbone.device)
    labels = (torch.arange(BATCH) % len(classes)).to(backbone.device)
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)
    scale = LossScale(backbone.device) if backbone.computes_in == torch.float16 else None
    objective, losses, start = Objective.parse("tcpt"), [], 0.0
    for number in range(STEPS):
        if number == WARM_UP:
            start = time.perf_counter()
        step = training_step(tuner, optimizer, objective, images, labels, seed=mixed(0, number), scale=scale)
        losses += [row["loss"] for row in read_steps({number: step}, "step {}")]  # waits for the device
    return Training(losses, 1000 * (time.perf_counter() - start) / (STEPS - WARM_UP))
