"""Layouts of datasets on disk: what must be in a folder, and how it is read into a listing.

    SplitFile        split_zhou_X.json and a folder of images
    AircraftLists    variants.txt and images_variant_{train,val,test}.txt
    NamedFolders     a train and a test folder with one folder per class, in one of several places
    ImageNetFolders  imagenet/images/train/n01440764/…  images/val/n01440764/…  classnames.txt
    VariantFolders   imagenet-adversarial/imagenet-a/n01498041/…               200 of ImageNet's classes
                     imagenetv2/imagenetv2-matched-frequency-format-val/0/…    labels, in the order of classnames.txt

The lines of classnames.txt are such as "n01440764 tench". Images are sorted by name; public code takes them in the
order of the file system, so the shots it draws from ImageNet differ between machines. Base classes of a variant are
those of ImageNet's first half.

The name of a listing is empty, or that of the split if it is not the usual one, such as "own-split" for one that was
made from the annotations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calprompt.data.dataset import SPLITS, Listing, Row, read_lines
from calprompt.data.listings import class_rows, has_class_folders, subfolders
from calprompt.data.split_files import NamedRow, listing, read_split_file
from calprompt.errors import DataError

OWN_SPLIT = "own-split"  # in the name of a dataset whose split is not the fixed one
UNPACK_CLASSES = "Unpack the images there, one folder per class"

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
        return first_folder(folder, self.images)

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


@dataclass(frozen=True)
class Place:
    """Where a dataset may keep its class folders."""

    train: str  # folder of the training images
    test: str  # folder of the test images
    split: str = ""  # what the name of the dataset gets if this is another split than the usual one
    note: str = ""  # what a check says of it

    def lacks(self, folder: Path) -> list[str]:
        """Which of the two are not in a folder, or have no images in their class folders."""
        return [name for name in (self.train, self.test) if not has_class_folders(folder / name)]


@dataclass(frozen=True)
class NamedFolders:
    """A folder of class folders to train on and one to test on; labels follow the sorted folders."""

    places: tuple[Place, ...]  # where the two may be, of which the first that is complete is read
    names: Mapping[str, str]  # class folder -> class name; those of classnames.txt, if it is there, go before them
    remedy: str = UNPACK_CLASSES  # what to do if a folder is missing, with {} for the dataset's key

    @property
    def expects(self) -> str:
        folders = "; or ".join(f"{place.train}/ and {place.test}/" for place in self.places)
        return f"{folders}; in each {', '.join(f'{name}/' for name in sorted(self.names))}"

    def place(self, folder: Path) -> Place | None:
        """The first place that is complete."""
        return next((place for place in self.places if not place.lacks(folder)), None)

    def missing(self, folder: Path, key: str) -> list[str]:
        if self.place(folder) is not None:
            return []
        nearest = next((place for place in self.places if len(place.lacks(folder)) == 1), self.places[0])
        others = [f"{place.train}/ and {place.test}/" for place in self.places if place is not nearest]
        instead = f". Or have {' or '.join(others)} in {folder}" if others else ""
        return [
            f"{folder / name}/: {'has no images' if (folder / name).is_dir() else 'not there'}. "
            f"{self.remedy.replace('{}', key)}{instead}"
            for name in nearest.lacks(folder)
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
                wrong = "is not a class" if odd[0] in class_folders else "is missing"
                raise DataError(f"{folder / name / odd[0]}/ {wrong}; expected the folders {', '.join(sorted(names))}")
            rows[kind] = rows_of_folders(folder, folder / name, class_folders)
        return Listing(place.split, tuple(names[class_folder] for class_folder in sorted(names)), folder, rows)

    def _names(self, folder: Path) -> Mapping[str, str]:
        path = folder / CLASSNAMES
        if not path.is_file():
            return self.names
        names = read_classnames(path)
        odd = sorted(set(names) ^ set(self.names))
        if odd:
            wrong = f"lists {odd[0]!r}, which is not a class folder" if odd[0] in names else f"does not list {odd[0]!r}"
            raise DataError(f"{path} {wrong}; expected a line for each of {', '.join(sorted(self.names))}")
        return names


CLASSNAMES = "classnames.txt"
IMAGENET = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012")  # folders in which a variant looks for the names


@dataclass(frozen=True)
class ImageNetFolders:
    """Train and val with one folder per class, named by WordNet number, in whose order labels are; val is tested on."""

    # possible folders of the training images
    train: tuple[str, ...] = ("images/train", "train", "ILSVRC/Data/CLS-LOC/train")
    # possible folders of the validation images
    test: tuple[str, ...] = ("images/val", "val", "ILSVRC/Data/CLS-LOC/val")

    @property
    def expects(self) -> str:
        return f"{CLASSNAMES}, {self.train[0]}/ and {self.test[0]}/ with folders such as n01440764/"

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = []
        for names in (self.train, self.test):
            inside = first_folder(folder, names)
            if inside is None:
                problems += missing_places(folder, [f"{names[0]}/"], UNPACK_CLASSES)
            elif not subfolders(inside):
                problems.append(
                    f"{inside}/: has no folders. Sort its images into one folder per class, named as in train/"
                )
        make = f"CoOp's page on datasets links to it; 'calprompt data prepare {key}' makes it from CLIP's names"
        return problems + missing_places(folder, [CLASSNAMES], make)

    def read(self, folder: Path) -> Listing:
        names = read_classnames(folder / CLASSNAMES)
        train, test = (first_folder(folder, names) for names in (self.train, self.test))
        assert train is not None
        assert test is not None
        wnids, test_wnids = ([path.name for path in subfolders(where)] for where in (train, test))
        if wnids != test_wnids:
            odd = sorted(set(wnids) ^ set(test_wnids))[0]
            raise DataError(f"{odd} is only in one of {train}/ and {test}/; both need the same folders")
        rows = {"train": rows_of_folders(folder, train, wnids), "test": rows_of_folders(folder, test, wnids)}
        for wnid in wnids:
            if wnid not in names:
                raise DataError(f"folder {wnid} is not in {folder / CLASSNAMES}; expected a line '{wnid} name'")
        class_names = tuple(names[wnid] for wnid in wnids)
        return Listing("", class_names, folder, rows, repeated_names=True)


@dataclass(frozen=True)
class VariantFolders:
    """Test images of some of ImageNet's classes; base classes are those in ImageNet's first half."""

    images: tuple[str, ...]  # possible folders of the images
    numbered: bool = False  # folders are named by label, in the order of classnames.txt, instead of by WordNet number

    @property
    def expects(self) -> str:
        first = "0" if self.numbered else "n01440764"
        return f"{CLASSNAMES} (or imagenet/ beside), {self.images[0]}/ with folders such as {first}/"

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = [] if self._images(folder) else [f"{folder / self.images[0]}/: not there. {UNPACK_CLASSES}"]
        beside = "Copy the one of ImageNet, or put imagenet/ beside this folder"
        return problems + ([] if self._classnames(folder) else missing_places(folder, [CLASSNAMES], beside))

    def read(self, folder: Path) -> Listing:
        images, classnames = self._images(folder), self._classnames(folder)
        assert images is not None
        assert classnames is not None
        names = read_classnames(classnames)
        wnids = list(names)
        by_folder = {str(label) if self.numbered else wnid: wnid for label, wnid in enumerate(wnids)}
        folders = [path.name for path in subfolders(images)]
        for name in folders:
            if name not in by_folder:
                raise DataError(
                    f"{images / name}/ is not a class of {classnames}; expected folders such as {next(iter(by_folder))}"
                )
        folders.sort(key=int if self.numbered else None)
        rows = rows_of_folders(folder, images, folders)
        half = set(sorted(wnids)[: -(-len(wnids) // 2)])
        base = tuple(label for label, name in enumerate(folders) if by_folder[name] in half)
        class_names = tuple(names[by_folder[name]] for name in folders)
        return Listing("", class_names, folder, {"test": rows}, base=base, test_only=True, repeated_names=True)

    def _images(self, folder: Path) -> Path | None:
        """The first of the image folders that has class folders."""
        pattern = r"\d+" if self.numbered else r"n\d{8}"
        for where in (folder / name for name in self.images):
            if where.is_dir() and any(re.fullmatch(pattern, path.name) for path in subfolders(where)):
                return where
        return None

    def _classnames(self, folder: Path) -> Path | None:
        places = (where / CLASSNAMES for where in (folder, *(folder.parent / name for name in IMAGENET)))
        return next((place for place in places if place.is_file()), None)


def read_classnames(path: Path) -> dict[str, str]:
    """WordNet number -> class name, in the order of the file, whose lines are such as 'n01440764 tench'."""
    names = {}
    for line in read_lines(path):
        wnid, _, name = line.partition(" ")
        if not name.strip():
            raise DataError(f"{path}: expected lines such as 'n01440764 tench', got {line!r}")
        names[wnid] = name.strip()
    return names


def first_folder(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of some folders that is there."""
    return next((folder / name for name in names if (folder / name).is_dir()), None)
