"""Splits from a dataset's annotations, where the fixed split file is missing: by the public rules, with a fixed seed.

The public code draws such splits anew on every machine, so results on them cannot be compared with published numbers.

    ClassFolders   images/<class>/…     50 % train, 20 % val, 30 % test of every class
    PetLists       annotations/{trainval,test}.txt; a class is a file's name without its number, in lower case
    CarLists       devkit/*.mat; a class name's year moves to the front
    FlowerLabels   imagelabels.mat and cat_to_name.json; 50, 20 and 30 %
    SceneLists     ClassName.txt, {Training,Testing}_01.txt; a class is its path without the letter, reversed
    ActionLists    ucfTrainTestlist/*; a class is split at its capitals

Where there are official lists to train and to test, 20 % of each class to train become val.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from calprompt.data.folders import class_rows, subfolders
from calprompt.data.listing import read_lines
from calprompt.data.split_files import NamedRow
from calprompt.errors import DataError
from calprompt.files import read_json

SEED = 1

Split = dict[str, list[NamedRow]]


class Raw(Protocol):
    """Reads a dataset's annotations and splits it."""

    def split(self, folder: Path, images: Path) -> Split:
        """Rows by split, paths relative to `images`."""
        ...


@dataclass(frozen=True)
class ClassFolders:
    """One folder per class, in case-sensitive order.

    Attributes:
        ignored: Folders that are no classes.
        renamed: Folder -> class name, where they differ.
    """

    ignored: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def split(self, folder: Path, images: Path) -> Split:
        class_folders = [path for path in subfolders(images) if path.name not in self.ignored]
        rows = [
            (path, label, self.renamed.get(class_folder.name, class_folder.name))
            for label, class_folder in enumerate(class_folders)
            for path, _ in class_rows(images, class_folder, label)
        ]
        return in_three(rows)


@dataclass(frozen=True)
class PetLists:
    """Lines such as 'Abyssinian_201 1 1 1': image, label from 1, and two numbers that are not used."""

    def split(self, folder: Path, images: Path) -> Split:
        def rows(name: str) -> list[NamedRow]:
            result = []
            for line in read_lines(folder / "annotations" / name):
                image, label = line.split()[:2]
                result.append((f"{image}.jpg", int(label) - 1, image.rpartition("_")[0].lower()))
            return result

        return {**in_two(rows("trainval.txt")), "test": rows("test.txt")}


@dataclass(frozen=True)
class CarLists:
    """Annotations in MATLAB files; paths are relative to the dataset's folder."""

    def split(self, folder: Path, images: Path) -> Split:
        names = [str(name[0]) for name in _matlab(folder / "devkit" / "cars_meta.mat")["class_names"][0]]

        def rows(inside: str, path: Path) -> list[NamedRow]:
            pairs = [(str(row["fname"][0]), int(row["class"][0, 0]) - 1) for row in _matlab(path)["annotations"][0]]
            return [(f"{inside}/{image}", label, year_first(names[label])) for image, label in pairs]

        train = rows("cars_train", folder / "devkit" / "cars_train_annos.mat")
        return {**in_two(train), "test": rows("cars_test", folder / "cars_test_annos_withlabels.mat")}


@dataclass(frozen=True)
class FlowerLabels:
    """Image i of jpg/ has the i-th label, from 1, whose name is in cat_to_name.json."""

    def split(self, folder: Path, images: Path) -> Split:
        names = read_json(folder / "cat_to_name.json")
        labels = [int(label) for label in _matlab(folder / "imagelabels.mat")["labels"][0]]
        rows = [(f"image_{i:05d}.jpg", label - 1, names[str(label)]) for i, label in enumerate(labels, start=1)]
        return in_three(rows)


@dataclass(frozen=True)
class SceneLists:
    """Paths such as /a/airplane_cabin/sun_….jpg; labels follow ClassName.txt."""

    def split(self, folder: Path, images: Path) -> Split:
        labels = {line[1:]: label for label, line in enumerate(read_lines(folder / "ClassName.txt"))}

        def rows(name: str) -> list[NamedRow]:
            result = []
            for line in read_lines(folder / name):
                scene = line[1:].rpartition("/")[0]
                if scene not in labels:
                    raise DataError(f"{folder / name}: the class of {line} is not in ClassName.txt")
                result.append((line[1:], labels[scene], scene_name(scene)))
            return result

        return {**in_two(rows("Training_01.txt")), "test": rows("Testing_01.txt")}


@dataclass(frozen=True)
class ActionLists:
    """Lines such as 'ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1', for the middle frames of those videos."""

    def split(self, folder: Path, images: Path) -> Split:
        lists = folder / "ucfTrainTestlist"
        labels = {name: int(label) - 1 for label, name in (line.split() for line in read_lines(lists / "classInd.txt"))}

        def rows(name: str) -> list[NamedRow]:
            result = []
            for line in read_lines(lists / name):
                action, _, video = line.split()[0].partition("/")
                if action not in labels:
                    raise DataError(f"{lists / name}: {action} is not in classInd.txt")
                class_name = action_name(action)
                result.append((f"{class_name}/{video.removesuffix('.avi')}.jpg", labels[action], class_name))
            return result

        return {**in_two(rows("trainlist01.txt")), "test": rows("testlist01.txt")}


def year_first(name: str) -> str:
    """A car's name with the year in front.

    >>> year_first("AM General Hummer SUV 2000")
    '2000 AM General Hummer SUV'
    """
    words = name.split(" ")
    return " ".join([words[-1], *words[:-1]])


def scene_name(path: str) -> str:
    """The name of a scene from its path.

    >>> scene_name("a/apse/indoor")
    'indoor apse'
    """
    return " ".join(reversed(path.split("/")[1:]))


def action_name(name: str) -> str:
    """The name of an action, split at its capitals.

    >>> action_name("ApplyEyeMakeup")
    'Apply_Eye_Makeup'
    """
    return "_".join(re.findall("[A-Z][^A-Z]*", name))


def in_two(rows: list[NamedRow]) -> Split:
    """20 % of every class to val, the rest to train."""
    split: Split = {"train": [], "val": []}
    for members in _shuffled(rows):
        val = round(0.2 * len(members))
        split["val"] += members[:val]
        split["train"] += members[val:]
    return split


def in_three(rows: list[NamedRow]) -> Split:
    """50 % of every class to train, 20 % to val, the rest to test."""
    split: Split = {"train": [], "val": [], "test": []}
    for members in _shuffled(rows):
        train, val = round(0.5 * len(members)), round(0.2 * len(members))
        split["train"] += members[:train]
        split["val"] += members[train : train + val]
        split["test"] += members[train + val :]
    return split


def _shuffled(rows: list[NamedRow]) -> list[list[NamedRow]]:
    """The rows of every class, classes in order of label, from one stream of random numbers."""
    rng = random.Random(SEED)
    classes: dict[int, list[NamedRow]] = {}
    for row in sorted(rows, key=lambda row: (row[1], row[0])):
        classes.setdefault(row[1], []).append(row)
    for members in classes.values():
        rng.shuffle(members)
    return list(classes.values())


def _matlab(path: Path) -> Any:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(f"{path.name} is a MATLAB file; reading it needs SciPy: pip install scipy") from error
    if not path.is_file():
        raise DataError(f"cannot read {path}: it is not there")
    return loadmat(path)
