"""One dataset of the catalogue as a record: where its folder is, how it is read, and how many images it must have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.data.catalogue.layouts import Layout
from calprompt.data.listing import Listing, Templates
from calprompt.errors import DataError
from calprompt.text import bullets

if TYPE_CHECKING:
    from calprompt.progress import Progress

SEE_PAGE = "see the dataset's page"


@dataclass(frozen=True)
class Counts:
    """Expected numbers of classes and images; None where a number is not known.

    Attributes:
        classes: Classes.
        train: Training images.
        val: Validation images.
        test: Test images.
        base_test: Test images of base classes.
        novel_test: Test images of novel classes.
        base: Base classes; the first half, rounded up, unless given. 0 if there are no base and novel classes, or they
            depend on ImageNet's.
    """

    classes: int
    train: int | None = None
    val: int | None = None
    test: int | None = None
    base_test: int | None = None
    novel_test: int | None = None
    base: int | None = None

    @property
    def cut(self) -> tuple[int, int] | None:
        """How many classes are base and novel, if that is fixed."""
        base = -(-self.classes // 2) if self.base is None else self.base
        return (base, self.classes - base) if base else None


@dataclass(frozen=True)
class Entry:
    """A dataset of the catalogue.

    Attributes:
        key: Its name in commands and results.
        title: Its full name.
        public: Its name in public prompt-tuning code.
        folders: Possible names of its folder; case, "-" and "_" do not matter.
        layout: Reads the folder.
        templates: Published sentences for its classes.
        counts: Expected numbers of classes and images.
        source: Where to get it.
        licence: Of its images.
        names: Further names of it.
        inner: Folders inside its folder which may contain it instead.
        group_by: A regular expression that finds in the name of an image what it is of, such as a slide.
        sources: Folders that `prepare` starts from, by which the dataset is found before anything is prepared.
        prepare: Makes files that can be derived in its folder; returns lines about what it made.
        prepares: What `prepare` makes, in words.
        embedded: Makes its folder from files of the package; returns where it is.
    """

    key: str
    title: str
    public: str
    folders: tuple[str, ...]
    layout: Layout
    templates: Templates
    counts: Counts
    source: str
    licence: str = SEE_PAGE
    names: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    group_by: str | None = None
    sources: tuple[str, ...] = ()
    prepare: Callable[[Entry, Path, Progress], list[str]] | None = None
    prepares: str = ""
    embedded: Callable[[], Path] | None = None

    def locate(self, root: Path) -> Path:
        """The dataset's folder."""
        if not root.is_dir():
            raise DataError(f"there is no folder {root}; expected the one that has the datasets")
        names = [plain(name) for name in self.folders]
        folders = [path for path in root.iterdir() if path.is_dir() and plain(path.name) in names]
        folders.sort(key=lambda path: (names.index(plain(path.name)), path.name))
        candidates = [folder / inner for folder in (*folders, root) for inner in ("", *self.inner)]
        complete = [folder for folder in candidates if folder.is_dir() and not self.layout.missing(folder, self.key)]
        raw = [folder for folder in candidates if any((folder / name).is_dir() for name in self.sources)]
        if complete or raw or folders:
            return (complete or raw or folders)[0]
        if plain(root.name) in (*names, *map(plain, self.inner)):
            return root
        inside = f", with {' or '.join(f'{name}/' for name in self.sources)} in it" if self.sources else ""
        raise DataError(f"{root} has no folder of {self.title}; expected {' or '.join(self.folders)}{inside}")

    def find(self, root: Path | None) -> Path:
        """The dataset's folder: in the folder of all datasets, or made from the package if `root` is None."""
        if root is not None:
            return self.locate(root)
        if self.embedded is not None:
            return self.embedded()
        raise DataError(f"{self.key} is a dataset of the catalogue; say where datasets are with root (--root DIR)")

    def listing(self, root: Path | None) -> Listing:
        """Class names and images of the dataset in the folder of all datasets."""
        return self.listing_in(self.find(root))

    def listing_in(self, folder: Path) -> Listing:
        """Class names and images of the dataset in this folder, without a check of the expected counts."""
        missing = self.layout.missing(folder, self.key)
        if missing:
            raise DataError(f"{self.title} is not complete:{bullets(missing)}")
        listing = self.layout.read(folder)
        name = f"{self.key}-{listing.name}" if listing.name else self.key
        return replace(
            listing, name=name, template=self.templates.coop, templates=self.templates, group_by=self.group_by
        )


def plain(name: str) -> str:
    """A name in lower case without hyphens, underscores and blanks, which people write differently.

    >>> plain("Food-101") == plain("food_101") == plain("food101")
    True
    """
    return re.sub(r"[-_ ]", "", name.lower())
