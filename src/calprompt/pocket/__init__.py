"""Pocket: three small CLIPs and small datasets inside the package, so that everything runs at once and offline.

    animals.webp   48 x 48 drawings in rows of 64
    animals.json   class names, template, how many pictures per class, how they are rendered,
                   and for each drawing its label, its split and where it comes from

The models are folders in open_clip's format, loaded like any other: load_backbone("pocket-photo"). The folder of
pocket-vit has only an image tower; its text tower is that of pocket-photo. A split's pictures of a class take its
drawings in turn. No drawing is in two splits, in whatever colour.

Files of a folder are BMP, which is not compressed, so that not only pixels but bytes are the same everywhere. A folder
is made beside its final place and moved there when it is complete, so there is never half of one. Its name has a digest
of pixels and class names in it, so another version of the package makes another folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from calprompt.errors import CalpromptError, DamagedFileError
from calprompt.files import ENVIRONMENT, cache_folder
from calprompt.pocket.render import Pictures, Scene, random_bits, render

COLUMNS = 64
FIELDS = ("template", "scene", "pictures", "classes", "drawings", "side", "sha256")  # that every record has
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Sheet:
    """One dataset of the package: its record, and its drawings, which are read when needed."""

    name: str  # name of the dataset, without "pocket_"
    record: dict[str, Any]  # what is in the JSON file
    folder: Path  # where the files are

    @classmethod
    def read(cls, folder: Path, name: str) -> Sheet:
        """Read the record of a dataset."""
        path = folder / f"{name}.json"
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged(path, str(error)) from error
        missing = [field for field in FIELDS if not isinstance(record, dict) or field not in record]
        if missing:
            raise damaged(path, f"it has no {missing[0]!r}")
        return cls(name, record, folder)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of their labels."""
        return tuple(self.record["classes"])

    @property
    def counts(self) -> dict[str, int]:
        """How many pictures each split has."""
        return {split: count * len(self.class_names) for split, count in self.record["pictures"].items()}

    @property
    def digest(self) -> str:
        """The sha256 of all pixels and class names."""
        return hashlib.sha256("\n".join([*self.record["sha256"].values(), *self.class_names]).encode()).hexdigest()

    @property
    def scene(self) -> Scene | None:
        """How drawings become pictures; None if they are the pictures already."""
        scene = self.record["scene"]
        return None if scene is None else Scene(**{**scene, "size": tuple(scene["size"])})

    @cached_property
    def drawings(self) -> Pictures:
        """The drawings [n, side, side, 3 or 4]; a grey sheet gives the opacity of black strokes."""
        path = self.folder / f"{self.record.get('sheet', self.name)}.webp"
        try:
            with Image.open(path) as image:
                sheet = np.asarray(image.convert("RGB") if image.mode != "RGBA" else image)
        except OSError as error:
            raise damaged(path, str(error)) from error
        strokes = self.record["side"] < 32 and self.scene is not None  # grey is opacity
        side, count = self.record["side"], len(self.record["drawings"])
        rows = -(-count // COLUMNS)
        if sheet.shape[:2] != (rows * side, COLUMNS * side):
            expected = f"{COLUMNS * side} x {rows * side}"
            raise damaged(path, f"it is {sheet.shape[1]} x {sheet.shape[0]} pixels, expected {expected}")
        tiles = sheet.reshape(rows, side, COLUMNS, side, -1).swapaxes(1, 2).reshape(rows * COLUMNS, side, side, -1)
        tiles = tiles[:count]
        if strokes:
            return np.concatenate([np.zeros_like(tiles), tiles[..., :1]], axis=3)
        return tiles

    def pictures(self, split: str) -> Iterator[tuple[int, int, np.ndarray]]:
        """Label, number and pixels [side, side, 3] of every picture of a split, class by class."""
        count = self.record["pictures"].get(split, 0)
        by_label: dict[int, list[int]] = {}
        for row, (label, drawing_split, _) in enumerate(self.record["drawings"]):
            if drawing_split == split:
                by_label.setdefault(label, []).append(row)
        for label, class_name in enumerate(self.class_names):
            rows = [by_label[label][i % len(by_label[label])] for i in range(count)]
            pictures = self.drawings[rows]
            if self.scene is not None:
                bits = np.stack([random_bits(self.name, split, class_name, i) for i in range(count)])
                pictures = render(pictures, bits, self.scene)
            for number, pixels in enumerate(pictures):
                yield label, number, pixels

    def checked(self, split: str) -> Iterator[tuple[int, int, np.ndarray]]:
        """The same as `pictures`, with a check of the digest after the last one."""
        digest = hashlib.sha256()
        for label, number, pixels in self.pictures(split):
            digest.update(label.to_bytes(2, "big") + pixels.tobytes())
            yield label, number, pixels
        actual, expected = digest.hexdigest(), self.record["sha256"][split]
        if actual != expected:
            raise DamagedFileError(
                f"the {split} pictures of the embedded dataset {self.name!r} have sha256 {actual}, expected "
                f"{expected}; the package's files are damaged, install it again"
            )


def damaged(path: Path, why: str) -> DamagedFileError:
    return DamagedFileError(f"cannot read {path}: {why}; the package's files are damaged, install it again")


FOLDERS = {"pocket": "model", "pocket-photo": "photo", "pocket-vit": "vit"}
MODELS = {name: Path(__file__).parent / folder for name, folder in FOLDERS.items()}
TEXT_TOWERS = {"pocket-vit": MODELS["pocket-photo"] / "open_clip_model.safetensors"}
FOR_PHOTOGRAPHS = "pocket-photo"
FINGERPRINTS = {  # of the models, loaded as backbones
    "pocket": "d371372bc62ae06ca0effb02a6cf05c15d2088e9f527837350810dfa8b0c4491",
    "pocket-photo": "4e3303c699e4edc1d055b888cf9c05ca12501cd86e0fd52422ac5c33ec9a5efa",
    "pocket-vit": "5fee1847ac769db4b7c2629c0fc323b141aa132346c499143ea95e7712c298fc",
}
HOUR = 3600


def names() -> list[str]:
    """Names of the embedded datasets, without "pocket_"."""
    return sorted(path.stem for path in DATA.glob("*.json"))


@cache
def sheet(name: str) -> Sheet:
    return Sheet.read(DATA, name)


def rows(name: str, split: str) -> list[tuple[str, int]]:
    """File and label of every picture of a split."""
    dataset = sheet(name)
    count = dataset.record["pictures"].get(split, 0)
    return [
        (f"{split}/{_slug(class_name)}/{number:03d}.bmp", label)
        for label, class_name in enumerate(dataset.class_names)
        for number in range(count)
    ]


def folder(name: str) -> Path:
    """The folder with the dataset's pictures, made if it does not exist."""
    home = cache_folder("pocket")
    place = home / f"{name}-{sheet(name).digest[:12]}"
    if place.is_dir():
        return place
    for abandoned in home.glob(f".{name}-*"):  # making a dataset takes seconds, so after an hour none is in use
        with suppress(OSError):
            if time.time() - abandoned.stat().st_mtime > HOUR:
                shutil.rmtree(abandoned)
    partial = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        for split in sheet(name).record["pictures"]:
            for (path, _), (_, _, pixels) in zip(rows(name, split), sheet(name).checked(split), strict=True):
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(partial / path)
        partial.rename(place)
    except OSError as error:
        if not place.is_dir():  # otherwise another process was first and made the same
            raise CalpromptError(
                f"cannot write the pictures of 'pocket_{name}' to {home}: {error.strerror or error}; make room there, "
                f"or set {ENVIRONMENT} to a folder that can be written to"
            ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def _slug(class_name: str) -> str:
    """A class name as a folder name that every file system takes: ASCII only, unlike `calprompt.text.slug`.

    >>> _slug("Côte d'Ivoire")
    'C_te_d_Ivoire'
    """
    return re.sub(r"[^A-Za-z0-9-]+", "_", class_name)
