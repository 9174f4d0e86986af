"""ImageNet's size on one processor: 1,000 classes, 16 images each, the text tower of ViT-B/16 with random weights.

    python -m benchmarks.imagenet                                50 of the 500 steps of an epoch of CoOp with TCPT
    python -m benchmarks.imagenet --steps 10 --chunk 100         100 classes at a time, activations computed again
    python -m benchmarks.imagenet --count                        launches and FLOPs of a step, on the meta device

Image features are random, in eight views, all 16,000 in memory, so nothing is missing but the image tower, which runs
once before training. A line every tenth of the steps: CPU seconds so far, memory now and at its peak.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.launches import second_step
from calprompt.clip.backbone import Backbone
from calprompt.clip.open_clip_files import open_clip_module
from calprompt.clip.preprocessing import Preprocessing
from calprompt.doctor.models import VIT_B_16
from calprompt.features.frozen import FeatureBank
from calprompt.losses import Objective
from calprompt.training import batches, read_steps, training_step
from calprompt.tuners import create

IMAGES, VIEWS, BATCH = 16_000, 8, 32
EPOCHS = 50


def backbone_of(device: str, chunk: int | None = None) -> Backbone:
    """ViT-B/16 with random weights."""
    torch.manual_seed(0)
    model = VIT_B_16.build().to_empty(device=device)
    if device != "meta":
        for name, weight in model.named_parameters():
            weight.data.normal_(std=0.02) if name != "logit_scale" else weight.data.fill_(4.6)
    return Backbone(model, Preprocessing(224, (0.5,) * 3, (0.5,) * 3), "ViT-B/16", "random", chunk=chunk)


def megabytes(line: str) -> float:
    """Memory of this process: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"{line}:\s+(\d+)", status)[1]) / 1024


def measure(tuner_name: str, loss: str, steps: int, chunk: int | None) -> None:
    """Train for some steps of the first epoch."""
    backbone = backbone_of("cpu", chunk)
    names = open_clip_module("zero_shot_metadata").IMAGENET_CLASSNAMES
    tuner = create(tuner_name, backbone, names, allow_repeated=True)
    bank = FeatureBank(torch.randn(VIEWS, IMAGES, backbone.embed_dim), torch.arange(IMAGES) % len(names))
    optimizer = torch.optim.SGD(tuner.parameters(), lr=1e-5, momentum=0.9, weight_decay=5e-4)
    objective, order = Objective.parse(loss), batches(IMAGES, BATCH, seed=1, epoch=1)
    print(f"before training: {megabytes('VmRSS'):.0f} MB", flush=True)
    begin, cpu = time.perf_counter(), time.process_time()
    for number, indices in enumerate(order[:steps], start=1):
        step = training_step(tuner, optimizer, objective, bank.images(indices, 1), bank.labels[indices], seed=number)
        if number % max(1, steps // 10) == 0:
            (values,) = read_steps({number: step}, "step {}")
            print(
                f"step {number:4} of {len(order)}: loss {values['loss']:.3f}, {time.process_time() - cpu:.0f} CPU s, "
                f"{time.perf_counter() - begin:.0f} s, {megabytes('VmRSS'):.0f} MB, peak {megabytes('VmHWM'):.0f} MB",
                flush=True,
            )
    seconds = (time.process_time() - cpu) / steps
    print(
        f"{tuner_name}, {loss}: {seconds:.2f} CPU s a step, {seconds * len(order) / 3600:.2f} core-hours an epoch, "
        f"{seconds * len(order) * EPOCHS / 3600:.0f} for {EPOCHS} epochs (extrapolated from {steps} steps)"
    )


def count(tuner_name: str, loss: str) -> None:
    """Launches and FLOPs of a step on the meta device."""
    names = open_clip_module("zero_shot_metadata").IMAGENET_CLASSNAMES
    tuner = create(tuner_name, backbone_of("meta"), names, allow_repeated=True)
    with FlopCounterMode(display=False) as counter:
        device = second_step(tuner, loss, BATCH)
    flops = counter.get_total_flops() / 2  # of two steps
    print(f"{tuner_name}, {loss}: {sum(device.launches.values()):,} launches, {flops / 1e12:.2f} TFLOP a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuner", default="coop")
    parser.add_argument("--loss", default="tcpt")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--count", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.count:
        count(args.tuner, args.loss)
    else:
        measure(args.tuner, args.loss, args.steps, args.chunk)


if __name__ == "__main__":
    main()
