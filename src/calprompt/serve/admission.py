"""Who gets how much of the server: images and bytes under way, shared between clients.

A client is a key, or an address if there are no keys. Nobody holds more than three quarters of anything, so that there
is room for somebody else; what waits is taken from each client in turn. Room is taken for what has arrived, not for
what is announced, and where it becomes scarce, the slowest sender loses its place.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from calprompt.serve.problems import ProblemError

T = TypeVar("T")
LARGEST_SHARE = 0.75  # of images or bytes under way that one client may have
MUCH_MEMORY = 32 * 2**20  # bytes of requests, after which freed memory is given back to the system
RELEASED_AFTER = (0.5, 5.0)  # seconds, when what held a request, such as an error on its way, is gone
SENDER_GRACE = 1.0  # seconds before a sender is compared with others


class Admission:
    """How many images and bytes of requests are under way, and may be; `rate`: images answered a second, now."""

    def __init__(self, images: int, size: int, rate: Callable[[], float]) -> None:
        self.most_images, self.most_bytes, self.rate = images, size, rate
        self.images = self.bytes = 0
        self._tickets: dict[str, set[Ticket]] = {}
        self._peak = 0

    @contextmanager
    def ticket(self, client: str = "") -> Iterator[Ticket]:
        """A place for a request of a client, given back at the end."""
        ticket = Ticket(self, client)
        self._tickets.setdefault(client, set()).add(ticket)
        try:
            yield ticket
        finally:
            ticket.release()
            self._tickets[client].discard(ticket)
            if not self._tickets[client]:
                del self._tickets[client]
            if not self._tickets and self._peak > MUCH_MEMORY:
                self._peak = 0
                with suppress(RuntimeError):  # there is no loop
                    for seconds in RELEASED_AFTER:
                        asyncio.get_running_loop().call_later(seconds, release_memory)

    def share(self, most: int) -> int:
        """How much of something a single client may have."""
        return max(1, math.ceil(most * LARGEST_SHARE))

    def taken_by(self, client: str) -> tuple[int, int]:
        """Images and bytes of a client."""
        tickets = self._tickets.get(client, ())
        return sum(each.images for each in tickets), sum(each.bytes for each in tickets)

    def drop_slowest(self, size: int, asking: Ticket) -> None:
        """Drop requests that arrive more slowly than the one that asks, until there is room."""
        senders = [each for tickets in self._tickets.values() for each in tickets if each.on_drop is not None]
        own = asking.speed
        for each in sorted(senders, key=lambda sender: sender.speed):
            if self.bytes + size <= self.most_bytes or each.speed >= own:
                return
            if each is not asking and each.age > SENDER_GRACE:
                each.drop()


class Ticket:
    """What one request takes up."""

    def __init__(self, admission: Admission, client: str) -> None:
        self.admission, self.client = admission, client
        self.images = self.bytes = 0
        self.on_drop: Callable[[], None] | None = None  # called if it is dropped while it arrives; None: it is complete
        self._start = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._start

    @property
    def speed(self) -> float:
        """Bytes per second that arrived; a new sender is not judged yet."""
        return math.inf if self.age < SENDER_GRACE else self.bytes / self.age

    def take(self, *, images: int = 0, size: int = 0) -> None:
        room = self.admission
        held_images, held_bytes = room.taken_by(self.client)
        if room.images + images > room.most_images or held_images + images > room.share(room.most_images):
            waiting = math.ceil(room.images / max(room.rate(), 0.1))
            raise ProblemError(
                429,
                f"the queue is full ({room.images} of {room.most_images} images, {held_images} of them yours; "
                f"{room.share(room.most_images)} may be); send it again later",
                Retry_After=str(min(60, max(1, waiting))),
            )
        if room.bytes + size > room.most_bytes:
            room.drop_slowest(size, self)
        if room.bytes + size > room.most_bytes or held_bytes + size > room.share(room.most_bytes):
            raise ProblemError(
                429, "the requests under way fill the memory set aside for them; send it again later", Retry_After="1"
            )
        room.images += images
        room.bytes += size
        room._peak = max(room._peak, room.bytes)
        self.images += images
        self.bytes += size

    def drop(self) -> None:
        """Give its place to another request."""
        self.release()
        if self.on_drop is not None:
            self.on_drop()
            self.on_drop = None

    def release(self) -> None:
        self.admission.images -= self.images
        self.admission.bytes -= self.bytes
        self.images = self.bytes = 0


class FairQueue(Generic[T]):
    """Items that wait, taken from each client in turn.

    >>> queue = FairQueue()
    >>> for client, item in [("a", 1), ("a", 2), ("a", 3), ("b", 4)]:
    ...     queue.push(client, item)
    >>> [queue.pop()[1] for _ in range(len(queue))]
    [1, 4, 2, 3]
    """

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def push(self, client: str, item: T, *, first: bool = False) -> None:
        """Add an item behind those of the same client, or before them."""
        items = self._items.setdefault(client, deque())
        (items.appendleft if first else items.append)(item)

    def pop(self) -> tuple[str, T]:
        """The next client and its oldest item."""
        client, items = next(iter(self._items.items()))
        item = items.popleft()
        if items:
            self._items.move_to_end(client)
        else:
            del self._items[client]
        return client, item


def release_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it for later (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
