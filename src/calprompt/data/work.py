"""Work on many images: in threads, in order, in batches, and what is told of it meanwhile."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Progress = Callable[[str, int, int, str], None]  # what is done, how much of it, of how much, and a word on how it goes

T = TypeVar("T")
R = TypeVar("R")


def silent(what: str, done: int, total: int, note: str = "") -> None:
    """Progress that nobody is told of."""


class Meter:
    """Progress of features, some of them found in the store and the others computed."""

    def __init__(self, what: str, total: int, progress: Progress, *, stored: bool) -> None:
        self.what, self.total, self.progress, self.stored = what, total, progress, stored
        self.found = self.computed = self.failed = 0
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning; reading what is in the store takes next to nothing of it."""
        return time.perf_counter() - self.start

    def add(self, *, found: int = 0, computed: int = 0, failed: int = 0) -> None:
        self.found, self.computed, self.failed = self.found + found, self.computed + computed, self.failed + failed
        if found or computed or failed:
            done = self.found + self.computed + self.failed
            self.progress(self.what, done, self.total, self._note(self.total - done))

    def _note(self, left: int) -> str:
        notes = []
        if self.computed:
            rate = self.computed / self.seconds
            notes.append(f"{rate:.0f} images/s" if rate >= 10 else f"{rate:.1f} images/s")
        if self.stored:
            notes.append(f"{self.found} of {self.total} from the store")
        if self.computed and left:
            notes.append(f"{left / rate:.0f} s left")
        return ", ".join(notes)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    threads: int | None = None,
    ahead: int = 4,
    begin: Callable[[], object] | None = None,
) -> Iterator[R]:
    """`map` in a few threads (decoding and resizing leave Python free), a few items ahead, results in order.

    ahead  items a thread that are begun before the first result is taken
    begin  called once in each thread
    """
    threads = threads or min(8, cores())
    with ThreadPoolExecutor(threads, initializer=begin) as pool:
        begun: deque[Future[R]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) > ahead * threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
