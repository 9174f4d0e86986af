"""The protocol of executors: tasks that go in, outcomes that come out, resources of workers, and shared folders.

If a worker sees the folder of whoever sent it, results go there; if not, they travel as bytes and are written there.

    driver: <folder>/.shared-<token>  ──▶  worker: is it there?  ── yes ── results go into the folder
                                                                 └─ no ─── files ──▶ driver writes them
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from calprompt.errors import CalpromptError, SettingError
from calprompt.files import is_alive, replaced_folder, write_bytes
from calprompt.registry import check_types, unknown
from calprompt.text import format_size, size_in_bytes

FINISHED, FAILED = "finished", "failed"
BUSY = "busy"  # another process is working on it


class Task(Protocol):
    """Something to do, as plain data and paths that any process can read."""

    @property
    def key(self) -> str:
        """Its identifier."""
        ...

    @property
    def title(self) -> str:
        """A description in a line."""
        ...


T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of a task.

    Attributes:
        task: What was to be done.
        status: finished, failed, or busy.
        folder: Folder of the result, if it got that far.
        reason: Why it failed.
        seconds: That it took.
        reused: Whether everything was there already.
        warnings: What the user should know.
        result: What else the work gives back, as plain data.
    """

    task: T
    status: str
    folder: Path | None = None
    reason: str | None = None
    seconds: float = 0.0
    reused: bool = False
    warnings: tuple[str, ...] = ()
    result: Any = None

    @property
    def is_finished(self) -> bool:
        """Whether the result is there and complete."""
        return self.status == FINISHED


Work = Callable[[T], Outcome[T]]


class Executor(Protocol):
    """Runs groups of tasks, here or elsewhere."""

    def map(self, groups: Sequence[Sequence[T]], work: Work[T]) -> Iterator[Outcome[T]]:
        """Do all tasks, and give each outcome as soon as there is one.

        Args:
            groups: Tasks that share what is loaded; a group is best done by one process, in its order.
            work: Does a task; a function of a module, so that other processes can import it.
        """
        ...


@dataclass(frozen=True)
class WorkerResources:
    """Resources reserved for one worker.

    Attributes:
        cpus: Processors; a fraction lets several workers share one.
        gpus: Graphics processors; a fraction below 1 lets several workers share one.
        memory: Bytes; 0 leaves it out of account.
    """

    cpus: float = 1
    gpus: float = 0
    memory: int = 0

    def __str__(self) -> str:
        words = [f"{self.cpus:g} CPU"]
        words += [f"{self.gpus:g} GPU"] if self.gpus else []
        words += [f"{format_size(self.memory)} of memory"] if self.memory else []
        return ", ".join(words)

    def count_in(self, machine: Mapping[str, float]) -> int:
        """How many workers a machine has room for.

        Args:
            machine: What it has, by Ray's names: CPU, GPU and memory.

        >>> WorkerResources(cpus=2, memory=4_000_000_000).count_in({"CPU": 8, "memory": 10e9})
        2
        """
        needs = (("CPU", self.cpus), ("GPU", self.gpus), ("memory", self.memory))
        return min(int(machine.get(name, 0) / need + 1e-6) for name, need in needs if need)


def parse_resources(content: Mapping[str, Any], where: str, usual: WorkerResources) -> WorkerResources:
    """Resources from what a file says of them."""
    for name in content.keys() - vars(usual).keys():
        raise unknown(f"name in {where}:", str(name), vars(usual))
    cpus, gpus, memory = (vars(usual) | dict(content)).values()
    check_types(f"{where}:", WorkerResources, {"cpus": cpus, "gpus": gpus})
    if not 0 < cpus < math.inf:
        raise SettingError(f"{where}: cpus must be above 0, got {cpus:g}")
    if not 0 <= gpus < math.inf or (gpus > 1 and gpus != int(gpus)):
        raise SettingError(f"{where}: gpus must be a whole number, or a fraction below 1; got {gpus:g}")
    size = memory if isinstance(memory, int) and not isinstance(memory, bool) else size_in_bytes(str(memory))
    if size is None or size < 0:
        raise SettingError(f"{where}: memory must be a size such as 2GB or 500MB, got {memory!r}")
    return WorkerResources(cpus, gpus, size)


PREFIX = ".shared-"
PATIENCE = 3.0  # seconds in which a file of another machine has to show up; network file systems look now and then

_seen: dict[str, bool] = {}


@contextmanager
def shared_marker(folder: Path) -> Iterator[str]:
    """A file in a folder by which others tell whether they see the folder; gives its path, and removes it.

    Those that killed processes of this machine left are removed too.
    """
    folder = folder.resolve()
    for left in folder.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            host, process = left.read_text(encoding="utf-8").split()
            if host == socket.gethostname() and not is_alive(process):
                left.unlink()
    path = folder / f"{PREFIX}{secrets.token_hex(8)}"
    path.write_text(f"{socket.gethostname()} {os.getpid()}", encoding="utf-8")
    try:
        yield str(path)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def is_shared(marker: str) -> bool:
    """Whether this process sees the folder of a marker."""
    if marker not in _seen:
        end = time.monotonic() + PATIENCE
        while not (found := os.path.isfile(marker)) and time.monotonic() < end:
            time.sleep(0.1)
            with suppress(OSError):
                os.listdir(os.path.dirname(marker))  # some network file systems look again for that
        _seen.clear()
        _seen[marker] = found
    return _seen[marker]


def pack_folder(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their paths in it; half-written ones and locks are left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def unpack_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write a folder in one step, in place of what was there."""
    with replaced_folder(folder) as draft:
        for name, content in files.items():
            place = draft / name
            if not place.resolve().is_relative_to(draft.resolve()):
                raise CalpromptError(f"{name} is outside of its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place, content)
