"""ImageNet and test sets of its classes: folders named by WordNet number, names in classnames.txt.

    imagenet/images/train/n01440764/…  images/val/n01440764/…  classnames.txt      lines such as "n01440764 tench"
    imagenet-adversarial/imagenet-a/n01498041/…                                    200 of the classes
    imagenetv2/imagenetv2-matched-frequency-format-val/0/…                         labels, as classnames.txt orders them

Images are sorted by name; public code takes them in the order of the file system, so the shots it draws from ImageNet
differ between machines. Base classes of a variant are those of ImageNet's first half.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calprompt.data.folders import class_rows, subfolders
from calprompt.data.listing import SPLITS, Listing, Row, read_lines
from calprompt.errors import DataError

CLASSNAMES = "classnames.txt"
IMAGENET = ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012")  # folders in which a variant looks for the names


@dataclass(frozen=True)
class ImageNetFolders:
    """Train and val with one folder per class, named by WordNet number, in whose order labels are; val is tested on.

    Attributes:
        train: Possible folders of the training images.
        test: Possible folders of the validation images.
    """

    train: tuple[str, ...] = ("images/train", "train", "ILSVRC/Data/CLS-LOC/train")
    test: tuple[str, ...] = ("images/val", "val", "ILSVRC/Data/CLS-LOC/val")

    @property
    def expects(self) -> str:
        return f"{CLASSNAMES}, {self.train[0]}/ and {self.test[0]}/ with folders such as n01440764/"

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = []
        for names in (self.train, self.test):
            inside = _first(folder, names)
            if inside is None:
                problems.append(f"{folder / names[0]}/: not there. Unpack the images there, one folder per class")
            elif not subfolders(inside):
                problems.append(
                    f"{inside}/: has no folders. Sort its images into one folder per class, named as in train/"
                )
        if not (folder / CLASSNAMES).is_file():
            problems.append(
                f"{folder / CLASSNAMES}: not there. CoOp's page on datasets links to it; 'calprompt data prepare "
                f"{key}' makes it from CLIP's names"
            )
        return problems

    def read(self, folder: Path) -> Listing:
        names = read_classnames(folder / CLASSNAMES)
        train, test = (_first(folder, names) for names in (self.train, self.test))
        assert train is not None
        assert test is not None
        wnids, test_wnids = ([path.name for path in subfolders(where)] for where in (train, test))
        if wnids != test_wnids:
            odd = sorted(set(wnids) ^ set(test_wnids))[0]
            raise DataError(f"{odd} is only in one of {train}/ and {test}/; both need the same folders")
        rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
        for label, wnid in enumerate(wnids):
            rows["train"] += class_rows(folder, train / wnid, label)
            rows["test"] += class_rows(folder, test / wnid, label)
        class_names = tuple(_class_name(names, wnid, folder) for wnid in wnids)
        return Listing("", folder, class_names, rows, repeated_names=True)


@dataclass(frozen=True)
class VariantFolders:
    """Test images of some of ImageNet's classes; base classes are those in ImageNet's first half.

    Attributes:
        images: Possible folders of the images.
        numbered: Folders are named by label, in the order of classnames.txt, instead of by WordNet number.
    """

    images: tuple[str, ...]
    numbered: bool = False

    @property
    def expects(self) -> str:
        first = "0" if self.numbered else "n01440764"
        return f"{CLASSNAMES} (or imagenet/ beside), {self.images[0]}/ with folders such as {first}/"

    def missing(self, folder: Path, key: str) -> list[str]:
        problems = []
        if self._images(folder) is None:
            problems.append(f"{folder / self.images[0]}/: not there. Unpack the images there, one folder per class")
        if self._classnames(folder) is None:
            problems.append(
                f"{folder / CLASSNAMES}: not there. Copy the one of ImageNet, or put imagenet/ beside this folder"
            )
        return problems

    def read(self, folder: Path) -> Listing:
        images, classnames = self._images(folder), self._classnames(folder)
        assert images is not None
        assert classnames is not None
        names = read_classnames(classnames)
        wnids = list(names)
        by_folder = (
            {str(label): wnid for label, wnid in enumerate(wnids)} if self.numbered else {wnid: wnid for wnid in wnids}
        )
        folders = [path.name for path in subfolders(images)]
        for name in folders:
            if name not in by_folder:
                raise DataError(
                    f"{images / name}/ is no class of {classnames}; expected folders such as {next(iter(by_folder))}"
                )
        folders.sort(key=int if self.numbered else None)
        rows = [row for label, name in enumerate(folders) for row in class_rows(folder, images / name, label)]
        half = set(sorted(wnids)[: -(-len(wnids) // 2)])
        base = tuple(label for label, name in enumerate(folders) if by_folder[name] in half)
        class_names = tuple(names[by_folder[name]] for name in folders)
        return Listing("", folder, class_names, {"test": rows}, base=base, test_only=True, repeated_names=True)

    def _images(self, folder: Path) -> Path | None:
        """The first of the image folders that has class folders."""
        pattern = r"\d+" if self.numbered else r"n\d{8}"
        for where in (folder / name for name in self.images):
            if where.is_dir() and any(re.fullmatch(pattern, path.name) for path in subfolders(where)):
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
    """WordNet number -> class name, in the order of the file, whose lines are such as 'n01440764 tench'."""
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
