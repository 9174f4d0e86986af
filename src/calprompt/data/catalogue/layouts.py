"""Layouts of datasets on disk: what must be in a folder, and how it is read into a listing.

    SplitFile        split_zhou_X.json and a folder of images
    AircraftLists    variants.txt and images_variant_{train,val,test}.txt
    ClassFolders     a train and a test folder with one folder per class, in one of several places, such as
                     imagenet/images/train/n01440764/…  images/val/n01440764/…  classnames.txt
                     imagenet-adversarial/imagenet-a/n01498041/…               200 of ImageNet's classes
                     imagenetv2/imagenetv2-matched-frequency-format-val/0/…    labels, in the order of classnames.txt

The lines of classnames.txt are such as "n01440764 tench". Images are sorted by name; public code takes them in the
order of the file system, so the shots it draws from ImageNet differ between machines.

The name of a listing is empty, or that of the split if it is not the usual one, such as "own-split" for one that was
made from the annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calprompt.data.dataset import SPLITS, Listing, Row, read_lines
from calprompt.data.listings import class_rows, has_class_folders, subfolders
from calprompt.data.split_files import NamedRow, listing, read_split_file
from calprompt.errors import DataError
from calprompt.text import shorten

OWN_SPLIT = "own-split"  # in the name of a dataset whose split is not the fixed one

NamedRows = dict[str, list[NamedRow]]  # by split


class Layout(Protocol):
    """How the folder of a dataset is read."""

    @property
    def expects(self) -> str:
        """The expected contents of the folder, in words."""
        ...

    def missing(self, folder: Path, key: str) -> list[str]:
        """Missing files, each with advice; `key` is the dataset's name in commands."""
        ...

    def read(self, folder: Path) -> Listing:
        """Class names and images."""
        ...


def missing_places(folder: Path, names: Iterable[str], remedy: str) -> list[str]:
    """A problem for every name of which there is no file or, of one that ends in "/", no folder."""
    there = {name: (folder / name).is_dir() if name.endswith("/") else (folder / name).is_file() for name in names}
    return [f"{folder}/{name}: not there. {remedy}" for name, found in there.items() if not found]


def rows_of_folders(root: Path, place: Path, names: Iterable[str]) -> list[Row]:
    """The rows of class folders in the order of their labels."""
    return [row for label, name in enumerate(names) for row in class_rows(root, place / name, label)]


@dataclass(frozen=True)
class SplitFile:
    """A fixed split file, or one that was made from the annotations and is not comparable with published numbers."""

    file: str  # name of the fixed split file
    # possible names of the image folder; "." if paths in the file are relative to the dataset's folder
    images: tuple[str, ...]
    # makes one from the annotations, given the dataset's folder and that of the images
    split: Callable[[Path, Path], NamedRows]
    needs: tuple[str, ...] = ()  # further folders that must be there

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
        own = (
            "Get the fixed split, which CoOp's page on datasets links to; or make one of your own, not comparable with "
            f"published numbers, with 'calprompt data prepare {key}'"
        )
        problems = [] if (folder / self.own_file).is_file() else missing_places(folder, [self.file], own)
        images = self.images[:1] if self.image_folder(folder) is None else ()
        unpack = "Unpack the images so that this folder has them"
        return problems + missing_places(folder, [f"{name}/" for name in (*self.needs, *images)], unpack)

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
        lists = [f"images_variant_{kind}.txt" for kind in SPLITS]
        make = f"It comes with the archive; or make it with 'calprompt data prepare {key}'"
        return missing_places(folder, [*lists, "images/"], "It comes with the archive, in its folder data/") + (
            missing_places(folder, ["variants.txt"], make)
        )

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
        return Listing("", class_names, folder / "images", rows)


CLASSNAMES = "classnames.txt"
IMAGENET = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012")  # folders in which a variant looks for the names


@dataclass(frozen=True)
class Place:
    """Where a dataset may keep its class folders."""

    test: str  # folder of the test images
    train: str = ""  # folder of the training images; empty if there are none
    split: str = ""  # what the name of the dataset gets if this is another split than the usual one
    note: str = ""  # what a check says of it

    @property
    def folders(self) -> dict[str, str]:
        """The folder of every split."""
        return ({"train": self.train} if self.train else {}) | {"test": self.test}

    def __str__(self) -> str:
        return " and ".join("the class folders" if name == "." else f"{name}/" for name in self.folders.values())

    def lacks(self, folder: Path) -> list[str]:
        """Which of the folders are not there, or have no images in their class folders."""
        return [name for name in self.folders.values() if not has_class_folders(folder / name)]


