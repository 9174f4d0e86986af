"""From images to features: what the store has is read, the rest is computed and kept there.

    for a few images at a time     digests -> store -> found: copied
                                                    -> missing: a batch of views -> decoded and encoded -> store

Each process takes the images in an order of its own and looks into the store right before it begins with some, so that
several at work on the same images share the work, and none computes what another has finished.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from calprompt.clip import Backbone
from calprompt.data.images import Images, UnreadableImageError
from calprompt.data.store import Space
from calprompt.data.store.shards import key
from calprompt.data.tower import Levels, batch_size, encode, load_views, normalised
from calprompt.data.work import Meter, batched, in_order
from calprompt.errors import CalpromptError

AT_ONCE = 64  # views that are looked up together
WORKERS = 16  # at most

Row = tuple[int, int]  # the index of an image and the number of a view
Job = tuple[int, str, int]  # an image, its digest if something is kept, a view


@dataclass
class Unreadable:
    """Images that could not be read, collected so that all are reported together."""

    found: set[str] = field(default_factory=set)

    def report(self) -> None:
        """Raise if there were any."""
        if self.found:
            names = sorted(self.found)
            more = f"\n  … and {len(names) - 20} more" if len(names) > 20 else ""
            count = "one image" if len(names) == 1 else f"{len(names)} images"
            raise CalpromptError(
                f"{count} cannot be read; replace or remove, or go on without with --skip-bad:\n  "
                + "\n  ".join(names[:20])
                + more
            )


@dataclass(eq=False)
class Batch:
    """Views for one call of the tower, on their way through it."""

    rows: list[Row]  # those that could be read
    keys: list[bytes]  # of the same, empty where nothing is kept
    values: Tensor  # pixels, then features
    failed: int  # views that could not be read


class Extraction:
    """Fills `features` [V, n, D] with those of some views of all images."""

    def __init__(
        self, backbone: Backbone, images: Images, views: range, space: Space | None, unreadable: Unreadable
    ) -> None:
        self.backbone, self.images, self.views, self.space, self.unreadable = backbone, images, views, space, unreadable
        self.features = torch.zeros(len(views), len(images), backbone.embed_dim, dtype=backbone.prompt_dtype)
        self.on_cpu = backbone.device.type == "cpu"
        self.levels = Levels.from_dict(backbone.preprocessing.to_dict())

    def run(self, meter: Meter) -> Tensor:
        """All features; on a CPU in as many threads as torch has, a batch each, decoded and encoded by the same one."""
        threads = torch.get_num_threads()
        workers = {"threads": min(threads, WORKERS), "ahead": 2, "begin": _one_thread} if self.on_cpu else {"ahead": 1}
        batches = batched(self._missing(meter), batch_size(self.backbone))
        try:
            for batch in in_order(self._load, batches, **workers):
                if not self.on_cpu and batch.rows:
                    batch.values = encode(self.backbone, batch.values)
                self._put(batch.rows, batch.values)
                if self.space is not None:
                    self.space.add(batch.keys, batch.values)
                meter.add(computed=len(batch.rows), failed=batch.failed)
        finally:
            if self.on_cpu:
                torch.set_num_threads(threads)  # for threads that begin from now on; this one's are as they were
            if self.space is not None:
                self.space.flush()
                self.space.note_use(meter.found, meter.computed, meter.seconds if meter.computed else 0.0)
        return self.features

    def _missing(self, meter: Meter) -> Iterator[Job]:
        """Views to compute; those in the store are put in place."""
        everything = range(len(self.images))
        if self.space is None:
            yield from ((index, "", view) for index in everything for view in self.views)
            return
        groups = list(batched(everything, max(1, AT_ONCE // len(self.views))))
        random.Random().shuffle(groups)
        for group in groups:
            wanted = self._wanted(group)
            found, values = self.space.find([key(digest, view) for _, digest, view in wanted])
            self._put([(wanted[place][0], wanted[place][2]) for place in found], values)
            meter.add(found=len(found), failed=len(group) * len(self.views) - len(wanted))
            here = set(found)
            yield from (job for place, job in enumerate(wanted) if place not in here)

    def _wanted(self, group: list[int]) -> list[Job]:
        """All views of some images, without those of files that are not there."""
        wanted: list[Job] = []
        for index in group:
            try:
                digest = self.images.digest(index)
            except UnreadableImageError as error:
                self.unreadable.found.add(str(error))
            else:
                wanted += [(index, digest, view) for view in self.views]
        return wanted

    def _load(self, jobs: list[Job]) -> Batch:
        """Pixels of a batch, or on a CPU its features already."""
        read: list[Row] = []
        keys: list[bytes] = []
        pixels: list[Tensor] = []
        for (index, digest), group in itertools.groupby(jobs, key=lambda job: job[:2]):
            views = [view for _, _, view in group]
            try:
                if self.space is None and views == [0]:
                    loaded = self.images.pixels(index, self.levels)
                else:
                    digest, loaded = load_views(self.images, index, self.levels, views, digest)
            except UnreadableImageError as error:
                self.unreadable.found.add(str(error))
                continue
            read += [(index, view) for view in views]
            pixels.append(loaded)
            if self.space is not None:
                keys += [key(digest, view) for view in views]
        values = normalised(torch.cat(pixels), self.backbone.preprocessing) if pixels else torch.empty(0)
        if pixels and self.on_cpu:
            values = encode(self.backbone, values)
        return Batch(read, keys, values, len(jobs) - len(read))

    def _put(self, rows: list[Row], values: Tensor) -> None:
        if rows:
            indices, views = torch.tensor(rows).T
            self.features[views - self.views[0], indices] = values


def _one_thread() -> None:
    torch.set_num_threads(1)
