"""Drawings of emoji by studio, as 48 px RGBA; and the other sources, sketches, photographs and digits.

seen    by the model in pretraining       noto noto4 blobs twemoji fluent3d fluentflat fluentmodern fluentcontrast
unseen  the datasets are drawn by these   openmoji emojione emojione1 fxemoji streamline, and black versions of two
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from pretrain.concepts import Emoji, plain_code

SIZE = 48
SEEN = ("noto", "noto4", "blobs", "twemoji", "fluent3d", "fluentflat", "fluentmodern", "fluentcontrast")
UNSEEN = ("openmoji", "emojione", "emojione1", "fxemoji", "streamline")
BLACK = ("openmoji_black", "emojione_black")
_FILES = {
    "noto": ("noto", "img/google/64/*.png"),
    "noto4": ("noto4", "img/google/64/*.png"),
    "blobs": ("blobs", "img/google/64/*.png"),
    "twemoji": ("twemoji", "*.svg"),
    "fluent3d": ("fluent3d", "assets/*.webp"),
    "fluentflat": ("fluentflat", "assets/*.svg"),
    "fluentmodern": ("fluentmodern", "assets/*.svg"),
    "openmoji": ("openmoji", "color/svg/*.svg"),
    "openmoji_black": ("openmoji", "black/svg/*.svg"),
    "emojione": ("emojione", "assets/svg/*.svg"),
    "emojione_black": ("emojione", "assets/svg_bw/*.svg"),
}

_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'

Drawing = tuple[str, str, np.ndarray]  # emoji code, name of the drawing, [48, 48, 4]


def drawings(studio: str, packages: dict[str, Path], emoji: Emoji) -> Iterator[Drawing]:
    """Every drawing of a studio that shows a known emoji."""
    if studio in _FILES:
        package, pattern = _FILES[studio]
        for path in sorted((packages[package] / "package").glob(pattern)):
            code = plain_code(path.stem)
            if code in emoji.by_code:
                yield code, path.stem, picture(path.read_bytes(), path.suffix)
        return
    for name, svg in icons(packages[studio] / "package"):
        concept = emoji.find(name)
        if concept is not None:
            yield concept.code, name, picture(svg, ".svg")


def icons(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and SVG of an iconify package."""
    pack = json.loads((folder / "icons.json").read_text("utf-8"))
    for name, icon in sorted(pack["icons"].items()):
        width, height = icon.get("width", pack.get("width", 16)), icon.get("height", pack.get("height", 16))
        box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
        head = f'<svg {_NAMESPACES} viewBox="{box}">'
        yield name, f"{head}{icon['body']}</svg>".replace("currentColor", "#000").encode()


def silhouettes(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and drawings of the game icons."""
    for name, svg in icons(folder):
        yield name.replace("-", " "), picture(svg, ".svg")


def sketches(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names of the Quick, Draw! classes and their sketches, [n, 28, 28] of ink."""
    for path in sorted((folder / "package/src/drawings").glob("*.ndjson.gz")):
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines() if line.strip()]
        pictures = np.rint(np.array(rows, dtype=np.float64) * 255).clip(0, 255).astype(np.uint8).reshape(-1, 28, 28)
        yield path.name.removesuffix(".ndjson.gz").removeprefix("The "), pictures


def cifar10(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Photographs [n, 32, 32, 3] and labels of "train" or "test"."""
    folder = folder / "package"
    files = [folder / "test_batch.png"] if part == "test" else sorted(folder.glob("data_batch_*.png"))
    rows = np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files])  # [n, 1024, 3]
    return rows.reshape(-1, 32, 32, 3), np.array(json.loads((folder / f"{part}_lables.json").read_text("utf-8")))


def fashion(folder: Path) -> Iterator[np.ndarray]:
    """Photographs [n, 28, 28] of each of the ten classes."""
    for label in range(10):
        text = (folder / f"package/src/clothes/{label}.json").read_text("utf-8")
        rows = [row for row in json.loads(text)["data"] if len(row) == 28 * 28]  # a few rows are empty
        yield np.array(rows, dtype=np.uint8).reshape(-1, 28, 28)


def digits(folder: Path) -> Iterator[np.ndarray]:
    """Ink [n, 28, 28] of each of the ten digits."""
    for digit in range(10):
        numbers = json.loads((folder / f"package/src/digits/{digit}.json").read_text("utf-8"))["data"]
        yield np.rint(np.array(numbers) * 255).astype(np.uint8).reshape(-1, 28, 28)


def picture(content: bytes, suffix: str) -> np.ndarray:
    """An SVG or a picture file on a square of 48 pixels, without its margins."""
    if suffix == ".svg":
        import resvg_py  # here, so that training needs no such package

        svg = re.sub(r"<\?xml.*?\?>", "", content.decode())
        content = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=128, height=128))
    image = Image.open(io.BytesIO(content)).convert("RGBA")
    box = image.getchannel("A").point(lambda alpha: 255 * (alpha > 8)).getbbox()  # studios leave different margins
    image = image.crop(box).convert("RGBa")  # premultiplied: edges take no colour from outside
    side = max(image.size)
    square = Image.new("RGBa", (side, side))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return np.asarray(square.resize((SIZE, SIZE), Image.Resampling.LANCZOS).convert("RGBA"))
