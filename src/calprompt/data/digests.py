"""Digests of images: what the identity of a run is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from calprompt.data.dataset import Split
from calprompt.data.unreadable import UnreadableImages, find_unreadable
from calprompt.errors import ImageError
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import Progress, silent

AT_ONCE = 64  # images that are read before progress is reported
QUICK = 200e-6  # seconds for an image that is read so soon that threads would only get in each other's way
Rows = dict[str, list[list[str | int]]]


def image_digests(splits: Mapping[str, Split], progress: Progress = silent) -> Rows:
    """Name, label and digest of every image of some splits; each file is read once, and its beginning is looked at.

    Args:
        splits: By name.
        progress: Shows how far it is.

    Raises:
        DataError: if images cannot be read. Then all of them are decoded, so that the report is complete.
    """
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
    batches = list(batched(places, AT_ONCE))
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
    slow = (time.perf_counter() - start) / len(batches[0]) > QUICK
    yield from map_in_threads(work, batches[1:]) if slow else map(work, batches[1:])
