"""Work on many items in threads, with results in order, and lists cut into batches."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_threads(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    threads: int | None = None,
    ahead: int = 4,
    initializer: Callable[[], object] | None = None,
) -> Iterator[R]:
    """`map` in a few threads (decoding and resizing release Python's lock), with results in order."""
    threads = threads or min(8, available_cores())
    with ThreadPoolExecutor(threads, initializer=initializer) as pool:
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
