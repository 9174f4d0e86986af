"""Reading every image ahead of a run: digests, which its identity is made of, and the images that cannot be read."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calprompt.data.dataset import Dataset, Split
from calprompt.data.images import Decodable, GivenImages, ImageFiles, Images
from calprompt.errors import DataError, ImageError, Parameter
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import Progress, silent
from calprompt.text import bullets

MOST_LISTED = 100


@dataclass
class UnreadableImages:
    """Collects images that could not be read, so that all of them are reported together."""

    reasons: dict[str, str] = field(default_factory=dict)  # from an image's name to what is wrong with it

    def add(self, error: ImageError) -> None:
        """Note one image."""
        self.reasons[error.name or "image"] = error.reason

    def report(self) -> None:
        """Raise if there were any."""
        if self.reasons:
            raise unreadable_error(self.reasons)


def unreadable_error(reasons: Mapping[str, str]) -> DataError:
    """The report on images that cannot be read."""
    count = "one image" if len(reasons) == 1 else f"{len(reasons)} images"
    lines = [f"{name} ({reason})" for name, reason in sorted(reasons.items())]
    lost = all(reason == os.strerror(errno.ENOENT) for reason in reasons.values())
    elsewhere = (", or say where they are with ", Parameter("root", "DIR")) if lost else ()
    leave_out = (f"{count} cannot be read; replace or remove, or leave out with ", Parameter("skip_bad", True))
    return DataError(*leave_out, *elsewhere, f":{bullets(lines, MOST_LISTED)}")


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
QUICK_SECONDS = 200e-6  # seconds for an image that is read so soon that threads would only get in each other's way
Rows = dict[str, list[list[str | int]]]


def image_digests(splits: Mapping[str, Split], progress: Progress = silent) -> Rows:
    """Name, label and digest of every image of some splits; each file is read once, and its beginning is looked at."""
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
    """Images whose bytes stand under more than one class, a line for each, with their names and classes."""
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
    """`map`, in threads if the first batch shows that reading takes its time."""
    if not batches:
        return
    start = time.perf_counter()
    yield work(batches[0])
    slow = (time.perf_counter() - start) / len(batches[0]) > QUICK_SECONDS
    yield from map_in_threads(work, batches[1:]) if slow else map(work, batches[1:])
