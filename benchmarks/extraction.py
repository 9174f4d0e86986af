"""Features of many small images with a tiny model, ours against a plain loop: throughput, the second pass, memory.

    python benchmarks/extraction.py                    ten thousand images, 64 x 64, JPEG and PNG by turns
    python benchmarks/extraction.py --images 2000 --repeats 1
    python benchmarks/extraction.py --decoding         ways to decode and resize, and which give the same pixels

"Plain" is one loop: open with Pillow, the public transform, 64 images through the tower. Ratios are of the fastest of
several alternated repeats in one process, by the clock and in CPU time of all threads: the first is what one waits for;
the second moves less when other work shares the machine, and says nothing of what threads gain. The store is filled by
the first pass and read by the second one. Peak memory is the growth of the resident set while features are computed, in
a separate process (Linux).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, functional

from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.checks import UnreadableImages
from calprompt.data.images import ImageFiles
from calprompt.features.frozen import frozen_features
from calprompt.features.store import FeatureStore

SIZE = 32


def backbone() -> Backbone:
    """A vision transformer of two layers."""
    torch.manual_seed(0)
    vision = {"image_size": SIZE, "patch_size": 8, "width": 64, "head_width": 32, "layers": 2}
    model = CLIP(64, vision, {"vocab_size": 100, "width": 64, "heads": 2, "layers": 1}, quick_gelu=True)
    return Backbone(model, preprocessing=Preprocessing(SIZE), name="tiny", fingerprint="tiny")


def picture(number: int, width: int = 64, height: int = 64) -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def pictures(folder: Path, count: int) -> ImageFiles:
    names = [f"{number}.{'jpg' if number % 2 else 'png'}" for number in range(count)]
    for number, name in enumerate(names):
        if not (folder / name).exists():
            picture(number).save(folder / name)
    return ImageFiles(folder, tuple(names))


@torch.no_grad()
def plain(model: Backbone, images: ImageFiles) -> torch.Tensor:
    transform, features = model.preprocessing.evaluation(), []
    for start in range(0, len(images), 64):
        pixels = []
        for path in images.paths[start : start + 64]:
            with Image.open(images.root / path) as image:
                pixels.append(transform(image))
        features.append(model.encode_image(torch.stack(pixels)))
    return torch.cat(features)


def ours(model: Backbone, images: ImageFiles, store: FeatureStore | None = None) -> torch.Tensor:
    return frozen_features(model, images, unreadable=UnreadableImages(), store=store)[0]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def speed(folder: Path, count: int, repeats: int) -> None:
    model, images = backbone(), pictures(folder, count)
    torch.testing.assert_close(ours(model, images.take(range(64))), plain(model, images.take(range(64))))
    names = {
        "plain loop": "",
        "plain, one": "torch thread",
        "ours": "without store",
        "first pass": "fills the store",
        "second pass": "from the store",
    }
    threads = torch.get_num_threads()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for repeat in range(repeats):
        where = folder / f"store-{repeat}"
        torch.set_num_threads(1)
        seconds["plain, one"].append(timed(partial(plain, model, images)))
        torch.set_num_threads(threads)
        seconds["plain loop"].append(timed(partial(plain, model, images)))
        seconds["ours"].append(timed(partial(ours, model, images)))
        seconds["first pass"].append(timed(partial(ours, model, images, FeatureStore(where))))
        seconds["second pass"].append(timed(partial(ours, model, images, FeatureStore(where))))
    print(f"{count} images, {threads} threads, fastest of {repeats}; ratios to the faster plain loop")
    best = {name: [min(times) for times in zip(*measured, strict=True)] for name, measured in seconds.items()}
    base = [min(times) for times in zip(best["plain loop"], best["plain, one"], strict=True)]
    for name, note in names.items():
        clock, cpu = best[name]
        print(
            f"  {name:12} {note:16} {count / clock:8.0f} images/s   {base[0] / clock:6.2f} x by the clock"
            f"   {base[1] / cpu:6.2f} x in CPU time"
        )


def memory(folder: Path, counts: list[int]) -> None:
    print("peak growth of the resident set")
    for count in counts:
        command = [sys.executable, __file__, "--images", str(count), "--measure", str(folder)]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        first, second = (f"{report[name] / 1e6:.0f} MB" for name in ("first", "second"))
        print(f"  {count:6} images: {first} filling the store, {second} more reading it")


def measure(folder: Path, count: int) -> None:
    """Peak memory of one pass that fills a store and of one that reads it, on standard output."""
    model, images = backbone(), pictures(folder, count)
    ours(model, images.take(range(64)))
    store, start = folder / f"measured-{count}", peak(reset=True)
    ours(model, images, FeatureStore(store))
    first = peak()
    ours(model, images, FeatureStore(store))
    print(json.dumps({"first": first - start, "second": max(0, peak() - first)}))


def peak(reset: bool = False) -> int:
    """Bytes of the largest resident set so far, or since the last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def decoding() -> None:
    """Ways to decode one image after another and in threads, and whether their pixels are the same."""
    torch.set_num_threads(1)
    for width, height, size, count in ((64, 64, 32, 400), (500, 375, 224, 60), (2000, 1500, 224, 12)):
        _decoding([_jpeg(picture(number, width, height)) for number in range(count)], width, height, size)


