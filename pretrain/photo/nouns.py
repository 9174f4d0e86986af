"""Names and definitions of visible things, and where the tower would see photographs of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pretrain.captions import FRAMES
from pretrain.concepts import Concept
from pretrain.photo.pictures import Invented
from pretrain.photo.words import Kernel, Synset, Vectors, WordNet, imagenet, regress

SHORT = ("{}", "a {}.", "{}.")


@dataclass(frozen=True)
class Nouns:
    """WordNet's visible nouns.

    Attributes:
        names: Each name and the row of its most frequent visible meaning.
        definitions: Of every row.
        weights: That the classifier would have for them, [rows, 1280].
        familiar: Places in `names` of ImageNet's classes and of what these are kinds of.
        classes: ImageNet's 1,000, in the classifier's order.
    """

    names: list[tuple[str, int]]
    definitions: list[str]
    weights: Tensor
    familiar: list[int]
    classes: list[Synset]

    def of_concepts(self, concepts: list[Concept]) -> dict[int, Tensor]:
        """Weights for those concepts whose label is the name of a familiar thing."""
        rows = {self.names[place][0].lower(): self.names[place][1] for place in self.familiar}
        found = ((number, rows.get(concept.label.lower())) for number, concept in enumerate(concepts))
        return {number: self.weights[row] for number, row in found if row is not None}

    def describe(self, label: int, dice: random.Random) -> str:
        """A sentence about one of ImageNet's classes."""
        synset = self.classes[label]
        if dice.random() < 0.1:
            return synset.definition
        name = synset.names[0] if dice.random() < 0.6 else dice.choice(synset.names)
        return frame(dice).replace("{}", name.lower())


def frame(dice: random.Random, photo: bool = False) -> str:
    """A sentence for a name; short ones are more frequent than long ones."""
    if not photo and dice.random() < 0.6:
        return dice.choice(SHORT)
    return dice.choice(FRAMES["photo"] if photo or dice.random() < 0.6 else FRAMES["any"])


def find_nouns(wordnet: WordNet, vectors: Vectors, invented: Invented, cache: Path) -> Nouns:
    """All of them; the regression is kept in `cache`."""
    classes, synsets = imagenet(), wordnet.synsets
    known = [key for key in wordnet.visible if any(vectors.known(name) for name in synsets[key].names)]
    keys = list(dict.fromkeys([*classes, *known]))
    place = {key: number for number, key in enumerate(keys)}
    weights = invented.weights.numpy()
    counts = np.zeros(len(keys), int)
    sums = np.zeros((len(keys), weights.shape[1]), np.float32)
    for number, key in enumerate(classes):
        for above in wordnet.ancestors(key) & place.keys():
            sums[place[above]] += weights[number]
            counts[place[above]] += 1
    if not cache.is_file():
        guessed = regress(Kernel(wordnet, vectors), classes, weights, keys)
        np.save(cache, guessed.astype(np.float16))
    guessed = np.load(cache).astype(np.float32)
    seen = counts > 0
    means = sums[seen] / counts[seen, None]
    guessed[seen] = np.where(counts[seen, None] == 1, means, 0.7 * means + 0.3 * guessed[seen])
    names: dict[str, int] = {}
    for key in keys:
        for name in synsets[key].names:
            senses = [sense for sense in wordnet.senses.get(name.lower(), ()) if sense in place]
            if senses:
                names.setdefault(name, place[senses[0]])
    pairs = list(names.items())
    return Nouns(
        names=pairs,
        definitions=[synsets[key].definition for key in keys],
        weights=torch.from_numpy(guessed),
        familiar=[number for number, (_, row) in enumerate(pairs) if seen[row]],
        classes=[synsets[key] for key in classes],
    )
