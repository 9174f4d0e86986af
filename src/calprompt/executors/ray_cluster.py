"""The way to a Ray cluster: found or started, within a time limit, and what it has room for.

Ray itself waits for ever for an address where nobody answers, so the address is tried first. Usage statistics are
switched off, so nothing is sent anywhere.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.executors.protocol import WorkerResources

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
