"""Marks of a model that several replicas serve: one actor holds the book, and every replica asks it.

    replica ──┐
    replica ──┼── MarkKeeper, on the machine of the command ── marks file, kept images
    replica ──┘

Ray starts the actor again if it is lost, and it reads its file again. A mark that it had written but not yet confirmed
is then refused as marked already, so it counts once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.executors.ray import settle
from calprompt.executors.ray_cluster import import_ray
from calprompt.serve.marks import Mark, MarkBook
from calprompt.serve.problems import ProblemError
from calprompt.serve.receipts import Receipt

NAME, NAMESPACE = "marks", "calprompt"
PATIENCE = 20.0  # seconds in which the actor has to answer, also while Ray starts it again


class MarkKeeper:
    """The actor.

    Args:
        driver: What `describe_driver` returned.
        pid: Of the process that serves the model.
        book: Arguments of the `MarkBook`.
    """

    def __init__(self, driver: Mapping[str, Any], pid: int, book: Mapping[str, Any]) -> None:
        settle(driver)
        self._pid = pid
        self._book = MarkBook(**book)

    def add(self, receipt: Receipt, right: bool, **details: Any) -> Mark:
        """See `MarkBook.add`."""
        return self._book.add(receipt, right, **details)

    def see(self, scores: Sequence[float], digest: str) -> None:
        """See `MarkBook.see`."""
        self._book.see(scores, digest)

    def state(self) -> dict[str, Any]:
        """See `MarkBook.state`."""
        return self._book.state()

    def save(self) -> None:
        """See `MarkBook.save`."""
        self._book.save()

    def is_wanted(self) -> bool:
        """Whether the process that serves the model still runs."""
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()


class SharedMarks:
    """What a replica uses in the place of a `MarkBook`.

    Args:
        secret: Of receipts, the same for all replicas.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._keeper: Any = None

    def add(self, receipt: Receipt, right: bool, **details: Any) -> Coroutine[Any, Any, Mark]:
        """See `MarkBook.add`."""
        return self._ask("add", receipt, right, **details)

    def see(self, scores: Sequence[float], digest: str) -> Coroutine[Any, Any, None]:
        """See `MarkBook.see`."""
        return self._ask("see", list(scores), digest)

    def state(self) -> Coroutine[Any, Any, dict[str, Any]]:
        """See `MarkBook.state`."""
        return self._ask("state")

    def close(self) -> Coroutine[Any, Any, None]:
        """See `MarkBook.save`; the book stays open for the other replicas."""
        return self._ask("save")

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        ray = import_ray()
        try:
            if self._keeper is None:
                self._keeper = ray.get_actor(NAME, NAMESPACE)
            async with asyncio.timeout(PATIENCE):
                return await getattr(self._keeper, method).remote(*args, **options)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CalpromptError):
                raise error.cause from None
            raise
        except (TimeoutError, ValueError, ray.exceptions.RayError):
            raise ProblemError(503, "the marks cannot be reached now; send it again", Retry_After="5") from None


def start_keeper(ray: Any, driver: Mapping[str, Any], book: Mapping[str, Any]) -> Any:
    """Start the actor on this machine, where the paths of its files are known; returns Ray's handle on it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(MarkKeeper).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(dict(driver), os.getpid(), dict(book))


def find_keeper(ray: Any) -> Any | None:
    """Ray's handle on the actor of the cluster; None if there is none."""
    try:
        return ray.get_actor(NAME, NAMESPACE)
    except ValueError:
        return None