def _decoding(files: list[bytes], width: int, height: int, size: int) -> None:
    preprocessing = Preprocessing(size)
    reference, levels = preprocessing.evaluation(), preprocessing.evaluation().pixels
    numbers = list(range(0, len(files), 16))

    def opened(data: bytes) -> Image.Image:
        return Image.open(io.BytesIO(data))

    def drafted(data: bytes) -> Image.Image:
        image = opened(data)
        image.draft("RGB", (2 * size, 2 * size))
        return image

    def torch_levels(data: bytes) -> torch.Tensor:
        return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)

    def torch_resized(data: bytes) -> torch.Tensor:
        resized = functional.resize(torch_levels(data), [size], InterpolationMode.BICUBIC, antialias=True)
        return functional.center_crop(resized, [size, size]).permute(1, 2, 0)

    def batch(make: Callable[[bytes], torch.Tensor], start: int) -> torch.Tensor:
        return preprocessing.normalise(torch.stack([make(data) for data in files[start : start + 16]]))

    def in_threads(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
        with ThreadPoolExecutor() as pool:
            return torch.cat(list(pool.map(make, numbers)))

    def one_by_one() -> torch.Tensor:
        return torch.stack([reference(opened(data)) for data in files])

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "Pillow, the public transform": one_by_one,
        "Pillow, a batch normalised at once (ours)": lambda: torch.cat(
            [batch(lambda data: levels(opened(data)), start) for start in numbers]
        ),
        "the same in threads": lambda: in_threads(lambda start: batch(lambda data: levels(opened(data)), start)),
        "torchvision's JPEG decoder, resized by Pillow": lambda: torch.cat(
            [batch(lambda data: levels(functional.to_pil_image(torch_levels(data))), start) for start in numbers]
        ),
        "torchvision's JPEG decoder and resize": lambda: torch.cat([batch(torch_resized, start) for start in numbers]),
        "Pillow's draft mode": lambda: torch.cat(
            [batch(lambda data: levels(drafted(data)), start) for start in numbers]
        ),
    }
    expected = one_by_one()
    print(f"JPEG {width} x {height} to {size}")
    for name, way in ways.items():
        difference = float((way() - expected).abs().max())
        best = min(timed(way)[0] for _ in range(3)) / len(files)
        same = "same pixels" if difference == 0 else f"off by up to {difference:.3f}"
        print(f"  {name:46} {1e6 * best:8.0f} µs   {same}")


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--decoding", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        return measure(args.measure, args.images)
    if args.decoding:
        return decoding()
    folder = Path(tempfile.mkdtemp(prefix="calprompt-extraction-"))
    try:
        speed(folder, args.images, args.repeats)
        memory(folder, sorted({args.images // 5, args.images}))
    finally:
        shutil.rmtree(folder)
    return None


if __name__ == "__main__":
    main()
