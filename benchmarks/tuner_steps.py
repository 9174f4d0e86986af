"""Time and peak memory of one training step, ours against the plain path, at ViT-B/16 size with random weights.

    python -m benchmarks.tuner_steps                      every tuner, 50 classes
    python -m benchmarks.tuner_steps --text               the text side of CoOp alone, by length and class position
    python -m benchmarks.tuner_steps --tuners coop maple --classes 100 --repeats 3

"Plain" is the same mathematics as the public code runs it: 77 tokens for every class, no shared prefix, one image at a
time for CoCoOp, and the frozen image passes that the public code repeats at every step (the released TCPT code makes
two more than its losses need; ProDA and ProGrad come from other code, which makes one). `--lean` leaves out those two.
Ratios are of the fastest of several alternated repeats in one process. Peak memory is the growth of the
resident set during a step, each side measured in a process of its own (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP

from benchmarks.plain import encode_image_plain, encode_text_plain
from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.preprocessing import Preprocessing
from calprompt.losses import Objective
from calprompt.training import training_step
from calprompt.tuners import create

EXTRA_PASSES = {"coop": 2, "cocoop": 2, "kgcoop": 2, "maple": 2, "promptsrc": 2}  # frozen, thrown away
BATCH = {"coop": 32, "kgcoop": 32, "prograd": 32, "cocoop": 1, "proda": 4, "maple": 4, "promptsrc": 4}


class PlainBackbone(Backbone):
    """The same weights, run as the public code runs them."""

    def encode_text(self, prompts: Any, **_: Any) -> torch.Tensor:
        if prompts.prefix.shape[0] > 1 and prompts.rest.shape[0] == 1:  # CoCoOp: an image at a time
            per_image = [type(prompts)(p[None], prompts.rest, prompts.lengths, prompts.deep) for p in prompts.prefix]
            return torch.cat([encode_text_plain(self.model, image) for image in per_image])
        return encode_text_plain(self.model, prompts)

    def encode_image(self, images: torch.Tensor, prompts: Any = None) -> torch.Tensor:
        return self.model.visual(images) if prompts is None else encode_image_plain(self.model.visual, images, prompts)


def backbone(kind: type[Backbone], model: CLIP) -> Backbone:
    preprocessing = Preprocessing(model.visual.image_size[0], (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return kind(model, preprocessing=preprocessing, name="random", fingerprint="")


def vit_b_16() -> CLIP:
    torch.manual_seed(0)
    vision = {"image_size": 224, "layers": 12, "width": 768, "patch_size": 16}
    return CLIP(512, vision, {"width": 512, "heads": 8, "layers": 12}, quick_gelu=True)


def class_names(n: int) -> list[str]:
    """Two or three tokens each, as most datasets have (their means lie between 1.5 and 2.5, cars at 8.5)."""
    first = ("red", "blue", "old", "new", "small", "large", "round", "flat", "dark", "pale")
    second = ("cat", "dog", "tree", "house", "car", "boat", "chair", "lamp", "road", "bird", "fish", "cup", "door")
    names = [f"{a} {b}" for b in second for a in first]
    names += [f"{a} {other} {b}" for b in second for a in first for other in first if a != other]
    if n > len(names):
        raise SystemExit(f"at most {len(names)} classes")
    return names[:n]


def step_of(name: str, plain: bool, model: CLIP, classes: int, lean: bool) -> Callable[[], float]:
    """A function that makes one training step and returns its loss."""
    options = {"promptsrc": {"average": None}}.get(name, {})
    tuner = create(name, backbone(Backbone, model), class_names(classes), **options)
    if plain:
        tuner._backbone = (backbone(PlainBackbone, model),)
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    size = BATCH[name]
    side = tuner.backbone.preprocessing.size
    pixels = torch.randn(size, 3, side, side, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(size) % classes
    with torch.no_grad():
        features = tuner.backbone.encode_image(pixels)
    objective = Objective.parse("tcpt")

    def step() -> float:
        for _ in range(EXTRA_PASSES.get(name, 0) if plain and not lean else 0):
            with torch.no_grad():
                tuner.backbone.encode_image(pixels)
        if tuner.needs_pixels:
            frozen = None if plain else features
            return training_step(tuner, optimizer, objective, pixels, labels, frozen=frozen).values["loss"].item()
        if plain:
            with torch.no_grad():
                seen = tuner.backbone.encode_image(pixels)
        else:
            seen = features
        return training_step(tuner, optimizer, objective, seen, labels).values["loss"].item()

    if name == "proda":  # the same prompts on both sides: one front, one middle, two at the end
        tuner.draw = lambda: [0, 8, 16, 24]  # type: ignore
    return step


def compare(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Fastest time of each, taken in turns; call each once before."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak_memory(name: str, plain: bool, classes: int, *more: str) -> float:
    """MB by which a step raises the resident set of a fresh process at its peak."""
    command = [sys.executable, "-m", "benchmarks.tuner_steps", "--memory-of", name, "--classes", str(classes), *more]
    output = subprocess.run([*command, *(["--plain"] if plain else [])], capture_output=True, text=True, check=True)
    return json.loads(output.stdout)["mb"]


def measure_memory(name: str, plain: bool, classes: int, chunk: int | None) -> None:
    if name == "text":
        model = backbone(PlainBackbone if plain else Backbone, vit_b_16())
        model = model.view(chunk=chunk)
        step = text_step(16, "end", model, classes)
    else:
        step = step_of(name, plain, vit_b_16(), classes, lean=True)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # give back what was freed, or the step would hide in it
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    step()
    print(json.dumps({"mb": (resident("VmHWM") - before) / 1024}))


def resident(line: str) -> int:
    """kB of this process, from the kernel: VmRSS now, VmHWM at the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{line}:\s+(\d+)", status)[1])


