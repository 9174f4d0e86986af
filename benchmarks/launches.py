"""What a GPU would be asked for in one training step of each tuner, counted without one.

The stand-in for it is torch's "meta" device, watched operation by operation.

Tensors there have shapes and dtypes but no numbers. Reading one on the host (`.item()`, `.cpu()`, boolean indexing) is
an error of torch's own, as it would make the host wait for a GPU; `Device` adds what a GPU does besides: it refuses
tensors of two devices in one operation, and counts what would be a kernel launch or a copy from the host.

    python -m benchmarks.launches
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import tuner_steps
from calprompt import tuners
from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.doctor.models import VIT_B_16
from calprompt.losses import Objective
from calprompt.training import LossScale, training_step
from calprompt.tuners import Tuner

COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Device(TorchDispatchMode):
    """Checks and counts the operations on tensors of the device within it.

    Attributes:
        launches: Operations that compute, by name; views are free.
        copied: Elements that come from the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        if len(devices) > 1 and func not in COPIES:
            raise RuntimeError(f"{func} mixes tensors of {' and '.join(sorted(devices))}")
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.device.type == "meta"]
        if made and not func.is_view:
            self.launches[func.__name__] += 1
            if func in COPIES and "cpu" in devices:
                self.copied += sum(tensor.numel() for tensor in made)
        return result


def second_step(tuner: Tuner, objective: str, batch: int) -> Device:
    """Two steps on the meta device, and what the second one does: the first may compute what does not change."""
    size, parsed = tuner.backbone.preprocessing.size, Objective.parse(objective)
    tuner.check_objective({term.name: term.weight for term in parsed.terms})
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.1, momentum=0.9)
    features = torch.empty(batch, tuner.backbone.embed_dim, device="meta")
    images = torch.empty(batch, 3, size, size, device="meta") if tuner.needs_pixels else features
    labels = torch.zeros(batch, dtype=torch.long, device="meta")
    frozen = features if tuner.needs_pixels else None
    scale = LossScale(features.device) if tuner.backbone.computes_in == torch.float16 else None
    for _ in range(2):
        with Device() as device:
            step = training_step(tuner, optimizer, parsed, images, labels, frozen=frozen, scale=scale)
    assert all(value.device.type == "meta" for value in (*step.values.values(), *step.finite.values()))
    return device


def plain_launches(name: str, model: CLIP, classes: list[str], batch: int) -> int:
    """Launches of a step with TCPT as the public code makes it, with the image passes that it repeats."""
    backbone = tuner_steps.backbone(tuner_steps.PlainBackbone, model)
    tuner = tuners.create(name, backbone, classes, **{"promptsrc": {"average": None}}.get(name, {}))
    step = sum(second_step(tuner, "tcpt", batch).launches.values())
    with torch.no_grad(), Device() as device:
        backbone.encode_image(torch.empty(batch, 3, 224, 224, device="meta"))
    passes = tuner_steps.EXTRA_PASSES.get(name, 0) + (not tuner.needs_pixels)
    return step + passes * sum(device.launches.values())


def main() -> None:
    """Print the table of docs/gpu.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=50)
    args = parser.parse_args()
    with torch.device("meta"):
        model, plain = VIT_B_16.build(), tuner_steps.vit_b_16()
    backbone = Backbone(model, Preprocessing(224, (0.5,) * 3, (0.5,) * 3), name="ViT-B/16", fingerprint="meta")
    names = [f"class {number}" for number in range(args.classes)]
    print("| tuner | batch | plain, TCPT | TCPT | cross-entropy | numbers copied from the host |")
    print("|---|---|---|---|---|---|")
    for name, batch in sorted(tuner_steps.BATCH.items()):
        tcpt, ce = (second_step(tuners.create(name, backbone, names), loss, batch) for loss in ("tcpt", "ce"))
        before = plain_launches(name, plain, names, batch)
        counts = " | ".join(f"{count:,}" for count in (before, *(sum(each.launches.values()) for each in (tcpt, ce))))
        print(f"| {name} | {batch} | {counts} | {tcpt.copied} |")


if __name__ == "__main__":
    main()
