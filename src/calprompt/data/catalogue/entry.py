"""One dataset of the catalogue as a record: where its folder is, how it is read, what must come out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.data.catalogue.layouts import Layout
from calprompt.data.listing import Listing
from calprompt.data.templates import Templates
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.progress import Progress

SEE_PAGE = "see the dataset's page"


@dataclass(frozen=True)
class Counts:
    """How many there must be; None where no number is known.

    base  base classes; None: the first half, rounded up, and 0: no cut is made, or it depends on ImageNet's
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
    """A dataset: all that is particular to it.

    public   its name in public prompt-tuning code
    names    further names it is asked for by
    folders  names of its folder; case, "-" and "_" do not matter
    inner    folders inside that folder which may hold it instead
    prepare  makes what can be derived in its folder and says what it made
    prepares what that is, in words
    embedded makes its folder from what the package holds, and says where it is
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
    prepare: Callable[[Entry, Path, Progress], list[str]] | None = None
    prepares: str = ""
    embedded: Callable[[], Path] | None = None

    def locate(self, root: Path) -> Path:
        """The dataset's folder in the folder of all datasets, or that folder itself if it is the dataset's."""
        if not root.is_dir():
            raise DataError(f"there is no folder {root}; expected the one that has the datasets")
        wanted = [plain(name) for name in self.folders]
        found = [path for path in root.iterdir() if path.is_dir() and plain(path.name) in wanted]
        found.sort(key=lambda path: (wanted.index(plain(path.name)), path.name))
        inside = [folder / inner for folder in (*found, root) for inner in ("", *self.inner)]
        complete = [folder for folder in inside if folder.is_dir() and not self.layout.missing(folder, self.key)]
        if complete or found:
            return (complete or found)[0]
        if plain(root.name) in wanted:
            return root
        raise DataError(f"{root} has no folder of {self.title}; expected {' or '.join(self.folders)}")

    def find(self, root: Path | None) -> Path:
        """The dataset's folder: under the folder of all datasets, or made from the package if none is given."""
        if root is not None:
            return self.locate(root)
        if self.embedded is not None:
            return self.embedded()
        raise DataError(f"{self.key} is a dataset of the catalogue; say where datasets are with root (--root DIR)")

    def listing(self, root: Path | None) -> Listing:
        """Class names and images, found under the folder of all datasets."""
        return self.listing_in(self.find(root))

    def listing_in(self, folder: Path) -> Listing:
        """Class names and images of the dataset in this folder; not compared with the published counts."""
        missing = self.layout.missing(folder, self.key)
        if missing:
            raise DataError(f"{self.title} is not complete:\n  " + "\n  ".join(missing))
        listing = self.layout.read(folder)
        name = f"{self.key}-{listing.name}" if listing.name else self.key
        return replace(listing, name=name, template=self.templates.coop, templates=self.templates)


def plain(name: str) -> str:
    """A name without what people write differently.

    >>> plain("Food-101") == plain("food_101") == plain("food101")
    True
    """
    return re.sub(r"[-_ ]", "", name.lower())
