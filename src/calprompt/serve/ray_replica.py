"""A replica on a Ray cluster: the same application as without Ray, in a process of Ray's.

Feedback is in one place: an actor has the keeper, and every replica asks it.

    replica ──┐
    replica ──┼── KeeperActor, on the machine of the command ── feedback file, kept images
    replica ──┘

Ray starts the actor again if it is lost, and it reads its file again. Feedback that it had written but not yet
confirmed is then refused as a duplicate, so it counts once.

Ray Serve hands it requests, and runs the start and the end of the application. Before it loads the model, a replica
checks that its machine has the versions and the very model of the command that serves it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.executors.ray import check_versions, settle
from calprompt.executors.ray_cluster import import_ray
from calprompt.serve.keeper import Keeper, ModelFacts
from calprompt.serve.models import Models
from calprompt.serve.problems import ProblemError
from calprompt.serve.settings import ServeSettings
from calprompt.text import os_problem


@dataclass(frozen=True)
class ReplicaPlan:
    """What a replica has to know."""

    driver: Mapping[str, Any]  # what `describe_driver` returned
    folder: str  # of the model
    digest: str  # what `folder_digest` returned where the command runs
    options: Mapping[str, Any]  # further arguments of `load_served`
    settings: ServeSettings  # how it is served

    def create_app(self) -> Any:
        """Load the model; returns the application."""
        check_machine(self.driver, self.folder, self.digest)
        from calprompt.serve.app import create_app

        return create_app(Models(self.folder, self.options), self.settings, keeper=SharedKeeper())


class Replica:
    """What Ray Serve makes a replica of, together with the application."""

    async def check_health(self) -> None:
        """Answers as long as the replica's event loop does; Ray replaces a replica that does not."""


def check_machine(driver: Mapping[str, Any], folder: str, digest: str) -> None:
    """Raise unless this machine has the versions and the model of the driver."""
    check_versions(driver["versions"])
    settle(driver)
    where = f"the machine {platform.node()} of the Ray cluster"
    advice = "put it on storage that all machines share, or copy it to the same path on each of them"
    if not Path(folder).is_dir():
        raise CalpromptError(f"{where} does not have the folder {folder}; {advice}")
    try:
        found = folder_digest(Path(folder))
    except OSError as error:
        raise CalpromptError(f"{where} cannot read the model: {os_problem(error)}; {advice}") from error
    if found != digest:
        raise CalpromptError(f"{where} has another model in {folder}; {advice}")


def folder_digest(folder: Path) -> str:
    """A digest of the files of a folder and of their names; hidden ones are left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        with open(path, "rb") as file:
            digest.update(repr((name.as_posix(), hashlib.file_digest(file, "sha256").hexdigest())).encode())
    return digest.hexdigest()


KEEPER = NAME, NAMESPACE = "feedback", "calprompt"
PATIENCE = 20.0  # seconds in which the actor has to answer, also while Ray starts it again


class KeeperActor:
    """The actor: a `Keeper` on the machine of the command."""

    def __init__(
        self, driver: Mapping[str, Any], pid: int, folder: str, settings: ServeSettings, facts: ModelFacts
    ) -> None:
        settle(driver)
        self._pid = pid
        self._keeper = Keeper(Models(folder), settings)
        self._keeper.open(facts)  # again, if Ray starts the actor again

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self._keeper.call(method, *args, **options)

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
        return os.getpid()


class SharedKeeper:
    """What a replica uses in the place of a `Keeper`."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        ray = import_ray()
        try:
            if self._actor is None:
                self._actor = ray.get_actor(NAME, NAMESPACE)
            async with asyncio.timeout(PATIENCE):
                return await self._actor.call.remote(method, *args, **options)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CalpromptError):
                raise error.cause from None
            raise
        except (TimeoutError, ValueError, ray.exceptions.RayError):
            raise ProblemError(
                503, "the feedback store cannot be reached now; send it again", Retry_After="5"
            ) from None


def start_keeper(
    ray: Any, driver: Mapping[str, Any], folder: str | Path, settings: ServeSettings, facts: ModelFacts
) -> Any:
    """Start the actor on this machine, where the paths of its files are known; returns Ray's handle on it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(KeeperActor).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(dict(driver), os.getpid(), str(Path(folder).expanduser().absolute()), settings, facts)


def find_actor(ray: Any, name: str, namespace: str) -> Any | None:
    """Ray's handle on an actor of the cluster; None if there is none."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None
