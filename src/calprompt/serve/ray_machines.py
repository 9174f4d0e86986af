"""The machines of a Ray cluster: which there are, whether they can serve a model, and whether a port is free there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.executors.protocol import WorkerResources
from calprompt.executors.ray_cluster import capacity, describe_cluster
from calprompt.serve.ray_replica import check_machine
from calprompt.serve.settings import ServeSettings

ANSWERS = 60.0  # seconds in which a machine of the cluster has to answer


def check_room(ray: Any, needs: WorkerResources, least: int) -> None:
    """Raise unless there is room for so many replicas."""
    room = capacity(ray, needs)
    if room < least:
        raise CalpromptError(
            f"the Ray cluster has room for {room} replicas that need {needs} each, and {least} are "
            f"asked for; it has: {describe_cluster(ray)}"
        )


def alive(ray: Any) -> list[dict[str, Any]]:
    """Machines that answer."""
    return [node for node in ray.nodes() if node["Alive"]]


def head(ray: Any) -> dict[str, Any]:
    """The machine that the cluster was started on."""
    nodes = alive(ray)
    return next((node for node in nodes if "node:__internal_head__" in node["Resources"]), nodes[0])


def _on(ray: Any, node: Mapping[str, Any], function: Callable[..., Any], *args: Any) -> Any:
    """Ray's handle on what a function returns on a machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=place).remote(*args)


def _result(ray: Any, node: Mapping[str, Any], handle: Any) -> Any:
    try:
        return ray.get(handle, timeout=ANSWERS)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CalpromptError):
            raise error.cause from None
        last = [line for line in str(error).splitlines() if line.strip()][-1].strip()
        raise CalpromptError(
            f"the machine {node['NodeManagerHostname']} of the Ray cluster cannot serve it ({last}); is the same "
            "calprompt installed on all machines?"
        ) from error
    except ray.exceptions.RayError as error:
        raise CalpromptError(
            f"the machine {node['NodeManagerHostname']} of the Ray cluster does not answer: {type(error).__name__}"
        ) from error


def check_machines(ray: Any, needs: WorkerResources, plan: Mapping[str, Any]) -> None:
    """Raise unless all machines that may get a replica can have one."""
    nodes = [node for node in alive(ray) if needs.count_in(node["Resources"])]
    handles = [_on(ray, node, check_machine, plan["driver"], plan["folder"], plan["digest"]) for node in nodes]
    for node, handle in zip(nodes, handles, strict=True):
        _result(ray, node, handle)


def free_port(ray: Any, settings: ServeSettings) -> int:
    """The port on the head of the cluster; raises if it is in use."""
    first = head(ray)
    port: int = _result(ray, first, _on(ray, first, _try_port, settings.host, settings.port))
    return port


def _try_port(host: str, port: int) -> int:
    from calprompt.serve.server import open_port

    with open_port(host, port) as listener:
        found: int = listener.getsockname()[1]
    return found
