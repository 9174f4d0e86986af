"""The pool of decoding processes: hands each image to a free one, replaces those that die, gives up on slow ones.

image ── a free process ── levels
             │ dies, is killed, takes too long: only the image it held is lost; a new process takes its place
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import CalpromptError, ImageError
from calprompt.serve.decoder import DecoderSettings

START = 60.0  # seconds that a process may take until it answers first
PAUSE = 1.0  # seconds before another attempt, after a process could not be started
OF_ITSELF = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)  # what an image can do to it
LOST = (OSError, EOFError, ValueError, RuntimeError)  # what a pipe without a reader raises; RuntimeError is uvloop's

logger = logging.getLogger("calprompt.serve")


class DecoderLostError(CalpromptError):
    """The process that held the image was ended from outside; the same request may succeed when it is repeated."""


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image ready for the model.

    Attributes:
        levels: 8-bit levels [size, size, 3].
        width: Of the file's image.
        height: Of the file's image.
        format: Of the file, such as "JPEG".
    """

    levels: NDArray[np.uint8]
    width: int
    height: int
    format: str


class DecoderPool:
    """Processes that decode images.

    Args:
        settings: What becomes of an image.
        count: How many processes.
        timeout: Seconds that an image may take.

    Attributes:
        restarts: How many processes had to be replaced.
    """

    def __init__(self, settings: DecoderSettings, count: int, *, timeout: float = 30.0) -> None:
        self.settings, self.count, self.timeout = settings, count, timeout
        self.restarts = 0
        self._free: asyncio.LifoQueue[asyncio.subprocess.Process] = asyncio.LifoQueue()
        self._processes: set[asyncio.subprocess.Process] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watchers: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def alive(self) -> int:
        """Processes that run."""
        return sum(map(_is_alive, self._processes))

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return [process.pid for process in self._processes if _is_alive(process)]

    async def start(self) -> None:
        """Start the processes and wait until each is ready."""
        await asyncio.gather(*(self._add() for _ in range(self.count)))

    async def decode(self, data: bytes) -> DecodedImage:
        """The levels of an image."""
        process = await self._free.get()
        while not _is_alive(process):  # it died while nobody asked it
            process = await self._free.get()
        task = asyncio.create_task(self._on(process, data))  # goes on if the caller gives up: the pipe stays in step
        _keep(task, self._tasks)
        return await asyncio.shield(task)

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

    async def _on(self, process: asyncio.subprocess.Process, data: bytes) -> DecodedImage:
        try:
            facts, levels = await asyncio.wait_for(_exchange(process, data), self.timeout)
        except TimeoutError:
            process.kill()
            raise ImageError(f"it takes longer than {self.timeout:g} s to decode; make it smaller") from None
        except LOST:
            if process.returncode is None:
                process.kill()
            status = await process.wait()
            if -status in OF_ITSELF:
                raise ImageError("damaged: it crashes the decoder") from None
            raise DecoderLostError("the process that decoded this image was ended; send it again") from None
        self._free.put_nowait(process)
        if "reason" in facts:
            raise ImageError(facts["reason"])
        size = self.settings.size
        pixels = np.frombuffer(levels, dtype=np.uint8).reshape(size, size, 3)
        return DecodedImage(pixels, facts["width"], facts["height"], facts["format"])

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Put a new process into the place of one that ends."""
        await process.wait()
        self._processes.discard(process)
        self.restarts += 1
        _keep(asyncio.create_task(self._add()), self._tasks)

    async def _add(self) -> None:
        """Start one process, trying until it works."""
        while not self._closed:
            process: asyncio.subprocess.Process | None = None
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "calprompt.serve.decoder", self.settings.to_json()),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
                    start_new_session=True,
                )
                await asyncio.wait_for(_exchange(process, b""), START)  # answers that an empty file is no image
            except (*LOST, TimeoutError) as error:
                logger.warning("a decoding process could not be started (%s); trying again", error or "no answer")
                if process is not None:
                    if process.returncode is None:
                        process.kill()
                    await process.wait()
                await asyncio.sleep(PAUSE)
                continue
            self._processes.add(process)
            self._free.put_nowait(process)
            _keep(asyncio.create_task(self._watch(process)), self._watchers)
            return


def _is_alive(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is None and process.stdin is not None and not process.stdin.is_closing()


def _keep(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    """Hold on to a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _exchange(process: asyncio.subprocess.Process, data: bytes) -> tuple[dict[str, Any], bytes]:
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
