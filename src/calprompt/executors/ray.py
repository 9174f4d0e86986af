"""Groups of tasks on a Ray cluster: a Ray task per group, whose outcomes reach the driver one by one.

    groups ── cut so that all workers are busy ── a few at a time ──▶ worker: begun, outcome, begun, outcome, …
                                     └◀─── the rest of a lost group, its task first ────┘

A worker first checks that it has the versions of its driver. Ray itself waits for ever for an address where nobody
answers, so the address is tried first; usage statistics are switched off, so nothing is sent anywhere.
"""

from __future__ import annotations

import math
import os
import pickle
import platform
import re
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import calprompt
from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.executors.protocol import FAILED, Outcome, T, Work, WorkerResources
from calprompt.files import ENVIRONMENT
from calprompt.parallel import available_cores

LOCAL, AUTO = "local", "auto"
NOT_INSTALLED = "Ray is not installed; pip install 'calprompt[ray]'"
ADVICE = "is it running? Start one with 'ray start --head', or use --ray local"
TIME_LIMIT = 20.0  # seconds in which a cluster has to answer
TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
OBJECT_STORE = 200_000_000  # bytes of memory for what workers send back; tasks and outcomes are small


def import_ray() -> Any:
    """The ray package."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise SettingError(NOT_INSTALLED) from error
    return ray


def check_address(address: str) -> str:
    """An address as Ray takes it."""
    if address in (LOCAL, AUTO) or re.fullmatch(r"[\w.-]+:\d{1,5}", address):
        return address
    hint = "; run the command on a machine of the cluster instead" if address.startswith("ray://") else ""
    raise SettingError(f"Ray's address must be {AUTO}, {LOCAL} or HOST:PORT, got {address!r}{hint}")


def check_reachable(address: str) -> None:
    """Raise unless a cluster could be used: Ray is installed, and somebody listens at its address."""
    check_address(address)
    if find_spec("ray") is None:
        raise SettingError(NOT_INSTALLED)
    if address not in (LOCAL, AUTO):
        _knock(address, TIME_LIMIT)


def connect(address: str, cpus: float, *, time_limit: float = TIME_LIMIT) -> Any:
    """Connect this process to a cluster, or start one on this machine; returns the ray package."""
    check_address(address)
    if address == LOCAL:
        _set_token()
    ray = import_ray()
    if ray.is_initialized():
        _check_connected(ray, address, time_limit)
        return ray
    _silence_dumps()
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address == LOCAL:
            ray.init(
                LOCAL, num_cpus=max(1, round(cpus)), include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet
            )
        else:
            _try(address, time_limit)
            ray.init(address, **quiet)
    except CalpromptError:
        raise
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise CalpromptError(f"cannot use the Ray cluster at {address}: {_in_a_line(error)}") from error
    return ray


def _check_connected(ray: Any, address: str, time_limit: float) -> None:
    """Raise unless the cluster that this process is connected to already is the one at the address."""
    there = ray.get_runtime_context().gcs_address
    if address in (LOCAL, AUTO, there):
        return
    _knock(address, time_limit)
    if address.rpartition(":")[2] != there.rpartition(":")[2]:  # a host has several names, a cluster has one port
        raise CalpromptError(
            f"cannot use the Ray cluster at {address}: this process is connected to the one at {there}; call "
            "ray.shutdown() first, or give that address"
        )


def _silence_dumps() -> None:
    """Keep what Ray prints of a lost node, a page each time, out of our output; we say ourselves what follows."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


def _set_token() -> None:
    """A password for a cluster that only this process knows, so that Ray does not put one into the user's folder."""
    if "ray" not in sys.modules and not any(name in os.environ for name in TOKEN):
        os.environ.update(zip(TOKEN, ("token", secrets.token_hex(32)), strict=True))


def _try(address: str, time_limit: float) -> None:
    """Raise unless a cluster answers."""
    if address != AUTO:
        _knock(address, time_limit)
    place = [] if address == AUTO else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", *place]
    try:
        healthy = subprocess.run(command, capture_output=True, timeout=time_limit, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        where = "on this machine" if address == AUTO else f"at {address}"
        raise NotFoundError(f"no Ray cluster answers {where} within {time_limit:g} seconds; {ADVICE}")


def _knock(address: str, time_limit: float) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=time_limit).close()
    except (OSError, OverflowError) as error:
        raise NotFoundError(f"no Ray cluster answers at {address} ({_in_a_line(error)}); {ADVICE}") from error


def capacity(ray: Any, resources: WorkerResources) -> int:
    """How many workers the machines of the cluster have room for together."""
    return sum(resources.count_in(node["Resources"]) for node in ray.nodes() if node["Alive"])


def describe_cluster(ray: Any) -> str:
    """The resources of each machine, in a line."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    words = [str(WorkerResources(node.get("CPU", 0), node.get("GPU", 0), int(node.get("memory", 0)))) for node in nodes]
    return "; ".join(words) or "no machine"


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class UnlikeDriverError(CalpromptError):
    """A worker that has other versions than the process that sent the work."""


def installed_versions() -> dict[str, str]:
    """Versions that must be the same in the driver and all workers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "ray": version("ray"), "calprompt": calprompt.__version__}


