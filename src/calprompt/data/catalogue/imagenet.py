"""ImageNet and what tests on its classes: folders named by WordNet number, names in classnames.txt.

    imagenet/images/train/n01440764/…  images/val/n01440764/…  classnames.txt      "n01440764 tench", a line a class
    imagenet-adversarial/imagenet-a/n01498041/…                                    200 of the classes
    imagenetv2/imagenetv2-matched-frequency-format-val/0/…                         labels, as classnames.txt orders them

Images are taken in the order of their names; public code takes them in the order the file system has them, so the shots
it draws from ImageNet are other ones on every machine. Base classes of a variant are those of ImageNet's first half.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calprompt.data.folders import class_rows, subfolders
from calprompt.data.listing import SPLITS, Listing, Row
from calprompt.data.text_files import read_lines
from calprompt.errors import DataError

CLASSNAMES = "classnames.txt"
IMAGENET = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012")  # where a variant may find the names


@dataclass(frozen=True)
class ImageNetFolders:
    """train and val with a folder a class, named by WordNet number; labels follow the sorted numbers; val tests."""

    train: tuple[str, ...] = ("images/train", "train", "ILSVRC/Data/CLS-LOC/train")
    test: tuple[str, ...] = ("images/val", "val", "ILSVRC/Data/CLS-LOC/val")

    @property
    def expects(self) -> str:
        return f"{CLASSNAMES}, {self.train[0]}/ and {self.test[0]}/ with folders such as n01440764/"

    def missing(self, folder: Path, key: str) -> list[str]:
        found = []
        for names in (self.train, self.test):
            inside = _first(folder, names)
            if inside is None:
                found.append(f"{folder / names[0]}/: not there. Unpack the images there, a folder a class")
            elif not subfolders(inside):
                found.append(f"{inside}/: has no folders. Sort its images into a folder a class, named as in train/")
        if not (folder / CLASSNAMES).is_file():
            found.append(
                f"{folder / CLASSNAMES}: not there. CoOp's page on datasets links to it; 'calprompt data prepare "
                f"{key}' makes it from CLIP's names"
            )
        return found

    def read(self, folder: Path) -> Listing:
        names = read_classnames(folder / CLASSNAMES)
        train, test = (_first(folder, names) for names in (self.train, self.test))
        assert train is not None
        assert test is not None
        inside = [[found.name for found in subfolders(where)] for where in (train, test)]
        if inside[0] != inside[1]:
            odd = sorted(set(inside[0]) ^ set(inside[1]))[0]
            raise DataError(f"{odd} is only in one of {train}/ and {test}/; both need the same folders")
        rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
        for label, wnid in enumerate(inside[0]):
            rows["train"] += class_rows(folder, train / wnid, label)
            rows["test"] += class_rows(folder, test / wnid, label)
        class_names = tuple(_class_name(names, wnid, folder) for wnid in inside[0])
        return Listing("", folder, class_names, rows, repeated_names=True)


@dataclass(frozen=True)
class VariantFolders:
    """Images of some of ImageNet's classes, to test on; a class is base if ImageNet's first half has it.

    numbered  folders are named by label, in the order of classnames.txt, not by WordNet number
    """

    images: tuple[str, ...]
    numbered: bool = False

    @property
    def expects(self) -> str:
        first = "0" if self.numbered else "n01440764"
        return f"{CLASSNAMES} (or imagenet/ beside), {self.images[0]}/ with folders such as {first}/"

    def missing(self, folder: Path, key: str) -> list[str]:
        found = []
        if self._images(folder) is None:
            found.append(f"{folder / self.images[0]}/: not there. Unpack the images there, a folder a class")
        if self._classnames(folder) is None:
            found.append(
                f"{folder / CLASSNAMES}: not there. Copy the one of ImageNet, or put imagenet/ beside this folder"
            )
        return found

    def read(self, folder: Path) -> Listing:
        images, classnames = self._images(folder), self._classnames(folder)
        assert images is not None
        assert classnames is not None
        names = read_classnames(classnames)
        wnids = list(names)
        known = (
            {str(label): wnid for label, wnid in enumerate(wnids)} if self.numbered else {wnid: wnid for wnid in wnids}
        )
        inside = [found.name for found in subfolders(images)]
        for name in inside:
            if name not in known:
                raise DataError(
                    f"{images / name}/ is no class of {classnames}; expected folders such as {next(iter(known))}"
                )
        inside.sort(key=int if self.numbered else None)
        rows = [row for label, name in enumerate(inside) for row in class_rows(folder, images / name, label)]
        half = set(sorted(wnids)[: -(-len(wnids) // 2)])
        base = tuple(label for label, name in enumerate(inside) if known[name] in half)
        class_names = tuple(names[known[name]] for name in inside)
        return Listing("", folder, class_names, {"test": rows}, base=base, test_only=True, repeated_names=True)

    def _images(self, folder: Path) -> Path | None:
        """The first of the image folders that has folders of classes."""
        pattern = r"\d+" if self.numbered else r"n\d{8}"
        for where in (folder / name for name in self.images):
            if where.is_dir() and any(re.fullmatch(pattern, found.name) for found in subfolders(where)):
                return where
        return None

    def _classnames(self, folder: Path) -> Path | None:
        return next(
            (
                where / CLASSNAMES
                for where in (folder, *(folder.parent / name for name in IMAGENET))
                if (where / CLASSNAMES).is_file()
            ),
            None,
        )


def read_classnames(path: Path) -> dict[str, str]:
    """WordNet number to class name, in the file's order; a line is the number, a blank, the name."""
    names = {}
    for line in read_lines(path):
        wnid, _, name = line.partition(" ")
        if not name.strip():
            raise DataError(f"{path}: expected lines such as 'n01440764 tench', got {line!r}")
        names[wnid] = name.strip()
    return names


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _class_name(names: Mapping[str, str], wnid: str, folder: Path) -> str:
    if wnid not in names:
        raise DataError(f"folder {wnid} is not in {folder / CLASSNAMES}; expected a line '{wnid} name'")
    return names[wnid]
