"""Decoding in processes of their own, with limits: each image goes to a free one, and no image keeps others waiting.

After 0.25 s an image goes on at a low priority, and another process takes the place of its own; if too many are that
slow, it is given up. After 5 s, or if its client is gone, its process is killed. Whatever else an image does to a
decoder, it does to that process and not to the server: only the image that it held is lost.

    standard input    lengths (4 and 8 bytes); JSON: view and formats; image file
    standard output   length (4 bytes), JSON: facts or a reason; length (4 bytes), 8-bit pixels [size, size, 3]
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import struct
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calprompt.data.decoding import decode
from calprompt.errors import ImageError
from calprompt.kernel import resize_and_crop
from calprompt.serve.admission import FairQueue, release_memory
from calprompt.serve.problems import ProblemError

FULL_PIXELS = 16_000_000  # JPEGs with more are decoded at 1/2, 1/4 or 1/8 of their size
OVERSAMPLING = 4  # the picture that is resized has at least so many times the pixels a side that the model sees
WHOLE_SHARE = 0.5  # of the pixels of the largest JPEG that images of other formats may have: they are decoded whole
LARGE_FILE = 2**20  # bytes
HEAD = struct.Struct("!IQ")  # lengths of the JSON and of the image
TOO_MUCH_MEMORY = "it takes more memory to decode than is allowed; make it smaller"
QUICK = 0.25  # seconds after which an image counts as slow
RECHECK = 0.1  # seconds between two looks at whether a slow image is in the way of others
SLOW_NICENESS = 10
START_TIMEOUT = 60.0  # seconds that a process may take until it answers first
RETRY_PAUSE = 1.0  # seconds before another attempt, after a process could not be started
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)  # what an image can do to it
BROKEN_PIPE = (OSError, EOFError, ValueError, RuntimeError)  # what a pipe without a reader raises; the last is uvloop's

ANY_VIEW = json.dumps({"size": 1, "interpolation": "", "mode": "", "upright": False, "formats": []}).encode()

logger = logging.getLogger("calprompt.serve")
Process = asyncio.subprocess.Process


@dataclass(frozen=True)
class View:
    """What an image goes through before the model sees it."""

    size: int  # pixels along a side
    interpolation: str  # "bicubic" or "bilinear"
    mode: str  # "shortest" or "squash", see `calprompt.kernel`
    upright: bool  # turned as its EXIF data say


@dataclass(frozen=True)
class Limits:
    """What an image may be and cost."""

    formats: tuple[str, ...]  # that are read
    pixels: int  # of the largest JPEG; other formats may have half as many
    memory: int | None = None  # bytes of address space that a process may take; None: as many as there are
    seconds: float | None = None  # after which a process ends itself if it still works on an image; None: never


def decode_image(data: bytes, view: View, limits: Limits) -> tuple[dict[str, Any], bytes]:
    """Width, height and format of an image, or the reason why it cannot be read, and its pixels."""
    facts: dict[str, Any] = {}
    try:
        if not data:
            raise ImageError("an empty file")
        image = decode(data, upright=view.upright, prepare=lambda opened: facts.update(_prepare(opened, view, limits)))
        return facts, resize_and_crop(image, view.size, view.interpolation, view.mode).tobytes()
    except ImageError as error:
        if isinstance(error.__cause__, MemoryError):
            return {"reason": TOO_MUCH_MEMORY}, b""
        return {"reason": error.reason}, b""
    except MemoryError:
        return {"reason": TOO_MUCH_MEMORY}, b""


def _prepare(image: Image.Image, view: View, limits: Limits) -> dict[str, Any]:
    """What the header of the file says; raises for more pixels than are allowed, before any is decoded."""
    kind = "JPEG" if image.format == "MPO" else str(image.format)  # two JPEGs in one file, as some cameras write
    width, height = image.size
    if kind not in limits.formats:
        raise ImageError(f"{kind}, which is not accepted here; send {' or '.join(limits.formats)}")
    most = limits.pixels if kind == "JPEG" else int(limits.pixels * WHOLE_SHARE)
    if width * height > most:
        raise ImageError(f"{width} by {height} pixels, and the limit for {kind} is {most / 1e6:g} million pixels")
    if kind == "JPEG" and width * height > FULL_PIXELS:
        image.draft(None, (OVERSAMPLING * view.size, OVERSAMPLING * view.size))
    return {"width": width, "height": height, "format": kind}


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode what comes on standard input until it ends."""
    limits = Limits(**json.loads((sys.argv[1:] if arguments is None else arguments)[0]))
    Image.MAX_IMAGE_PIXELS = None  # the server has a limit of its own
    warnings.simplefilter("ignore")  # odd images would fill the server's log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the input
    if limits.memory is not None:
        _limit_memory(limits.memory)
    source, target = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    while len(head := source.read(HEAD.size)) == HEAD.size:
        length, size = HEAD.unpack(head)
        text, data = source.read(length), source.read(size)
        if len(data) < size:
            break
        asked = json.loads(text)
        own = replace(limits, formats=tuple(asked.pop("formats")))
        _set_alarm(limits.seconds or 0)
        found = decode_image(data, View(**asked), own)
        _set_alarm(0)
        facts, pixels = json.dumps(found[0]).encode(), found[1]
        target.write(struct.pack("!I", len(facts)) + facts + struct.pack("!I", len(pixels)) + pixels)
        target.flush()
        del data, found, pixels
        if size > LARGE_FILE:
            release_memory()
    return 0


