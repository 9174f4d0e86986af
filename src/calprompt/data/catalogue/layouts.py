"""Layouts of datasets on disk: what must be in a folder, and how it is read into a listing.

    SplitFile      split_zhou_X.json and a folder of images
    AircraftLists  variants.txt and images_variant_{train,val,test}.txt
    NamedFolders   a train and a test folder with one folder per class, in one of several places

The layouts of ImageNet and its variants are in `imagenet`. The name of a listing is empty, or that of the split if it
is not the usual one, such as "own-split" for one that was made from the annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from calprompt.data.catalogue.imagenet import CLASSNAMES, read_classnames
from calprompt.data.catalogue.raw import Raw
from calprompt.data.folders import class_rows, has_class_folders, subfolders
from calprompt.data.listing import SPLITS, Listing, Row, read_lines
from calprompt.data.split_files import listing, read_split_file
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry

OWN_SPLIT = "own-split"  # in the name of a dataset whose split is not the fixed one


class Layout(Protocol):
    """How the folder of a dataset is read."""

    @property
    def expects(self) -> str:
        """What must be in the folder, in words."""
        ...

    def missing(self, folder: Path, key: str) -> list[str]:
        """What is not there, each with what to do about it; `key` is the dataset's name in commands."""
        ...

    def read(self, folder: Path) -> Listing:
        """Class names and images."""
        ...


@dataclass(frozen=True)
class SplitFile:
    """A fixed split file, or one that was made from the annotations and is not comparable with published numbers.

    Attributes:
        file: Name of the fixed split file.
        images: Possible names of the image folder; "." if paths in the file are relative to the dataset's folder.
        raw: How to make a split where the fixed one is missing.
        needs: Further folders that must be there.
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
    def own_file(self) -> str:
        """Name of a split file that was made from the annotations."""
        return self.file.replace("split_zhou_", "split_own_")

    def image_folder(self, folder: Path) -> Path | None:
        return next((folder / name for name in self.images if (folder / name).is_dir()), None)

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = []
        if not (folder / self.file).is_file() and not (folder / self.own_file).is_file():
            problems.append(
                f"{folder / self.file}: not there. Get the fixed split, which CoOp's page on datasets links to; or "
                f"make one of your own, not comparable with published numbers, with 'calprompt data prepare {key}'"
            )
        missing = [name for name in self.needs if not (folder / name).is_dir()]
        if self.image_folder(folder) is None:
            missing.append(self.images[0])
        return problems + [
            f"{folder / name}/: not there. Unpack the images so that this folder has them" for name in missing
        ]

    def read(self, folder: Path) -> Listing:
        images = self.image_folder(folder)
        assert images is not None
        fixed = (folder / self.file).is_file()
        path = folder / (self.file if fixed else self.own_file)
        return listing("" if fixed else OWN_SPLIT, images, read_split_file(path), path.name)


@dataclass(frozen=True)
class AircraftLists:
    """Class names in variants.txt, in order; a line of a list is an image's number and its class name."""

    @property
    def expects(self) -> str:
        return "variants.txt, images_variant_{train,val,test}.txt, images/"

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = [
            f"{folder / name}: not there. It comes with the archive, in its folder data/"
            for name in ("images_variant_train.txt", "images_variant_val.txt", "images_variant_test.txt")
            if not (folder / name).is_file()
        ]
        if not (folder / "variants.txt").is_file():
            problems.append(
                f"{folder / 'variants.txt'}: not there. It comes with the archive; or make it with 'calprompt data "
                f"prepare {key}'"
            )
        if not (folder / "images").is_dir():
            problems.append(f"{folder / 'images'}/: not there. It comes with the archive, in its folder data/")
        return problems

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
class Place:
    """Where a dataset may keep its class folders.

    Attributes:
        train: Folder of the training images.
        test: Folder of the test images.
        split: What the name of the dataset gets if this is another split than the usual one.
        note: What a check says of it.
    """

    train: str
    test: str
    split: str = ""
    note: str = ""

    def absent(self, folder: Path) -> list[str]:
        """Which of the two are not in a folder, or have no images in their class folders."""
        return [name for name in (self.train, self.test) if not has_class_folders(folder / name)]


@dataclass(frozen=True)
class NamedFolders:
    """A folder of class folders to train on and one to test on; labels follow the sorted folders.

    Attributes:
        places: Where the two may be, of which the first that is complete is read.
        names: Class folder -> class name; those of classnames.txt, if it is there, go before them.
        remedy: What to do if a folder is missing, with {} for the dataset's key.
    """

    places: tuple[Place, ...]
    names: Mapping[str, str]
    remedy: str = "Unpack the images there, one folder per class"

    @property
    def expects(self) -> str:
        folders = "; or ".join(f"{place.train}/ and {place.test}/" for place in self.places)
        return f"{folders}; in each {', '.join(f'{name}/' for name in sorted(self.names))}"

    def place(self, folder: Path) -> Place | None:
        """The first place that is complete."""
        return next((place for place in self.places if not place.absent(folder)), None)

    def missing(self, folder: Path, key: str) -> list[str]:
        if self.place(folder) is not None:
            return []
        nearest = next((place for place in self.places if len(place.absent(folder)) == 1), self.places[0])
        others = [f"{place.train}/ and {place.test}/" for place in self.places if place is not nearest]
        instead = f". Or have {' or '.join(others)} in {folder}" if others else ""
        return [
            f"{folder / name}/: {'has no images' if (folder / name).is_dir() else 'not there'}. "
            f"{self.remedy.replace('{}', key)}{instead}"
            for name in nearest.absent(folder)
        ]

    def read(self, folder: Path) -> Listing:
        place = self.place(folder)
        assert place is not None
        names = self._names(folder)
        rows: dict[str, list[Row]] = {}
        for kind, name in (("train", place.train), ("test", place.test)):
            class_folders = [path.name for path in subfolders(folder / name)]
            odd = sorted(set(class_folders) ^ set(names))
            if odd:
                wrong = "is no class" if odd[0] in class_folders else "is missing"
                raise DataError(f"{folder / name / odd[0]}/ {wrong}; expected the folders {', '.join(sorted(names))}")
            rows[kind] = [
                row
                for label, class_folder in enumerate(class_folders)
                for row in class_rows(folder, folder / name / class_folder, label)
            ]
        return Listing(place.split, folder, tuple(names[class_folder] for class_folder in sorted(names)), rows)

    def _names(self, folder: Path) -> Mapping[str, str]:
        path = folder / CLASSNAMES
        if not path.is_file():
            return self.names
        names = read_classnames(path)
        odd = sorted(set(names) ^ set(self.names))
        if odd:
            wrong = f"lists {odd[0]!r}, which is no class folder" if odd[0] in names else f"does not list {odd[0]!r}"
            raise DataError(f"{path} {wrong}; expected a line for each of {', '.join(sorted(self.names))}")
        return names


def ready_images(entry: Entry, folder: Path) -> str | None:
    """A line about the class folders that a dataset has already, if it is one of `NamedFolders`."""
    place = entry.layout.place(folder) if isinstance(entry.layout, NamedFolders) else None
    return None if place is None else f"{folder / place.train} and {folder / place.test} are there already"