def describe_driver(threads: int) -> dict[str, Any]:
    """Versions, threads and folders of the driver, as plain data for workers."""
    return {
        "versions": installed_versions(),
        "threads": threads,
        "cwd": os.getcwd(),
        "cache": os.environ.get(ENVIRONMENT),
    }


def do_group(driver: Mapping[str, Any], group: bytes) -> Iterator[int | Outcome[Any]]:
    """Do the tasks of a group, which comes as bytes: they are opened only after versions were compared."""
    check_versions(driver["versions"])
    settle(driver)
    work, tasks = pickle.loads(group)
    for number, task in enumerate(tasks):
        yield number
        yield _outcome(work, task)


def _outcome(work: Work[Any], task: Any) -> Outcome[Any]:
    try:
        return work(task)
    except Exception as error:  # one task that goes wrong must not stop the others
        return Outcome(task, FAILED, reason=f"{type(error).__name__}: {error}".rstrip(": "))


def check_versions(expected: Mapping[str, str]) -> None:
    """Raise if this process has other versions than its driver."""
    found = installed_versions()
    wrong = [f"{name} {found.get(name)} instead of {wanted}" for name, wanted in expected.items()]
    wrong = [text for text, name in zip(wrong, expected, strict=True) if found.get(name) != expected[name]]
    if wrong:
        raise UnlikeDriverError(
            f"a worker on {platform.node()} has {' and '.join(wrong)}; install the same versions on all machines of "
            "the cluster, and start Ray there again"
        )


def settle(driver: Mapping[str, Any]) -> None:
    """Compute as a worker of the driver's own machine would: the same folder, cache and number of threads.

    Ray sets OMP_NUM_THREADS from the CPUs of a task, and sums of other numbers of threads round differently.
    """
    for name in THREADS:
        os.environ[name] = str(driver["threads"])
    if "torch" in sys.modules:  # from an earlier group; else it takes them from the environment
        sys.modules["torch"].set_num_threads(driver["threads"])
    with suppress(OSError):  # paths of the settings may be relative; a machine without that folder has no such paths
        os.chdir(driver["cwd"])
    if driver["cache"] and ENVIRONMENT not in os.environ:
        os.environ[ENVIRONMENT] = driver["cache"]


RETRIES = 5  # after losses of its worker, of a task
PIECES = 4  # groups for each worker, at least: the last ones then end at about the same time
POLL_SECONDS = 2.0  # seconds between looks at the cluster
PATIENCE = 5.0  # seconds in which workers have to stop by themselves
DESERTED = 60.0  # seconds without a machine that could do anything


@dataclass
class RayExecutor:
    """Workers of a Ray cluster; a context manager, which lets go of the cluster at its end.

    Attributes:
        address: `auto` for the cluster that this machine belongs to, HOST:PORT of its head, or `local` to start one.
        resources: What a worker needs.
        threads: Threads of torch in each worker.
        workers: Groups at a time; as many as the cluster has room for, if None.
        max_retries: How often a task may lose its worker or machine before it counts as failed.
        on_start: Called with every task that a worker begins.
        retries: How many tasks were begun again so far.
    """

    address: str = AUTO
    resources: WorkerResources = field(default_factory=WorkerResources)
    threads: int = 1
    workers: int | None = None
    max_retries: int = RETRIES
    on_start: Callable[[Any], None] | None = None
    retries: int = field(default=0, init=False)
    _ray: Any = field(default=None, init=False, repr=False)
    _own: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_address(self.address)

    def __enter__(self) -> RayExecutor:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> int:
        """Connect to the cluster, if that was not done; returns how many workers it has room for.

        Raises:
            CalpromptError: if there is no cluster, or no machine of it has what a worker needs.
        """
        if self._ray is None:
            self._own = "ray" not in sys.modules or not import_ray().is_initialized()
            cpus = self.resources.cpus
            self._ray = connect(self.address, cpus * (self.workers or max(1, int(available_cores() / cpus))))
        room = capacity(self._ray, self.resources)
        if not room:
            machines = describe_cluster(self._ray)
            self.close()
            raise CalpromptError(
                f"no machine of the Ray cluster has what a worker needs: {self.resources}; there are: {machines}. "
                "Change 'resources'"
            )
        return room if self.workers is None else min(room, self.workers)

    def close(self) -> None:
        """Let go of the cluster, and end it if it was started here."""
        if self._ray is not None and self._own:
            self._ray.shutdown()
        self._ray = None

    def map(self, groups: Sequence[Sequence[T]], work: Work[T]) -> Iterator[Outcome[T]]:
        """Do all tasks; see `Executor`."""
        room = self.connect()
        waiting = deque(cut_groups(groups, PIECES * room))
        flight = _Flight(self._ray, self.resources, describe_driver(self.threads), work)
        lost: Counter[str] = Counter()
        deserted = time.monotonic()
        try:
            while waiting or flight.groups:
                limit = self.workers or 2 * room  # Ray has the next group at hand when a worker is free
                while waiting and len(flight.groups) < limit:
                    flight.begin(waiting.popleft())
                ready = flight.wait(POLL_SECONDS)
                if not ready:
                    room = max(1, capacity(self._ray, self.resources))
                    deserted = time.monotonic() if capacity(self._ray, self.resources) else deserted
                    if time.monotonic() - deserted > DESERTED:
                        raise CalpromptError("the Ray cluster has lost all machines that could go on")
                    continue
                deserted = time.monotonic()
                for group in ready:
                    try:
                        news = flight.next(group)
                    except _LostError as error:
                        if not group.tasks:  # all of it was done
                            continue
                        task = group.tasks[0]
                        lost[task.key] += 1
                        self.retries += 1
                        if lost[task.key] > self.max_retries:
                            reason = f"its worker was lost {self.max_retries + 1} times; {error}"
                            yield Outcome(group.tasks.pop(0), FAILED, reason=reason)
                        if group.tasks:
                            waiting.appendleft(group.tasks)
                        continue
                    if isinstance(news, Outcome):
                        yield news
                    elif news is not None and self.on_start:
                        self.on_start(news)
        finally:
            flight.cancel()


