"""All ratios of speed in one table, beside those that were committed in benchmarks/ratios.json.

    python -m benchmarks.ratios                 small models, about two minutes; the tests do the same
    python -m benchmarks.ratios --full          training steps at the size of ViT-B/16 as well
    python -m benchmarks.ratios --full --write  and keep what was measured
    python -m benchmarks.ratios --only predict --photos 2000

A ratio is the CPU time of a plain way over that of ours. Both are taken by turns, the fastest of several repeats each,
so that other work on the machine disturbs both. The exit status is 1 if a ratio is more than 20 % below the committed
one, also when it is measured a second time.

    step NAME       a training step with TCPT, as in benchmarks/tuner_steps.py: small is 20 classes, four blocks
    text            the text side of a step of CoOp
    features        64 x 64 pixels through a tiny tower: a plain loop over ours, and over a second pass from the store
    predict         photographs of 500 x 375 pixels with pocket-photo: a loop over torch's DataLoader with the same
                    pixels, over `Predictor.stream`; --photos of them, drawn with repetition from 120 files
    start NAME      a fresh process that imports torch, over one that runs a command
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks import extraction, tuner_steps
from benchmarks.plain import open_clip_model
from calprompt import load_backbone, tuners
from calprompt.clip.backbone import Backbone, unit
from calprompt.features.store import FeatureStore
from calprompt.predictor import Predictor

COMMITTED = Path(__file__).with_suffix(".json")
ALLOWED = 0.8  # of a committed ratio
TRAIN = [
    "train",
    "--backbone",
    "pocket",
    "--data",
    "pocket_photos",
    "--recipe",
    "coop-pocket",
    "--epochs",
    "1",
    "--quiet",
]
PHOTOS = ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")
PHOTOS += ("matplotlib/mpl-data/sample_data/grace_hopper.jpg",)


class Pair(NamedTuple):
    """A plain way and ours, each of which returns the CPU seconds that it took."""

    name: str
    plain: Callable[[], float]
    ours: Callable[[], float]
    note: Callable[[float], str] = lambda seconds: f"{1000 * seconds:.1f} ms"


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def child(command: list[str], folder: str) -> float:
    """CPU seconds of a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def small() -> CLIP:
    """A CLIP with four blocks in each tower."""
    torch.manual_seed(0)
    vision = {"image_size": 96, "layers": 4, "width": 256, "patch_size": 16}
    return CLIP(256, vision, {"width": 256, "heads": 4, "layers": 4}, quick_gelu=True)


def steps(size: str, model: CLIP, classes: int) -> Iterator[Pair]:
    """A step of every tuner, and the text side."""
    for name in tuner_steps.BATCH:
        sides = [partial(cpu, tuner_steps.step_of(name, plain, model, classes, False)) for plain in (True, False)]
        yield Pair(f"step {name}, {size}", *sides)
    if size == "small":
        return
    kinds = (tuner_steps.PlainBackbone, Backbone)
    sides = [
        partial(cpu, tuner_steps.text_step(16, "end", tuner_steps.backbone(each, model), classes)) for each in kinds
    ]
    yield Pair(f"text, {size}", *sides)


def features(folder: Path) -> Iterator[Pair]:
    """Small images through a tiny tower."""
    model, images = extraction.backbone(), extraction.pictures(folder, 600)
    plain = partial(cpu, partial(extraction.plain, model, images))
    yield Pair("features, without a store", plain, partial(cpu, partial(extraction.ours, model, images)))
    stored = partial(extraction.ours, model, images, FeatureStore(folder / "store"))
    stored()
    yield Pair("features, second pass", plain, partial(cpu, stored))


