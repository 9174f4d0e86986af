"""A dataset as a record, first as a listing of its images and then with images that can be opened.

All readers of files and folders make a `Listing`, class names and a row for every image of every split; it is plain
data, cheap to make, and becomes a `Dataset` in one call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any

from calprompt.class_names import read_alike
from calprompt.data.images import ImageFiles, Images
from calprompt.errors import DataError
from calprompt.registry import unknown
from calprompt.text import bullets, is_utf8, visible

SPLITS = ("train", "val", "test")
TABLES = ("coop", "kgcoop", "prograd")  # published tables, each with a sentence for every dataset
SPLIT_SEED = 0  # of the splits made here: the same for all runs, so that no seed trains on another's test images

Row = tuple[str, int]  # path relative to the listing's root, and label


@dataclass(frozen=True)
class About:
    """The description of a dataset: its name, its classes, and how they are named and divided into base and novel.

    Attributes:
        name: What it is called.
        class_names: What the model reads for each class, in the order of the labels.
        template: The sentence that suits these images, with {} for the class name; `None`: the usual one.
        templates: The sentence of each of the published tables: coop (also of CoCoOp, MaPLe, PromptSRC and zero-shot
            CLIP; the same as `template`), kgcoop and prograd; `None`: there is no other.
        base: Labels of the base classes, all others being novel; `None`: the first half, rounded up.
        test_only: Made to test what was tuned on another dataset: there are no training images.
        repeated_names: Two classes may share a name, as two pairs of ImageNet's do.
        group_by: A regular expression that finds in an image name the group it belongs to; `None`: no groups.
    """

    name: str
    class_names: tuple[str, ...]
    _: KW_ONLY
    template: str | None = None
    templates: Mapping[str, str] | None = None
    base: tuple[int, ...] | None = None
    test_only: bool = False
    repeated_names: bool = False
    group_by: str | None = None

    @property
    def about(self) -> dict[str, Any]:
        """All of this, by name."""
        return {each.name: getattr(self, each.name) for each in fields(About)}

    def template_of(self, table: str) -> str | None:
        """The sentence in one of the published tables, or the one for all."""
        if self.templates is not None and table not in self.templates:
            raise unknown("table of templates", table, self.templates)
        return self.template if self.templates is None else self.templates[table]


@dataclass(frozen=True)
class Split:
    """Labelled images.

    Attributes:
        images: The images.
        labels: One per image.
    """

    images: Images
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images have {len(self.labels)} labels; expected one each")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Split:
        """These images only, in this order."""
        return Split(self.images.take(indices), tuple(self.labels[i] for i in indices))


@dataclass(frozen=True)
class Dataset(About):
    """Class names, and labelled images to train, validate and test on; checked when it is made.

    Labels are indices into `class_names`. Every class has a training image, and there is something to test on.

    Attributes:
        train: Images to train on.
        val: Images to fit calibrators on; may be empty.
        test: Images to test on.
    """

    train: Split
    val: Split
    test: Split

    def __post_init__(self) -> None:
        names = self.class_names
        for name in (self.name, *names):
            if not is_utf8(name):
                what = "name of the data" if name == self.name else "class name"
                raise DataError(f"the {what} {visible(name)} is not UTF-8; rename it")
        alike = read_alike(names)
        if alike and not self.repeated_names:
            raise DataError(
                f"{self.name}: class names must differ, and the model reads these alike: {', '.join(alike)}. "
                "Rename all but one (a classes file can), or put their images together"
            )
        for kind in SPLITS:
            outside = sorted({label for label in getattr(self, kind).labels if not 0 <= label < len(names)})
            if outside:
                raise DataError(
                    f"{self.name}: {kind} label {outside[0]} is out of range; {len(names)} class names allow "
                    f"0 to {len(names) - 1}"
                )
        trained = set(self.train.labels)
        untrained = [name for label, name in enumerate(names) if label not in trained]
        if untrained and not self.test_only:
            raise DataError(
                f"{self.name}: no training image of {', '.join(untrained[:5])}{', …' if len(untrained) > 5 else ''}; "
                "every class needs at least one"
            )
        if not len(self.test):
            raise DataError(f"{self.name}: there are no test images")

    @property
    def splits(self) -> dict[str, Split]:
        """Train, val and test by name."""
        return {kind: getattr(self, kind) for kind in SPLITS}

    def with_splits(self, change: Callable[[Split], Split]) -> Dataset:
        """The same with another train, val and test, each made of the one there is."""
        train, val, test = map(change, self.splits.values())
        return replace(self, train=train, val=val, test=test)

    def with_files(self, **changes: Any) -> Dataset:
        """The same with other settings of its image files; images in memory stay as they are."""

        def changed(split: Split) -> Split:
            files = isinstance(split.images, ImageFiles)
            return Split(replace(split.images, **changes), split.labels) if files else split  # type: ignore[type-var]

        return self.with_splits(changed)


@dataclass(frozen=True)
class Listing(About):
    """A dataset before any image is opened: a root, and (path, label) of every image by split."""

    root: Path
    rows: Mapping[str, Sequence[Row]]

    def split(self, *kinds: str, upright: bool = False) -> Split:
        """The images of some splits, which can be opened."""
        rows = [row for kind in kinds for row in self.rows.get(kind, ())]
        images = ImageFiles(self.root, tuple(path for path, _ in rows), upright=upright)
        return Split(images, tuple(label for _, label in rows))

    def dataset(self) -> Dataset:
        """The same with images that can be opened; raises if the dataset is not complete."""
        strange = [path for kind in SPLITS for path, _ in self.rows.get(kind, ()) if not is_utf8(path)]
        if strange:
            raise DataError(f"the names of images must be UTF-8; rename{bullets([visible(path) for path in strange])}")
        train, val, test = map(self.split, SPLITS)
        test_only = self.test_only or not (len(train) or len(val))
        return Dataset(**{**self.about, "test_only": test_only}, train=train, val=val, test=test)


def split_counts(n: int) -> tuple[int, int, int]:
    """How many of n images of a class train, validate and test: about 50, 20 and 30 %, at least one to test.

    >>> [split_counts(n) for n in (2, 3, 5, 10, 100)]
    [(1, 0, 1), (1, 1, 1), (2, 1, 2), (5, 2, 3), (50, 20, 30)]
    """
    val, test = round(n / 5), max(1, round(3 * n / 10))
    return n - val - test, val, test


def split_class(name: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """The images of a class by split, drawn independently of other classes."""
    shuffled = sorted(paths)
    random.Random(f"{SPLIT_SEED}/{name}").shuffle(shuffled)
    train, val, _ = split_counts(len(shuffled))
    cuts = (shuffled[:train], shuffled[train : train + val], shuffled[train + val :])
    return {kind: sorted(part) for kind, part in zip(SPLITS, cuts, strict=True)}


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file, without blanks around them and without empty ones."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]