def text_step(context: int, position: str, model: Backbone, classes: int) -> Callable[[], torch.Tensor]:
    layout = model.layout(class_names(classes), context, position=position)
    vectors = torch.nn.Parameter(0.02 * torch.randn(context, 512, generator=torch.Generator().manual_seed(2)))
    weights = torch.randn(classes, 512, generator=torch.Generator().manual_seed(3))

    def step() -> torch.Tensor:
        vectors.grad = None
        (unit(model.encode_text(layout.fill(vectors))[0]) * weights).sum().backward()
        return vectors.grad

    return step


def report_text(classes: int, repeats: int) -> None:
    model = vit_b_16()
    ours, plain = backbone(Backbone, model), backbone(PlainBackbone, model)
    print(f"Text side of a training step (forward and gradient), {classes} classes, ViT-B/16 size")
    print(f"{'context':>8} {'position':>9} {'plain s':>9} {'ours s':>9} {'ratio':>7} {'gradient error':>15}")
    for context in (16, 4):
        for position in ("end", "middle", "front"):
            steps = {
                "plain": text_step(context, position, plain, classes),
                "ours": text_step(context, position, ours, classes),
            }
            a, b = steps["plain"]().clone(), steps["ours"]().clone()
            error = float((a - b).abs().max() / a.abs().max())
            best = compare(steps, repeats)
            ratio = best["plain"] / best["ours"]
            print(f"{context:8} {position:>9} {best['plain']:9.3f} {best['ours']:9.3f} {ratio:6.1f}x {error:15.1e}")
    memory = {plain: peak_memory("text", plain, classes) for plain in (True, False)}
    print(f"peak memory of a step, context 16, end: plain {memory[True]:.0f} MB, ours {memory[False]:.0f} MB")
    whole, parts = peak_memory("text", False, 1000), peak_memory("text", False, 1000, "--chunk", "100")
    print(f"the same for 1000 classes: ours {whole:.0f} MB, 100 classes at a time {parts:.0f} MB")


def report_tuners(names: list[str], classes: int, repeats: int, lean: bool) -> None:
    model = vit_b_16()
    print(f"One training step with TCPT, {classes} classes, ViT-B/16 size, batch as published")
    header = f"{'tuner':>10} {'batch':>5} {'plain s':>9} {'ours s':>9} {'ratio':>7}"
    print(f"{header} {'plain MB':>9} {'ours MB':>8} {'loss gap':>9}")
    for name in names:
        steps = {side: step_of(name, side == "plain", model, classes, lean) for side in ("plain", "ours")}
        gap = abs(steps["plain"]() / steps["ours"]() - 1)
        best = compare(steps, repeats)
        memory = {plain: peak_memory(name, plain, classes) for plain in (True, False)}
        print(
            f"{name:>10} {BATCH[name]:5} {best['plain']:9.3f} {best['ours']:9.3f} {best['plain'] / best['ours']:6.1f}x"
            f" {memory[True]:9.0f} {memory[False]:8.0f} {gap:9.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuners", nargs="+", default=list(BATCH), choices=list(BATCH))
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", action="store_true", help="only the text side of CoOp")
    parser.add_argument("--lean", action="store_true", help="without the public code's superfluous image passes")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        measure_memory(args.memory_of, args.plain, args.classes, args.chunk)
    elif args.text:
        report_text(args.classes, args.repeats)
    else:
        report_tuners(args.tuners, args.classes, args.repeats, args.lean)


if __name__ == "__main__":
    main()