class Photos(Dataset[torch.Tensor]):
    """Photographs as a plain loop reads them."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.paths[number]) as image:
            return self.transform(image)


def photographs(folder: Path, count: int) -> list[Path]:
    """Parts of three photographs that installed packages bring, 120 files, as often as it takes."""
    packages = Path(np.__file__).parents[1]
    whole, rng = [Image.open(packages / name).convert("RGB") for name in PHOTOS], np.random.default_rng(0)
    for number in range(120):
        picture = whole[number % len(whole)]
        width = int(rng.integers(picture.width // 2, picture.width))
        height = min(picture.height, width * 3 // 4)
        left, top = rng.integers(0, picture.width - width + 1), rng.integers(0, picture.height - height + 1)
        part = picture.crop((left, top, left + width, top + height)).resize((500, 375), Image.Resampling.BICUBIC)
        part.save(folder / f"{number}.jpg", quality=90)
    return [folder / f"{number}.jpg" for number in rng.integers(0, 120, count).tolist()]


def predict(folder: Path, count: int) -> Iterator[Pair]:
    """Probabilities of photographs."""
    backbone = load_backbone("pocket-photo")
    paths, wanted = photographs(folder, count), backbone.preprocessing
    predictor = Predictor(tuners.create("zero-shot", backbone, ["palace", "flower", "officer"]))
    model, text = open_clip_model(backbone.model), predictor.tuner.text_features()
    transform = transforms.Compose(
        [
            transforms.Resize(wanted.size, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(wanted.size),
            transforms.ToTensor(),
            transforms.Normalize(wanted.mean, wanted.std),
        ]
    )

    @torch.no_grad()
    def plain() -> torch.Tensor:
        rows = [
            (backbone.logit_scale * unit(model.encode_image(batch)) @ text.T).softmax(1)
            for batch in DataLoader(Photos(paths, transform), batch_size=64)
        ]
        return torch.cat(rows)

    def ours() -> torch.Tensor:
        return torch.from_numpy(np.concatenate([batch.probabilities for batch in predictor.stream(paths)]))

    with Image.open(paths[0]) as image:
        assert torch.equal(transform(image), wanted.evaluation()(image)), "the pixels are not the same"
    torch.testing.assert_close(ours().float(), plain(), atol=1e-4, rtol=1e-3)
    per_second = lambda seconds: f"{count / seconds:.0f} images/s"  # noqa: E731
    yield Pair("predict, photographs", partial(cpu, plain), partial(cpu, ours), per_second)


def starts(folder: Path) -> Iterator[Pair]:
    """Fresh processes."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "green").save(buffer, "PNG")
    (folder / "green.png").write_bytes(buffer.getvalue())
    command, here = ["-m", "calprompt"], str(folder)
    subprocess.run([sys.executable, *command, *TRAIN], cwd=folder, capture_output=True, check=True)
    run = str(next((folder / "runs").glob("*/run.json")).parent)
    plain = partial(child, ["-c", "import torch"], here)
    for name, words in (
        ("--help", ["--help"]),
        ("list", ["list"]),
        ("a finished run again", TRAIN),
        ("predict a picture", ["predict", run, "green.png"]),
    ):
        yield Pair(f"start {name}", plain, partial(child, [*command, *words], here))


def pairs(full: bool, photos: int, stack: ExitStack) -> Iterator[tuple[Pair, int]]:
    """All pairs, and how often each is measured."""
    folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
    os.environ["CALPROMPT_CACHE"] = str(folders[2] / "cache")
    yield from ((pair, 5) for pair in steps("small", small(), 20))
    yield from ((pair, 5) for pair in features(folders[0]))
    yield from ((pair, 3) for pair in predict(folders[1], photos))
    yield from ((pair, 3) for pair in starts(folders[2]))
    if full:
        yield from ((pair, 2) for pair in steps("ViT-B/16", tuner_steps.vit_b_16(), 50))


def measure(pair: Pair, repeats: int) -> tuple[float, float]:
    """Fastest CPU seconds of both, taken by turns; the first call of each does not count."""
    best = [float("inf"), float("inf")]
    for repeat in range(repeats + 1):
        for side, work in enumerate((pair.plain, pair.ours)):
            seconds = work()
            if repeat:
                best[side] = min(best[side], seconds)
    return best[0], best[1]


def compare(full: bool = False, photos: int = 240, only: str = "") -> tuple[dict[str, float], list[str]]:
    """Print the table; returns all ratios, and what is slower than it was."""
    known = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.is_file() else {}
    found, slower = {}, []
    print(f"{'':32} {'plain':>16} {'ours':>16} {'ratio':>8} {'committed':>10}")
    with ExitStack() as stack:
        for pair, repeats in pairs(full, photos, stack):
            if only not in pair.name:
                continue
            plain, ours = measure(pair, repeats)
            before = known.get(pair.name)
            if before is not None and plain / ours < ALLOWED * before:  # once more, as something may have come between
                plain, ours = measure(pair, 3 * repeats)
            found[pair.name], change = plain / ours, ""
            if before is not None:
                change = f"{before:9.2f}x {100 * (plain / ours / before - 1):+5.0f} %"
                if plain / ours < ALLOWED * before:
                    slower.append(f"{pair.name}: {plain / ours:.2f}x, committed {before:.2f}x")
            print(
                f"{pair.name:32} {pair.note(plain):>16} {pair.note(ours):>16} {plain / ours:7.2f}x {change}", flush=True
            )
    return found, slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--photos", type=int, default=240)
    parser.add_argument("--only", metavar="TEXT", default="", help="ratios with this in their name")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found, slower = compare(args.full, args.photos, args.only)
    for each in slower:
        print(f"slower than before: {each}")
    if args.write:
        known = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.is_file() else {}
        known |= {name: round(ratio, 2) for name, ratio in found.items()}
        COMMITTED.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return int(bool(slower) and not args.write)


if __name__ == "__main__":
    raise SystemExit(main())
