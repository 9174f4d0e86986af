"""How datasets lie on disk: each layout says what is missing in a folder, and reads the rest into a listing.

    SplitFile      split_zhou_X.json and a folder of images
    AircraftLists  variants.txt and images_variant_{train,val,test}.txt
    NamedFolders   a train and a test folder with a folder a class

ImageNet and its variants have a file of their own, `imagenet`.
A listing's own name is empty, or says that it is not the field's split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calprompt.data.catalogue.raw import Raw
from calprompt.data.folders import class_rows, subfolders
from calprompt.data.listing import SPLITS, Listing, Row
from calprompt.data.split_files import listing, read_split_file
from calprompt.data.text_files import read_lines
from calprompt.errors import DataError


class Layout(Protocol):
    """What every layout can do."""

    @property
    def expects(self) -> str:
        """What must be in the folder, in words."""
        ...

    def missing(self, folder: Path, key: str) -> list[str]:
        """What is not there and what to do about it; `key` is the dataset's name in commands."""
        ...

    def read(self, folder: Path) -> Listing:
        """Class names and images; raises for contents that are not as they must be."""
        ...


@dataclass(frozen=True)
class SplitFile:
    """A fixed split file; without it, a split made here from the raw files, which is not the field's.

    images  names of the image folder; "." if paths in the file are relative to the dataset's folder
    raw     how the split is derived where the fixed one is missing
    needs   folders that must be there besides
    """

    file: str
    images: tuple[str, ...]
    raw: Raw
    needs: tuple[str, ...] = ()

    @property
    def expects(self) -> str:
        folders = self.needs or (self.images[0],)
        return f"{self.file}, {', '.join(f'{name}/' for name in folders)}"

    @property
    def own(self) -> str:
        """The name of a split made here."""
        return self.file.replace("split_zhou_", "split_own_")

    def image_folder(self, folder: Path) -> Path | None:
        return next((folder / name for name in self.images if (folder / name).is_dir()), None)

    def missing(self, folder: Path, key: str) -> list[str]:
        found = []
        if not (folder / self.file).is_file() and not (folder / self.own).is_file():
            found.append(
                f"{folder / self.file}: not there. Get the fixed split, which CoOp's page on datasets links to; or "
                f"make one of your own, not comparable with published numbers, with 'calprompt data prepare {key}'"
            )
        lacking = [name for name in self.needs if not (folder / name).is_dir()]
        if self.image_folder(folder) is None:
            lacking.append(self.images[0])
        return found + [
            f"{folder / name}/: not there. Unpack the images so that this folder has them" for name in lacking
        ]

    def read(self, folder: Path) -> Listing:
        images = self.image_folder(folder)
        assert images is not None
        fixed = (folder / self.file).is_file()
        path = folder / (self.file if fixed else self.own)
        return listing("" if fixed else "own-split", images, read_split_file(path), path.name)


@dataclass(frozen=True)
class AircraftLists:
    """Class names in variants.txt, in order; a line of a list is an image's number and its class name."""

    @property
    def expects(self) -> str:
        return "variants.txt, images_variant_{train,val,test}.txt, images/"

    def missing(self, folder: Path, key: str) -> list[str]:
        found = [
            f"{folder / name}: not there. It comes with the archive, in its folder data/"
            for name in ("images_variant_train.txt", "images_variant_val.txt", "images_variant_test.txt")
            if not (folder / name).is_file()
        ]
        if not (folder / "variants.txt").is_file():
            found.append(
                f"{folder / 'variants.txt'}: not there. It comes with the archive; or make it with 'calprompt data "
                f"prepare {key}'"
            )
        if not (folder / "images").is_dir():
            found.append(f"{folder / 'images'}/: not there. It comes with the archive, in its folder data/")
        return found

    def read(self, folder: Path) -> Listing:
        class_names = tuple(read_lines(folder / "variants.txt"))
        labels = {name: label for label, name in enumerate(class_names)}
        rows: dict[str, list[Row]] = {}
        for kind in SPLITS:
            path = folder / f"images_variant_{kind}.txt"
            rows[kind] = []
            for line in read_lines(path):
                number, _, name = line.partition(" ")
                if name not in labels:
                    raise DataError(f"{path.name}: {name!r} of image {number} is not in variants.txt")
                rows[kind].append((f"{number}.jpg", labels[name]))
        return Listing("", folder / "images", class_names, rows)


@dataclass(frozen=True)
class NamedFolders:
    """A folder of class folders to train on and one to test on; labels follow the sorted folders.

    names   the classes' folders, and the names they are read out by
    remedy  what to do where a folder is missing, with {} for the dataset's key
    """

    train: str
    test: str
    names: Mapping[str, str]
    remedy: str = "Unpack the images there, a folder a class"

    @property
    def expects(self) -> str:
        return f"{self.train}/ and {self.test}/, in each {', '.join(f'{name}/' for name in sorted(self.names))}"

    def missing(self, folder: Path, key: str) -> list[str]:
        return [
            f"{folder / name}/: not there. {self.remedy.replace('{}', key)}"
            for name in (self.train, self.test)
            if not (folder / name).is_dir()
        ]

    def read(self, folder: Path) -> Listing:
        rows: dict[str, list[Row]] = {}
        for kind, name in (("train", self.train), ("test", self.test)):
            inside = [found.name for found in subfolders(folder / name)]
            odd = sorted(set(inside) ^ set(self.names))
            if odd:
                wrong = "is no class" if odd[0] in inside else "is missing"
                raise DataError(
                    f"{folder / name / odd[0]}/ {wrong}; expected the folders {', '.join(sorted(self.names))}"
                )
            rows[kind] = [
                row for label, own in enumerate(inside) for row in class_rows(folder, folder / name / own, label)
            ]
        return Listing("", folder, tuple(self.names[own] for own in sorted(self.names)), rows)
