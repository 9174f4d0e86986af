"""The pool of decoding processes: each image goes to a free one, and no image keeps the others waiting.

image ── waits, from each client in turn ── a free process ── pixels
                                              │ after 0.25 s: goes on at a low priority, and another process takes
                                              │               its place; if too many are that slow, it is given up
                                              │ after 5 s, or if its client is gone: the process is killed
                                              │ dies: only the image it held is lost
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import CalpromptError, ImageError
from calprompt.serve.admission import FairQueue, OverloadedError
from calprompt.serve.decoder import DecoderSettings

QUICK = 0.25  # seconds after which an image counts as slow
RECHECK = 0.1  # seconds between two looks at whether a slow image is in the way of others
SLOW_NICENESS = 10
START_TIMEOUT = 60.0  # seconds that a process may take until it answers first
RETRY_PAUSE = 1.0  # seconds before another attempt, after a process could not be started
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)  # what an image can do to it
BROKEN_PIPE = (OSError, EOFError, ValueError, RuntimeError)  # what a pipe without a reader raises; the last is uvloop's

logger = logging.getLogger("calprompt.serve")
Process = asyncio.subprocess.Process


class DecoderLostError(CalpromptError):
    """The process that held the image was ended from outside; the same request may succeed when it is repeated."""


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image ready for the model.

    Attributes:
        pixels: 8-bit levels [size, size, 3].
        width: Of the file's image.
        height: Of the file's image.
        format: Of the file, such as "JPEG".
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int
    format: str


class DecoderPool:
    """Processes that decode images.

    Args:
        settings: What becomes of an image.
        count: Images that are decoded at a time; there is one process more, ready to take the place of another.
        timeout: Seconds that an image may take.

    Attributes:
        restarts: How many processes had to be replaced.
    """

    def __init__(self, settings: DecoderSettings, count: int, *, timeout: float = 5.0) -> None:
        self.settings, self.count, self.timeout = settings, count, timeout
        self.restarts = 0
        self._waiting: FairQueue[asyncio.Future[Process]] = FairQueue()
        self._free: list[Process] = []
        self._processes: set[Process] = set()
        self._quick: set[Process] = set()
        self._slow: dict[Process, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watchers: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def alive(self) -> int:
        """Processes that run."""
        return sum(map(_is_alive, self._processes))

    async def start(self) -> None:
        """Start the processes and wait until each is ready."""
        await asyncio.gather(*(self._add() for _ in range(self.count + 1)))

    async def decode(self, data: bytes, client: str = "") -> DecodedImage:
        """The pixels of an image; if the caller gives up, so does the process."""
        process = await self._take(client)
        try:
            facts, pixels = await self._supervise(process, data, client)
        except BaseException:
            if process.returncode is None:
                process.kill()  # a new one takes its place, see `_watch`
            raise
        finally:
            self._quick.discard(process)
            self._dispatch()
        self._give_back(process)
        if "reason" in facts:
            raise ImageError(facts["reason"])
        size = self.settings.size
        array = np.frombuffer(pixels, dtype=np.uint8).reshape(size, size, 3)
        return DecodedImage(array, facts["width"], facts["height"], facts["format"])

    async def close(self) -> None:
        """End all processes, after what they are doing."""
        self._closed = True
        for watcher in self._watchers:
            watcher.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.timeout)
        for process in list(self._processes):
            if process.returncode is None:
                if process.stdin is not None:
                    process.stdin.close()
                try:
                    await asyncio.wait_for(process.wait(), 2)
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def _take(self, client: str) -> Process:
        """A free process, when it is this client's turn."""
        turn: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._waiting.push(client, turn)
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this client's turn in the same moment
                self._quick.discard(turn.result())
                self._give_back(turn.result())
            raise

    def _dispatch(self) -> None:
        """Hand free processes to those who wait."""
        self._free = [process for process in self._free if _is_alive(process)]
        while self._free and len(self._waiting) and len(self._quick) < self.count:
            _, turn = self._waiting.pop()
            if not turn.done():
                process = self._free.pop()
                self._quick.add(process)
                turn.set_result(process)

    def _give_back(self, process: Process) -> None:
        """A process that has done its work: free again, or ended if another took its place."""
        if process in self._slow:
            if process.stdin is not None:
                process.stdin.close()
        else:
            self._free.append(process)
            self._dispatch()

    async def _supervise(self, process: Process, data: bytes, client: str) -> tuple[dict[str, Any], bytes]:
        """Have an image decoded, within its time and out of the way of others."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.timeout
        exchange = loop.create_task(_exchange(process, data))
        exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait([exchange], timeout=min(QUICK, self.timeout))
            while not exchange.done():
                if loop.time() >= end:
                    raise ImageError(f"it takes longer than {self.timeout:g} s to decode; make it smaller")
                if process not in self._slow and not self._make_slow(process, client) and len(self._waiting):
                    raise OverloadedError("other images that take long to decode come first; send it again later", 2)
                await asyncio.wait([exchange], timeout=min(RECHECK, max(0.0, end - loop.time())))
        finally:
            exchange.cancel()
        try:
            return exchange.result()
        except BROKEN_PIPE:
            if process.returncode is None:
                process.kill()
            status = await process.wait()
            if -status in CRASHES:
                raise ImageError("damaged: it crashes the decoder") from None
            raise DecoderLostError("the process that decoded this image was ended; send it again") from None

    def _make_slow(self, process: Process, client: str) -> bool:
        """Let a slow image go on beside the others, if there is room for one more of this client."""
        own = sum(other == client for other in self._slow.values())
        if len(self._slow) >= self.count or own >= max(1, self.count // 2):
            return False
        self._slow[process] = client
        self._quick.discard(process)
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, SLOW_NICENESS)
        _hold(asyncio.create_task(self._add()), self._tasks)
        self._dispatch()
        return True

    async def _watch(self, process: Process) -> None:
        """Put a new process into the place of one that ends."""
        await process.wait()
        self._processes.discard(process)
        if self._slow.pop(process, None) is None:
            self.restarts += 1
            _hold(asyncio.create_task(self._add()), self._tasks)

    async def _add(self) -> None:
        """Start one process, trying until it works."""
        while not self._closed:
            process: Process | None = None
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "calprompt.serve.decoder", self.settings.to_json()),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
                    start_new_session=True,
                )
                await asyncio.wait_for(_exchange(process, b""), START_TIMEOUT)  # answers that an empty file is no image
            except (*BROKEN_PIPE, TimeoutError) as error:
                logger.warning("a decoding process could not be started (%s); trying again", error or "no answer")
                if process is not None:
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
                await asyncio.sleep(RETRY_PAUSE)
                continue
            self._processes.add(process)
            self._free.append(process)
            _hold(asyncio.create_task(self._watch(process)), self._watchers)
            self._dispatch()
            return


def _is_alive(process: Process) -> bool:
    return process.returncode is None and process.stdin is not None and not process.stdin.is_closing()


def _hold(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    """Hold on to a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _exchange(process: Process, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Send an image to a process and read what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(struct.pack("!Q", len(data)))
    process.stdin.write(data)
    await process.stdin.drain()
    facts = json.loads(await _frame(process.stdout))
    return facts, await _frame(process.stdout)


async def _frame(source: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!I", await source.readexactly(4))
    return await source.readexactly(length)
