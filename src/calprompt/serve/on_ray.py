"""A model served by replicas on a Ray cluster: `calprompt serve MODEL --ray ADDRESS`.

Ray Serve places the replicas, starts those again that are lost, and adds and removes some as the load changes. A
replica is the same application as without Ray, on a machine that has the versions and the very model of the command.
Feedback is in one place, an actor on the machine of the command. If Ray starts it again, it reads its file again;
feedback that it had written but not yet confirmed is then refused as a duplicate, so it counts once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import platform
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, SettingError
from calprompt.executors.protocol import WorkerResources
from calprompt.executors.ray import (
    capacity,
    check_versions,
    connect,
    describe_cluster,
    describe_driver,
    import_ray,
    settle,
    worker_error,
)
from calprompt.files import EXPORT, file_digest, folder_kind, is_alive, json_digest
from calprompt.serve.app import create_app
from calprompt.serve.models import Keeper, Models
from calprompt.serve.problems import ProblemError
from calprompt.serve.served_model import ServedModel
from calprompt.serve.server import address_of, open_port
from calprompt.serve.settings import ServeSettings, read_keys
from calprompt.text import os_problem, shorten

ANSWERS = 60.0  # seconds in which a machine of the cluster has to answer


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def head(ray: Any) -> dict[str, Any]:
    """The machine that the cluster was started on."""
    nodes = _alive(ray)
    return next((node for node in nodes if "node:__internal_head__" in node["Resources"]), nodes[0])


def _place(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _on(ray: Any, node: Mapping[str, Any], function: Callable[..., Any], *args: Any) -> Any:
    """Ray's handle on what a function returns on a machine."""
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": _place(node["NodeID"])}
    return ray.remote(function).options(**options).remote(*args)


def _result(ray: Any, node: Mapping[str, Any], handle: Any) -> Any:
    try:
        return ray.get(handle, timeout=ANSWERS)
    except ray.exceptions.RayTaskError as error:
        where = f"the machine {node['NodeManagerHostname']} of the Ray cluster"
        raise worker_error(error, f"{where} cannot serve it") from None
    except ray.exceptions.RayError as error:
        raise CalpromptError(
            f"the machine {node['NodeManagerHostname']} of the Ray cluster does not answer: {type(error).__name__}"
        ) from error


def check_machines(ray: Any, needs: WorkerResources, driver: Mapping[str, Any], folder: str, digest: str) -> None:
    """Raise unless all machines that may get a replica can have one."""
    nodes = [node for node in _alive(ray) if needs.count_in(node["Resources"])]
    handles = [_on(ray, node, check_machine, driver, folder, digest) for node in nodes]
    for node, handle in zip(nodes, handles, strict=True):
        _result(ray, node, handle)


def _try_port(host: str, port: int) -> int:
    with open_port(host, port) as listener:
        found: int = listener.getsockname()[1]
    return found