def _set_alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(most: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image ready for the model."""

    pixels: NDArray[np.uint8]  # 8-bit pixels [size, size, 3]
    width: int  # of the file's image
    height: int  # of the file's image
    format: str  # of the file, such as "JPEG"


class DecoderPool:
    """Processes that decode images, `count` at a time; one more is ready to take the place of another."""

    def __init__(self, limits: Limits, count: int, *, timeout: float = 5.0) -> None:
        self.limits, self.count, self.timeout = limits, count, timeout
        self.restarts = 0  # processes that had to be replaced
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
        return sum(map(_is_alive, self._processes))

    async def start(self) -> None:
        """Start the processes and wait until each is ready."""
        await asyncio.gather(*(self._add() for _ in range(self.count + 1)))

    async def decode(
        self, data: bytes, view: View, client: str = "", formats: tuple[str, ...] | None = None
    ) -> DecodedImage:
        """The pixels of an image; if the caller gives up, so does the process."""
        request = json.dumps({**asdict(view), "formats": formats or self.limits.formats}).encode()
        process = await self._take(client)
        try:
            facts, pixels = await self._supervise(process, (request, data), client)
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
        array = np.frombuffer(pixels, dtype=np.uint8).reshape(view.size, view.size, 3)
        return DecodedImage(array, facts["width"], facts["height"], facts["format"])

    async def close(self) -> None:
        """End all processes, after what they are doing."""
        self._closed = True
        for watcher in self._watchers:
            watcher.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.timeout)
        for process in list(self._processes):
            if process.stdin is not None:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 2)
            except TimeoutError:
                await _kill(process)

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

    async def _supervise(
        self, process: Process, request: tuple[bytes, bytes], client: str
    ) -> tuple[dict[str, Any], bytes]:
        """Have an image decoded, within its time and out of the way of others."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.timeout
        exchange = loop.create_task(_exchange(process, *request))
        exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait([exchange], timeout=min(QUICK, self.timeout))
            while not exchange.done():
                if loop.time() >= end:
                    raise ImageError(f"it takes longer than {self.timeout:g} s to decode; make it smaller")
                if process not in self._slow and not self._make_slow(process, client) and len(self._waiting):
                    raise ProblemError(
                        429, "other images that take long to decode come first; send it again later", Retry_After="2"
                    )
                await asyncio.wait([exchange], timeout=min(RECHECK, max(0.0, end - loop.time())))
        finally:
            exchange.cancel()
        try:
            return exchange.result()
        except BROKEN_PIPE:
            if -await _kill(process) in CRASHES:
                raise ImageError("damaged: it crashes the decoder") from None
            raise ProblemError(
                503, "the process that decoded this image was ended; send it again", Retry_After="1"
            ) from None

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
                    *(sys.executable, "-m", "calprompt.serve.decoder", json.dumps(asdict(self.limits))),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
                    start_new_session=True,
                )
                await asyncio.wait_for(
                    _exchange(process, ANY_VIEW, b""), START_TIMEOUT
                )  # answers that an empty file is no image
            except (*BROKEN_PIPE, TimeoutError) as error:
                logger.warning("a decoding process could not be started (%s); trying again", error or "no answer")
                if process is not None:
                    await _kill(process)
                await asyncio.sleep(RETRY_PAUSE)
                continue
            self._processes.add(process)
            self._free.append(process)
            _hold(asyncio.create_task(self._watch(process)), self._watchers)
            self._dispatch()
            return


async def _kill(process: Process) -> int:
    """How it ended, if it had not ended before."""
    if process.returncode is None:
        process.kill()
    return await process.wait()


def _is_alive(process: Process) -> bool:
    return process.returncode is None and process.stdin is not None and not process.stdin.is_closing()


def _hold(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    """Hold on to a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _exchange(process: Process, request: bytes, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Send an image to a process and read what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HEAD.pack(len(request), len(data)) + request)
    process.stdin.write(data)
    await process.stdin.drain()
    facts = json.loads(await _frame(process.stdout))
    return facts, await _frame(process.stdout)


async def _frame(source: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!I", await source.readexactly(4))
    return await source.readexactly(length)


if __name__ == "__main__":
    sys.exit(main())
