"""Images that wait for the model, taken through it together.

    accepted ── wait ──┐
    accepted ── wait ──┼── as many as are there when the model is free, up to `batch` ── model ── a row for each
    accepted ── wait ──┘

Nobody waits for a batch to fill: while the model works on one batch, the next one gathers. How many images and bytes
may be under way is bounded by `Admission`, so that a flood is turned away at the door instead of filling the memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from calprompt.errors import CalpromptError

R = TypeVar("R")
RECENT = 0.2  # weight of the newest batch in the running rate


class OverloadedError(CalpromptError):
    """There is no room for a request.

    Attributes:
        retry_after: Seconds after which there may be.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Admission:
    """How many images and bytes are under way.

    Args:
        images: That may be under way at a time.
        size: Bytes of requests that may be under way at a time.
        rate: Images per second that are answered at the moment, to say when to come back.
    """

    def __init__(self, images: int, size: int, rate: Callable[[], float]) -> None:
        self.most_images, self.most_bytes, self.rate = images, size, rate
        self.images = self.bytes = 0

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """A place for a request, given back at the end."""
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            self.images -= ticket.images
            self.bytes -= ticket.bytes


@dataclass
class Ticket:
    """What one request takes up.

    Attributes:
        admission: Where it counts.
        images: So many so far.
        bytes: So many so far.
    """

    admission: Admission
    images: int = 0
    bytes: int = 0

    def take(self, *, images: int = 0, size: int = 0) -> None:
        """Take up more room."""
        room = self.admission
        if room.images + images > room.most_images:
            waiting = math.ceil(room.images / max(room.rate(), 0.1))
            raise OverloadedError(
                f"{room.images} images are waiting already, and {room.most_images} may; send it again later",
                min(60, max(1, waiting)),
            )
        if room.bytes + size > room.most_bytes:
            raise OverloadedError("the requests under way fill the memory set aside for them; send it again later", 1)
        room.images += images
        room.bytes += size
        self.images += images
        self.bytes += size


@dataclass
class _Waiting(Generic[R]):
    key: Hashable
    item: object
    future: asyncio.Future[R] = field(repr=False)


class Batcher(Generic[R]):
    """Gathers items into batches and works on them in a thread of its own.

    Args:
        work: Called with a key and the items of a batch, which all have that key; returns a result for each item.
        size: Of a batch at most.
        on_batch: Told the size of each batch and the seconds it took.
    """

    def __init__(
        self,
        work: Callable[[Hashable, Sequence[object]], Sequence[R]],
        size: int,
        *,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.work, self.size, self.on_batch = work, size, on_batch
        self.rate = 0.0
        self._waiting: deque[_Waiting[R]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    async def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())

    async def submit(self, key: Hashable, item: object) -> R:
        """The result for an item; whatever `work` raises is raised for every item of its batch."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(key, item, future))
        self._wake.set()
        return await future

    async def in_thread(self, call: Callable[[], R]) -> R:
        """Call something in the thread of the model, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Stop; whatever waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for each in self._waiting:
            each.future.cancel()
        self._waiting.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = self._next()
            if not batch:
                self._wake.clear()
                await self._wake.wait()
                continue
            start = time.perf_counter()
            try:
                results = await loop.run_in_executor(
                    self._thread, self.work, batch[0].key, [each.item for each in batch]
                )
            except asyncio.CancelledError:
                for each in batch:
                    each.future.cancel()
                raise
            except Exception as error:
                for each in batch:
                    if not each.future.done():
                        each.future.set_exception(error)
                continue
            seconds = time.perf_counter() - start
            self.rate += RECENT * (len(batch) / max(seconds, 1e-6) - self.rate)
            self.on_batch(len(batch), seconds)
            for each, result in zip(batch, results, strict=True):
                if not each.future.done():  # whoever waited may have given up
                    each.future.set_result(result)

    def _next(self) -> list[_Waiting[R]]:
        """The oldest item and those of its key that wait, up to `size`; items that nobody waits for are dropped."""
        taken: list[_Waiting[R]] = []
        left: deque[_Waiting[R]] = deque()
        while self._waiting and len(taken) < self.size:
            each = self._waiting.popleft()
            if each.future.done():
                continue
            if not taken or each.key == taken[0].key:
                taken.append(each)
            else:
                left.append(each)
        self._waiting.extendleft(reversed(left))
        return taken