APP = "calprompt"
HEALTH = 5.0  # seconds between two looks at a replica
LOGS = {"log_level": "WARNING", "enable_access_log": False}
ENVIRONMENT = {  # of Ray Serve's own processes
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",  # else the replica beside the proxy gets most of the work
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # else a proxy that starts slowly is killed and started again
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
}
CONTROLLER = ("SERVE_CONTROLLER_ACTOR", "serve")  # name and namespace of the actor that is there if Serve runs


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are."""

    least: int = 1  # at all times
    most: int = 1  # while there is much to do; the same number for no scaling

    @classmethod
    def parse(cls, text: str) -> Replicas:
        """From a number, or from MIN:MAX.

        >>> Replicas.parse("2"), Replicas.parse("1:4")
        (Replicas(least=2, most=2), Replicas(least=1, most=4))
        """
        found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text.strip())
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most:
            raise SettingError(
                f"must be a number of 1 or more, or MIN:MAX such as 1:4; got {text!r}", parameter="replicas"
            )
        return cls(least, most)


def run_on_ray(
    folder: str | Path,
    settings: ServeSettings,
    *,
    address: str,
    replicas: Replicas | None = None,
    options: Mapping[str, Any] | None = None,
    announce: Callable[[str, str], None] = lambda address, what: None,
) -> None:
    """Serve a model on a Ray cluster until SIGTERM or Ctrl-C."""
    if settings.token_file is not None:  # read here: other machines need not have the file
        settings = replace(settings, keys=(*settings.keys, *read_keys(settings.token_file)), token_file=None)
    replicas, options = replicas or Replicas(), _replica_options(folder, options or {})
    needs = WorkerResources(cpus=options["threads"], gpus=float(options.get("device") == "cuda"))
    models = Models(folder, {**options, "device": "cpu"} if "device" in options else options)
    if not models.is_single:
        raise SettingError(f"a Ray cluster serves one model; give one of {shorten(models.names)} in {folder}")
    model = models.load_active()[0]
    driver = describe_driver(options["threads"])
    place = Path(folder).expanduser().absolute()
    machine = (driver, str(place), folder_digest(place))
    with _connected(address, needs.cpus * replicas.most) as ray:
        room = capacity(ray, needs)
        if room < replicas.least:
            raise CalpromptError(
                f"the Ray cluster has room for {room} replicas that need {needs} each, and {replicas.least} are asked "
                f"for; it has: {describe_cluster(ray)}"
            )
        _remove_abandoned(ray)
        first = head(ray)
        port = _result(ray, first, _on(ray, first, _try_port, settings.host, settings.port))
        settings = replace(settings, port=port, decoders=settings.decoders or options["threads"])
        check_machines(ray, needs, *machine)
        with _files(settings, watched=model.image_watch is not None) as (feedback, watch):
            settings = replace(settings, feedback=feedback, watch=watch)
            trial = Keeper(models, settings)
            trial.open(model)  # what is wrong with the file is said before anything is started
            trial.close()  # the actor owns the file from now on
            keeper = start_keeper(ray, driver, str(place), settings, model)
            try:
                _start_serve(settings)

                def build() -> Any:
                    check_machine(*machine)
                    return create_app(Models(str(place), options), settings, keeper=SharedKeeper())

                _deploy(build, settings, needs, replicas)
                host = first["NodeManagerAddress"] if _is_everywhere(settings.host) else settings.host
                announce(address_of(host, port), f"{model.name}, {len(model.labels)} classes")
                del model
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
            finally:
                _end(ray, keeper)


def _replica_options(folder: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `load_served` in a replica."""

    given = {name: value for name, value in options.items() if value is not None}
    if str(given.get("device", "")).startswith("cuda:"):
        raise SettingError(
            "must be cuda or cpu on a Ray cluster, which gives each replica a GPU of its own", parameter="device"
        )
    given.setdefault("threads", 1)
    if folder_kind(folder) != EXPORT:
        given.setdefault("device", "cpu")
    return given


@contextmanager
def _connected(address: str, cpus: float) -> Iterator[Any]:
    ours = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
    ray = connect(address, cpus, time_limit=ANSWERS)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, which Ray lets through everywhere
    try:
        yield ray
    finally:
        signal.signal(signal.SIGTERM, before)
        if ours:
            ray.shutdown()


def _remove_abandoned(ray: Any) -> None:
    """Take away what a command left behind that was killed; raise if Ray Serve is in use."""
    from ray import serve
    from ray.serve.context import _set_global_client

    _set_global_client(None)  # of a Ray Serve that this process used before, and that may have ended
    keeper = find_actor(ray, *KEEPER)
    if keeper is None and find_actor(ray, *CONTROLLER) is None:
        return
    apps = set(serve.status().applications)
    if apps - {APP} or (keeper is None and APP not in apps):
        others = ", ".join(sorted(apps - {APP})) or "without applications"
        raise CalpromptError(
            f"Ray Serve runs on this cluster already ({others}), and its port is one for the whole cluster; end it "
            "there, or use another cluster"
        )
    with suppress(ray.exceptions.RayError):
        if keeper is not None and ray.get(keeper.is_wanted.remote(), timeout=ANSWERS):
            raise CalpromptError("another calprompt serve uses this cluster; stop it first, or use another cluster")
    _end(ray, keeper)