class _LostError(Exception):
    """A worker that is gone; the text says why as far as Ray knows."""


@dataclass(eq=False)
class _Group:
    """A group at work: what is left of it, and Ray's handle on what it yields."""

    tasks: list[Any]
    news: Any


class _Flight:
    """The groups that Ray has."""

    def __init__(self, ray: Any, resources: WorkerResources, driver: dict[str, Any], work: Work[Any]) -> None:
        self.ray, self.driver, self.work = ray, driver, work
        self.groups: list[_Group] = []
        self.function = ray.remote(do_group).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=resources.memory or None,
            num_returns="streaming",
            max_retries=0,  # a group that is begun again here is without what it has finished
            name="calprompt",
        )

    def begin(self, tasks: list[Any]) -> None:
        """Hand a group to Ray."""
        self.groups.append(_Group(tasks, self.function.remote(self.driver, pickle.dumps((self.work, tasks)))))

    def wait(self, seconds: float) -> list[_Group]:
        """Groups with news, as soon as there is one."""
        handles = [group.news for group in self.groups]
        ready, _ = self.ray.wait(handles, num_returns=1, timeout=seconds, fetch_local=False)
        return [group for group in self.groups if any(group.news is each for each in ready)]

    def next(self, group: _Group) -> Any:
        """The next outcome of a group, or a task that it begins; None at its end."""
        errors = self.ray.exceptions
        try:
            news = self.ray.get(next(group.news))
        except StopIteration:
            self.groups.remove(group)
            if group.tasks:  # never with a Ray that keeps its word
                raise _LostError("it ended early") from None
            return None
        except errors.RayTaskError as error:
            self.groups.remove(group)
            raise worker_error(error, "a Ray worker could not begin") from None
        except errors.RayError as error:
            self.groups.remove(group)
            with suppress(Exception):  # if only an answer was lost, the worker is still at it
                self.ray.cancel(group.news, force=True)
            raise _LostError(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error
        if isinstance(news, Outcome):
            group.tasks.pop(0)
            return news
        return group.tasks[0]

    def cancel(self) -> None:
        """Stop all tasks: first by an interrupt, so that locks are released, then by force."""
        left = [group.news for group in self.groups]
        self.groups = []
        for force in (False, True):
            for news in left:
                with suppress(Exception):  # a cluster that is gone has nothing to cancel
                    self.ray.cancel(news, force=force)
            end = time.monotonic() + PATIENCE
            while left and time.monotonic() < end:
                left = [news for news in left if not self._is_over(news)]
            if not left:
                return

    def _is_over(self, news: Any) -> bool:
        try:
            ready, _ = self.ray.wait([news.completed()], timeout=0.1, fetch_local=False)
        except Exception:  # whatever a cluster that is gone answers
            return True
        return bool(ready)


def cut_groups(groups: Sequence[Sequence[T]], pieces: int) -> list[list[T]]:
    """Groups cut so that there are about as many pieces, in their order; none is empty.

    >>> cut_groups(["abcdef", "gh"], 4)
    [['a', 'b'], ['c', 'd'], ['e', 'f'], ['g', 'h']]
    """
    length = max(1, math.ceil(sum(map(len, groups)) / max(1, pieces)))
    return [list(group[start : start + length]) for group in groups for start in range(0, len(group), length)]


def worker_error(error: Any, what: str) -> CalpromptError:
    """Why a worker could not start, from Ray's error."""
    if isinstance(error.cause, CalpromptError):
        return error.cause
    last = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
    return CalpromptError(f"{what} ({last}); is the same calprompt installed on all machines?")
