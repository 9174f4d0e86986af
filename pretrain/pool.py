"""What pretraining sees: one array of drawings and photographs, each with its concept, medium and source.

pool.npz       pictures [n, 48, 48, 4] uint8, concept [n], medium [n], source [n]
concepts.json  the concepts: names, keywords, kind
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from pretrain.concepts import Concept, Emoji, read_emoji
from pretrain.selection import CIFAR10, CLOTHES, FASHION, PHOTOS, SKETCHES
from pretrain.studios import SEEN, SIZE, cifar10, drawings, fashion, silhouettes, sketches

MEDIA = ("drawing", "ink", "sketch", "photo")  # a coloured drawing, a black one, a hand sketch, a photograph


@dataclass(frozen=True)
class Pool:
    """The pictures and their concepts."""

    concepts: list[Concept]
    pictures: np.ndarray
    concept: np.ndarray
    medium: np.ndarray
    source: np.ndarray

    def save(self, folder: Path) -> None:
        (folder / "concepts.json").write_text(json.dumps([asdict(concept) for concept in self.concepts], indent=0))
        partial = folder / "pool.partial.npz"
        np.savez(partial, pictures=self.pictures, concept=self.concept, medium=self.medium, source=self.source)
        partial.replace(folder / "pool.npz")

    @classmethod
    def load(cls, folder: Path) -> Pool:
        for name in ("pool.npz", "concepts.json"):
            if not (folder / name).is_file():
                raise SystemExit(f"{folder / name} is not there; assemble it first: python -m pretrain assemble")
        records = json.loads((folder / "concepts.json").read_text("utf-8"))
        concepts = [
            Concept(**{key: tuple(value) if isinstance(value, list) else value for key, value in record.items()})
            for record in records
        ]
        with np.load(folder / "pool.npz") as arrays:
            return cls(concepts, **{name: arrays[name] for name in ("pictures", "concept", "medium", "source")})


class _Collector:
    """Pictures as they come, their concepts numbered in order of appearance."""

    def __init__(self, emoji: Emoji) -> None:
        self.emoji, self.numbers, self.rows = emoji, {}, []
        self.concepts: list[Concept] = []

    def number(self, concept: Concept) -> int:
        if concept.code not in self.numbers:
            self.numbers[concept.code] = len(self.concepts)
            self.concepts.append(concept)
        return self.numbers[concept.code]

    def named(self, name: str, source: str) -> int:
        """The emoji of this name, or a concept of its own."""
        concept = self.emoji.find(name)
        if concept is None:
            return self.number(Concept(f"{source}/{name}", name, (name,)))
        number = self.number(concept)
        if name not in concept.names:
            stored = self.concepts[number]
            self.concepts[number] = replace(stored, names=(*stored.names, name))
        return number

    def add(self, picture: np.ndarray, concept: int, medium: str, source: str) -> None:
        self.rows.append((picture, concept, MEDIA.index(medium), source))


def assemble(packages: dict[str, Path], echo=print) -> Pool:
    """Read all that pretraining may see."""
    collector = _Collector(read_emoji(packages))
    for studio in SEEN:
        medium = "ink" if studio == "fluentcontrast" else "drawing"
        for code, _, picture in drawings(studio, packages, collector.emoji):
            collector.add(picture, collector.number(collector.emoji.by_code[code]), medium, studio)
        echo(f"{studio}: {len(collector.rows):,} pictures so far")
    for name, picture in silhouettes(packages["gameicons"] / "package"):
        collector.add(picture, collector.named(name, "icon"), "ink", "gameicons")
    for name, pictures in sketches(packages["quickdraw"]):
        number = collector.named(name, "sketch")
        for picture in pictures[:SKETCHES]:
            collector.add(as_in_pool(picture, strokes=True), number, "sketch", "quickdraw")
    photos, labels = cifar10(packages["cifar10"], "train")
    for label, name in enumerate(CIFAR10):
        number = collector.named(name, "photo")
        for picture in photos[labels == label][:PHOTOS]:
            collector.add(as_in_pool(picture, strokes=False), number, "photo", "cifar10")
    for name, pictures in zip(FASHION, fashion(packages["fashion"]), strict=True):
        number = collector.named(name, "photo")
        for picture in pictures[:CLOTHES]:
            collector.add(as_in_pool(picture, strokes=False), number, "photo", "fashion")
    pictures, concept, medium, source = zip(*collector.rows, strict=True)
    echo(f"{len(pictures):,} pictures of {len(collector.concepts):,} concepts")
    return Pool(collector.concepts, np.stack(pictures), np.array(concept), np.array(medium), np.array(source))


def ink(strokes: np.ndarray) -> np.ndarray:
    """Black of this opacity, [28, 28] -> [48, 48, 4]."""
    alpha = np.asarray(Image.fromarray(strokes).resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    return np.stack([np.zeros_like(alpha)] * 3 + [alpha], axis=2)


def as_in_pool(picture: np.ndarray, *, strokes: bool) -> np.ndarray:
    """A drawing, strokes of ink or a photograph, coloured or grey, in the form that the pool has it in."""
    if picture.shape[2:] == (4,):
        return picture
    if picture.ndim == 2:
        return ink(picture) if strokes else opaque(np.repeat(picture[..., None], 3, axis=2))
    return opaque(picture)


def opaque(photo: np.ndarray) -> np.ndarray:
    """A photograph as a drawing that hides all behind it, [s, s, 3] -> [48, 48, 4]."""
    image = Image.fromarray(photo).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(image.convert("RGBA"))
