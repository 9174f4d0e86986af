"""What a Ray worker does with a group of tasks: checks that it is like its driver, then does one after another.

Everything is yielded as it happens: the number of a task that is begun, then its outcome. Ray hands both to the driver
at once, so what a lost worker had finished is known, and so is the task that it was at.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import calprompt
from calprompt.cache import ENVIRONMENT
from calprompt.errors import CalpromptError
from calprompt.executors.protocol import FAILED, Outcome, Task, Work

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class UnlikeDriverError(CalpromptError):
    """A worker that has other versions than the process that sent the work."""


def installed_versions() -> dict[str, str]:
    """What has to be the same in the driver and all workers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "ray": version("ray"), "calprompt": calprompt.__version__}


def describe_driver(threads: int) -> dict[str, Any]:
    """What a worker has to know of its driver, as plain data."""
    return {
        "versions": installed_versions(),
        "threads": threads,
        "cwd": os.getcwd(),
        "cache": os.environ.get(ENVIRONMENT),
    }


def pack_group(work: Work[Any], tasks: Sequence[Task]) -> bytes:
    """A group as bytes, which a worker opens only after it has compared versions."""
    return pickle.dumps((work, list(tasks)))


def do_group(driver: Mapping[str, Any], group: bytes) -> Iterator[int | Outcome[Any]]:
    """Do the tasks of a group."""
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