@contextmanager
def _files(settings: ServeSettings, *, watched: bool) -> Iterator[tuple[str, str | None]]:
    """The files of feedback and of the watch of images; unless given, temporary ones, for an actor that is lost."""
    with tempfile.TemporaryDirectory(prefix="calprompt-feedback-", ignore_cleanup_errors=True) as folder:
        feedback, watch = (
            str(Path(given or Path(folder) / name).expanduser().absolute())
            for given, name in ((settings.feedback, "feedback.db"), (settings.watch, "watch.json"))
        )
        yield feedback, watch if watched or settings.watch else None


def _start_serve(settings: ServeSettings) -> None:
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    http = {
        "host": settings.host.strip("[]"),
        "port": settings.port,
        "request_timeout_s": 3 * settings.timeout,  # to arrive, to wait for a replica, to be answered
    }
    serve.start(
        proxy_location="EveryNode" if _is_everywhere(settings.host) else "HeadOnly",
        http_options=http,
        logging_config=LOGS,
        controller_options={"runtime_env": {"env_vars": ENVIRONMENT}},
    )


def _is_everywhere(host: str) -> bool:
    """Whether a host is that of all machines."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    return False


def _deploy(build: Callable[[], Any], settings: ServeSettings, needs: WorkerResources, replicas: Replicas) -> None:
    """Start the replicas, and wait until all of them can answer."""
    from ray import serve

    scale: dict[str, Any] = {"num_replicas": replicas.least}
    if replicas.least < replicas.most:
        limits = {"min_replicas": replicas.least, "max_replicas": replicas.most}
        scale = {"autoscaling_config": {**limits, "target_ongoing_requests": settings.batch}}
    deployment: Any = serve.deployment(serve.ingress(build)(Replica), name="model", **scale)
    deployment = deployment.options(
        ray_actor_options={"num_cpus": needs.cpus, "num_gpus": needs.gpus},
        max_ongoing_requests=2 * settings.queue,  # so that a replica says itself that its queue is full
        max_queued_requests=settings.connections,
        graceful_shutdown_timeout_s=settings.drain,
        health_check_period_s=HEALTH,
        logging_config=LOGS,
    )
    try:
        serve.run(deployment.bind(), name=APP, route_prefix="/")
    except RuntimeError as error:
        errors = re.findall(r"^(?:\w+\.)*\w*Error: (.*)$", str(error), re.MULTILINE)  # of a replica
        reason = errors[-1] if errors else " ".join(str(error).split())
        raise CalpromptError(f"the replicas cannot be started: {reason}") from error


def _end(ray: Any, keeper: Any | None) -> None:
    """Take away the application and the actor, and Ray Serve unless others use it."""
    from ray import serve

    with suppress(ray.exceptions.RayError, TimeoutError):
        if APP in serve.status().applications:
            serve.delete(APP)
    with suppress(ray.exceptions.RayError, TimeoutError):
        if not set(serve.status().applications) - {APP}:
            serve.shutdown()
    if keeper is not None:
        with suppress(ray.exceptions.RayError):
            ray.kill(keeper)


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
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    return json_digest([(name.as_posix(), file_digest(folder / name)) for name in shown])


KEEPER = NAME, NAMESPACE = "feedback", "calprompt"
PATIENCE = 20.0  # seconds in which the actor has to answer, also while Ray starts it again


class KeeperActor:
    """The actor: a `Keeper` on the machine of the command."""

    def __init__(
        self, driver: Mapping[str, Any], pid: int, folder: str, settings: ServeSettings, model: ServedModel
    ) -> None:
        settle(driver)
        self._pid = pid
        self._keeper = Keeper(Models(folder), settings)
        self._keeper.open(model)  # again, if Ray starts the actor again

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self._keeper.call(method, *args, **options)

    def is_wanted(self) -> bool:
        """Whether the process that serves the model still runs."""
        return is_alive(str(self._pid))

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


def start_keeper(ray: Any, driver: Mapping[str, Any], folder: str, settings: ServeSettings, model: ServedModel) -> Any:
    """Start the actor on this machine, where the paths of its files are known; returns Ray's handle on it."""
    actor = ray.remote(KeeperActor).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=_place(ray.get_runtime_context().get_node_id()),
    )
    return actor.remote(dict(driver), os.getpid(), folder, settings, model)


def find_actor(ray: Any, name: str, namespace: str) -> Any | None:
    """Ray's handle on an actor of the cluster; None if there is none."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None
