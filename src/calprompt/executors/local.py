"""Processes of this machine that do groups of tasks.

    groups ──▶ worker 1   one process, one task after another; what they share stays loaded
           ──▶ worker 2
           ──▶ …          a worker that is killed is replaced, and the task it was at is begun again

Workers are spawned, not forked, and torch has the same number of threads in each, so that results do not depend on how
many there are. They end with the process that started them, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_end
from typing import Any

from calprompt.executors.protocol import FAILED, Outcome, T, Work
from calprompt.hardware import visible_devices

KILLS = 5  # of its worker that a task survives
PATIENCE = 5.0  # seconds in which a worker has to stop by itself


@dataclass
class LocalExecutor:
    """Processes of this machine.

    Attributes:
        workers: How many at a time.
        threads: Threads of torch in each.
        devices: GPUs such as cuda:0, which the workers are spread over; each sees its own, under the name cuda.
        kills: How often a task may lose its worker before it counts as failed.
        on_start: Called with every task that is handed to a worker.
    """

    workers: int = 1
    threads: int = 1
    devices: Sequence[str] = ()
    kills: int = KILLS
    on_start: Callable[[Any], None] | None = None

    def map(self, groups: Sequence[Sequence[T]], work: Work[T]) -> Iterator[Outcome[T]]:
        """Do all tasks; see `Executor`."""
        waiting = deque(deque(group) for group in groups)
        visible = visible_devices(self.devices)
        count = min(self.workers, sum(map(len, groups)))
        slots = [_Slot(self.threads, visible[n % len(visible)] if visible else None) for n in range(count)]
        killed: Counter[str] = Counter()
        try:
            while True:
                for slot in slots:
                    if slot.future is None and (slot.tasks or _refill(slot, waiting, slots)):
                        slot.begin(work)
                        if self.on_start:
                            self.on_start(slot.task)
                busy = {slot.future: slot for slot in slots if slot.future is not None}
                if not busy:
                    break
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    slot, busy[future].future = busy[future], None
                    try:
                        yield future.result()
                    except (BrokenProcessPool, SystemExit):
                        slot.restart()
                        killed[slot.task.key] += 1
                        if killed[slot.task.key] > self.kills:
                            reason = f"its worker was killed {self.kills + 1} times; is there enough memory?"
                            yield Outcome(slot.task, FAILED, reason=reason)
                        else:
                            slot.tasks.appendleft(slot.task)
                    except Exception as error:  # such as an answer that could not be sent
                        yield Outcome(slot.task, FAILED, reason=f"{type(error).__name__}: {error}")
            for slot in slots:
                slot.close()
        finally:
            stop(slots)


def _refill(slot: _Slot, waiting: deque[deque[T]], slots: Sequence[_Slot]) -> bool:
    """Give a worker the next group, or, if there is none, half of what the busiest one has left."""
    if waiting:
        slot.tasks = waiting.popleft()
        return True
    busiest = max(slots, key=lambda other: len(other.tasks))
    tasks = list(busiest.tasks)
    half = len(tasks) // 2
    busiest.tasks, slot.tasks = deque(tasks[:half]), deque(tasks[half:])
    return bool(slot.tasks)


@dataclass
class _Slot:
    """A worker process and what is left for it to do."""

    threads: int
    gpu: str | None = None
    tasks: deque[Any] = field(default_factory=deque)
    pool: ProcessPoolExecutor | None = None
    future: Future[Outcome[Any]] | None = None

    def begin(self, work: Work[Any]) -> None:
        """Hand the next task to the process, which is started if there is none."""
        self.task = self.tasks.popleft()
        with _interrupts_ignored():  # which a new process inherits: an interrupt is for the one that started it
            try:
                self.future = self._pool().submit(work, self.task)
            except BrokenProcessPool:  # killed while it had nothing to do
                self.restart()
                self.future = self._pool().submit(work, self.task)

    def _pool(self) -> ProcessPoolExecutor:
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(1, context, initializer=begin_worker, initargs=(self.threads, self.gpu))
        return self.pool

    def restart(self) -> None:
        """Forget a process that is gone."""
        if self.pool is not None:
            stop([self])
            self.pool = None

    def close(self) -> None:
        """End a process that has nothing to do."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None

    def processes(self) -> list[multiprocessing.process.BaseProcess]:
        """Processes of the pool, which has no public access to them."""
        return list((getattr(self.pool, "_processes", None) or {}).values())


def stop(slots: Sequence[_Slot]) -> None:
    """End processes at once: they release their folders, and their tasks can be resumed later."""
    processes = [process for slot in slots for process in slot.processes()]
    for process in processes:
        with suppress(OSError, ValueError, AttributeError):
            process.terminate()
    for slot in slots:
        if slot.pool is not None:
            slot.pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(OSError, ValueError, AssertionError):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def begin_worker(threads: int, gpu: str | None = None) -> None:
    """Initialise a worker: pin threads and GPU, ignore interrupts, and end when the parent ends."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _leave(*_: object) -> None:
    raise SystemExit(143)


def _follow_parent() -> None:
    """Wait for the end of the parent, then leave: by way of the main thread if it listens, and else at once."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait_for_end([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(143)