@dataclass(frozen=True)
class ClassFolders:
    """A folder of class folders to test on, and usually one to train on; labels follow the sorted folders.

    Without names of their own, class folders are those of ImageNet: the names are those of classnames.txt, of which not
    all need be there, and the base classes of a variant, which has test images only, are those in its first half.
    """

    places: tuple[Place, ...]  # where the folders may be, of which the first place that is complete is read
    # class folder -> class name; those of classnames.txt, if it is there, go before them
    names: Mapping[str, str] | None = None
    numbered: bool = False  # folders are named by label, in the order of classnames.txt, instead of by WordNet number
    remedy: str = "Unpack the images there, one folder per class"  # for a missing folder, with {} for the dataset's key

    @property
    def expects(self) -> str:
        folders = "; or ".join(map(str, self.places))
        if self.names is not None:
            return f"{folders}; in each {', '.join(f'{name}/' for name in sorted(self.names))}"
        first = "0" if self.numbered else "n01440764"
        return f"{CLASSNAMES} (or imagenet/ beside), {folders}, with folders such as {first}/"

    def place(self, folder: Path) -> Place | None:
        """The first place that is complete."""
        return next((place for place in self.places if not place.lacks(folder)), None)

    def missing(self, folder: Path, key: str) -> list[str]:
        problems: list[str] = []
        if self.place(folder) is None:
            some = (place for place in self.places if len(place.lacks(folder)) < len(place.folders))
            nearest = next(some, self.places[0])
            others = " or ".join(str(place) for place in self.places if place is not nearest)
            instead = f". Or have {others} in {folder}" if others else ""
            problems = [
                f"{folder / name}/: {'has no folders with images' if (folder / name).is_dir() else 'not there'}. "
                f"{self.remedy.replace('{}', key)}{instead}"
                for name in nearest.lacks(folder)
            ]
        if self.names is None and self._classnames(folder) is None:
            make = f"CoOp's page on datasets links to it; 'calprompt data prepare {key}' makes it from CLIP's names"
            beside = "Copy the one of ImageNet, or put imagenet/ beside this folder"
            problems += missing_places(folder, [CLASSNAMES], make if self.places[0].train else beside)
        return problems

    def read(self, folder: Path) -> Listing:
        place, classnames = self.place(folder), self._classnames(folder)
        assert place is not None
        lines = read_classnames(classnames) if self.names is None and classnames is not None else {}
        # class folder -> WordNet number
        numbers = {str(label) if self.numbered else number: number for label, number in enumerate(lines)}
        names = self._own_names(folder) or {name: lines[number] for name, number in numbers.items()}
        found = {kind: [path.name for path in subfolders(folder / name)] for kind, name in place.folders.items()}
        classes = list(self.names or next(iter(found.values())))
        for kind, there in found.items():
            odd = sorted(set(there) - set(names) or set(there) ^ set(classes))
            if odd:
                wrong = f"is not in {place.train}/" if odd[0] in there else "is missing"
                if odd[0] not in names:
                    wrong = "is not a class" if self.names else f"is not a class of {classnames}"
                expected = shorten(sorted(classes) if self.names else names, 10)
                raise DataError(f"{folder / place.folders[kind] / odd[0]}/ {wrong}; expected the folders {expected}")
        classes.sort(key=int if self.numbered else None)
        rows = {kind: rows_of_folders(folder, folder / name, classes) for kind, name in place.folders.items()}
        base = None
        if not place.train:
            half = set(sorted(lines)[: -(-len(lines) // 2)])
            base = tuple(label for label, name in enumerate(classes) if numbers[name] in half)
        return Listing(
            *(place.split, tuple(names[name] for name in classes), folder, rows),
            base=base,
            test_only=not place.train,
            repeated_names=self.names is None,
        )

    def _classnames(self, folder: Path) -> Path | None:
        places = (where / CLASSNAMES for where in (folder, *(folder.parent / name for name in IMAGENET)))
        return next((place for place in places if place.is_file()), None)

    def _own_names(self, folder: Path) -> Mapping[str, str]:
        path = folder / CLASSNAMES
        if self.names is None or not path.is_file():
            return self.names or {}
        names = read_classnames(path)
        odd = sorted(set(names) ^ set(self.names))
        if odd:
            wrong = f"lists {odd[0]!r}, which is not a class folder" if odd[0] in names else f"does not list {odd[0]!r}"
            raise DataError(f"{path} {wrong}; expected a line for each of {', '.join(sorted(self.names))}")
        return names


def read_classnames(path: Path) -> dict[str, str]:
    """WordNet number -> class name, in the order of the file, whose lines are such as 'n01440764 tench'."""
    names = {}
    for line in read_lines(path):
        wnid, _, name = line.partition(" ")
        if not name.strip():
            raise DataError(f"{path}: expected lines such as 'n01440764 tench', got {line!r}")
        names[wnid] = name.strip()
    return names
