"""Checks of data before use: digests of all images, images that cannot be read, files that were left out, and
how much there is of everything.
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from calprompt.data.dataset import Dataset, Split
from calprompt.data.decoding import SUFFIXES, count_left_out
from calprompt.data.images import Decodable, GivenImages, ImageFiles, Images
from calprompt.data.load import is_class_folders
from calprompt.errors import CalpromptError, DataError, ImageError, Parameter
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import Progress, silent
from calprompt.text import bullets, shorten

if TYPE_CHECKING:
    from calprompt.data.labelled import LabelledImages


MOST_LISTED = 100


@dataclass
class UnreadableImages:
    """Collects images that could not be read, so that all of them are reported together."""

    reasons: dict[str, str] = field(default_factory=dict)  # from an image's name to what is wrong with it

    def add(self, error: ImageError) -> None:
        self.reasons[error.name or "image"] = error.reason

    def report(self) -> None:
        """Raise if there were any."""
        if self.reasons:
            raise unreadable_error(self.reasons)


def unreadable_error(reasons: Mapping[str, str]) -> DataError:
    count = "one image" if len(reasons) == 1 else f"{len(reasons)} images"
    lost = all(reason == os.strerror(errno.ENOENT) for reason in reasons.values())
    elsewhere = (", or say where they are with ", Parameter("root", "DIR")) if lost else ()
    leave_out = (f"{count} cannot be read; replace or remove, or leave out with ", Parameter("skip_bad", True))
    return DataError(*leave_out, *elsewhere, f":{bullets(dict(sorted(reasons.items())), MOST_LISTED)}")


def find_unreadable(
    splits: Iterable[Split], *, known_good: set[str] | None = None, progress: Progress = silent
) -> dict[str, str]:
    """Image files that cannot be decoded, by name, and what is wrong with each; `known_good` are passed over."""
    known_good = set() if known_good is None else known_good
    places: dict[str, tuple[Images, int]] = {
        name: (split.images, index)
        for split in splits
        if isinstance(split.images, ImageFiles | GivenImages)
        for index in range(len(split.images))
        if (name := split.images.name(index)) not in known_good
    }

    def reason(place: tuple[Images, int]) -> str | None:
        images, index = place
        try:
            picture = images.read(index)
            assert isinstance(picture, Decodable)
            picture.decode()
        except ImageError as error:
            return error.reason
        return None

    found: dict[str, str] = {}
    reasons = map_in_threads(reason, places.values())
    for done, (name, wrong) in enumerate(zip(places, reasons, strict=True), start=1):
        if wrong is not None:
            found[name] = wrong
        progress("decoding images", done, len(places), "")
    known_good |= places.keys() - found.keys()
    return found


def drop_images(dataset: Dataset, reasons: Mapping[str, str]) -> Dataset:
    """The dataset without some images."""

    def kept(split: Split) -> Split:
        return split.take([index for index in range(len(split)) if split.images.name(index) not in reasons])

    try:
        return dataset.with_splits(kept)
    except DataError as error:
        raise DataError(f"without {len(reasons)} images that cannot be read, {error}") from unreadable_error(reasons)


IMAGES_PER_REPORT = 64  # images that are read before progress is reported
QUICK_SECONDS = 200e-6  # seconds per image below which threads do not pay
Rows = dict[str, list[list[str | int]]]


def image_digests(splits: Mapping[str, Split], progress: Progress = silent) -> Rows:
    """Name, label and digest of every image of some splits; each file is read once, and its first bytes are checked."""
    unreadable = UnreadableImages()

    def digest(place: tuple[Split, int]) -> str:
        split, index = place
        try:
            return split.images.digest(index)
        except ImageError as error:
            unreadable.add(error)
            return ""

    places = [(name, split, index) for name, split in splits.items() for index in range(len(split))]
    rows: Rows = {name: [] for name in splits}
    batches = list(batched(places, IMAGES_PER_REPORT))
    work = _map(lambda batch: [digest((split, index)) for _, split, index in batch], batches)
    done = 0
    for batch, digests in zip(batches, work, strict=True):
        for (name, split, index), found in zip(batch, digests, strict=True):
            rows[name].append([split.images.name(index), split.labels[index], found])
        done += len(batch)
        progress("reading images", done, len(places), "")
    if unreadable.reasons:
        unreadable.reasons |= find_unreadable(splits.values(), progress=progress)
        unreadable.report()
    return rows


def two_labels(rows: Rows, class_names: Sequence[str]) -> list[str]:
    """Images that appear under more than one class, a line for each, with their names and classes."""
    places: dict[str, dict[int, str]] = {}
    for split in rows.values():
        for name, label, digest in split:
            places.setdefault(str(digest), {}).setdefault(int(label), str(name))
    return [
        " = ".join(f"{name} ({class_names[label]})" for label, name in found.items())
        for found in places.values()
        if len(found) > 1
    ]


def _map(work: Callable[[list[Any]], list[str]], batches: list[list[Any]]) -> Iterator[list[str]]:
    """`map`, in threads if the first batch shows that reading is slow."""
    if not batches:
        return
    start = time.perf_counter()
    yield work(batches[0])
    slow = (time.perf_counter() - start) / len(batches[0]) > QUICK_SECONDS
    yield from map_in_threads(work, batches[1:]) if slow else map(work, batches[1:])


PROTOCOL_SHOTS = 16  # of the published protocol
NESTED, LOOSE, OTHER = "a folder inside a class folder", "not in a class folder", "not an image by its suffix"


def overview(dataset: Dataset, path: Path) -> tuple[list[str], list[str]]:
    """Facts about a dataset and notes, a line each; `path` is where it was loaded from."""
    facts = [f"classes: {len(dataset.class_names)}, {shorten(dataset.class_names)}", f"base and novel: {_cut(dataset)}"]
    facts += [f"{kind} images: {len(split):,}" for kind, split in dataset.splits.items()]
    if dataset.template is not None:
        facts.append(f"template: {dataset.template}")
    notes = []
    trained = Counter(dataset.train.labels)
    small = [name for label, name in enumerate(dataset.class_names) if trained[label] < PROTOCOL_SHOTS]
    if small and not dataset.test_only:
        notes.append(f"fewer than {PROTOCOL_SHOTS} training images, so that all of them are shots: {shorten(small)}")
    return facts, [*notes, *_sentences(left_out(dataset, path))]


def warn_left_out(dataset: Dataset | LabelledImages, path: Path) -> None:
    """Warn of files in a folder of class folders that are not used."""
    if is_class_folders(path):
        for line in _sentences(left_out(dataset, path)):
            warnings.warn(f"{path}: {line}", stacklevel=2)


def _sentences(left: Mapping[str, Sequence[str]]) -> list[str]:
    """How many were left out for each reason, and which."""
    return [
        f"left out, {count_left_out(names)}: {shorten(names)}" if why == OTHER else f"left out, {why}: {shorten(names)}"
        for why, names in left.items()
    ]


def left_out(dataset: Dataset | LabelledImages, path: Path) -> dict[str, list[str]]:
    """Visible files of a folder dataset that are not used, by reason."""
    images = dataset.train.images
    if not path.is_dir() or not isinstance(images, ImageFiles):
        return {}
    listed = {place for split in dataset.splits.values() for place in split.images.paths}  # type: ignore[attr-defined]
    classes = {PurePosixPath(folder) for folder in {place.rpartition("/")[0] for place in listed}}
    above = {parent for folder in classes for parent in folder.parents}
    inside = classes | above
    found: dict[str, list[str]] = {}
    for folder in sorted(classes):
        for entry in _visible(images.root / folder):
            if _is_folder(entry):
                place = folder / entry.name
                if place not in inside and str(place) not in listed:  # one called a.jpg is listed, and cannot be read
                    found.setdefault(NESTED, []).append(str(place))
            elif not entry.name.lower().endswith(SUFFIXES):
                found.setdefault(OTHER, []).append(str(folder / entry.name))
    for folder in sorted(above - classes):
        loose = [entry.name for entry in _visible(images.root / folder) if entry.name.lower().endswith(SUFFIXES)]
        if loose:
            found.setdefault(LOOSE, []).extend(str(folder / name) for name in loose)
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Visible entries of a folder, sorted by name; none if it does not exist."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        yield from sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _cut(dataset: Dataset) -> str:
    from calprompt.data.splits import base_novel

    try:
        base, novel = base_novel(dataset)
    except CalpromptError as error:
        return f"not possible, {error.spelled({})}"
    how = "the first half of the labels" if dataset.base is None else "by list"
    tested = f"{len(base.test):,} and {len(novel.test):,} test images"
    return f"{len(base.class_names)} and {len(novel.class_names)} classes ({how}), {tested}"
