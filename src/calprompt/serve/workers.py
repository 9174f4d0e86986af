"""Several processes on one port, without Ray: calprompt serve MODEL --workers 4

    clients ── one socket ──┬── worker: the models and the application ──┐
                            └── worker                                   ├── the first process: socket, `Keeper`
                                                                         ┘

The first process has no model. It owns the feedback and the plans, starts a worker again that ends, and ends them all
when it is stopped. Workers end by themselves when it is gone.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.parallel import available_cores
from calprompt.serve.models import Keeper, Models
from calprompt.serve.settings import MOST_DECODERS, ServeSettings

PAUSE = 1.0  # seconds before a worker that ended is started again
KILLED = 10.0  # seconds after the longest drain


class KeeperManager(BaseManager):
    """Carries calls of workers to the keeper."""


class RemoteKeeper:
    """What a worker uses in the place of a `Keeper`."""

    def __init__(self, address: Any, key: bytes) -> None:
        KeeperManager.register("keeper", exposed=("call",))
        manager = KeeperManager(address, key)
        manager.connect()
        self._keeper = manager.keeper()  # type: ignore[attr-defined]

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            return self._keeper.call(method, *args, **options)
        except (OSError, EOFError) as error:
            raise CalpromptError("the feedback store cannot be reached; send it again later") from error


def run_workers(
    place: str | Path,
    options: Mapping[str, Any],
    settings: ServeSettings,
    count: int,
    *,
    announce: Callable[[str, str], None] = lambda address, what: None,
) -> None:
    """Serve with several processes until SIGTERM or Ctrl-C."""
    from calprompt.serve.server import address_of, open_port

    cores = max(1, available_cores() // count)
    settings = replace(settings, decoders=settings.decoders or min(MOST_DECODERS, cores))
    keeper = Keeper(Models(place, options), settings)
    key = secrets.token_bytes(32)
    KeeperManager.register("keeper", callable=lambda: keeper, exposed=("call",))
    manager = KeeperManager(authkey=key).get_server()
    stopped = threading.Event()
    with (
        open_port(settings.host, settings.port) as listener,
        tempfile.TemporaryDirectory(prefix="calprompt-metrics-", ignore_cleanup_errors=True) as metrics,
    ):
        for name, value in {"PROMETHEUS_MULTIPROC_DIR": metrics, "OMP_NUM_THREADS": str(cores)}.items():
            os.environ.setdefault(name, value)
        threading.Thread(target=manager.serve_forever, daemon=True).start()
        crew = _Crew((listener, str(place), dict(options), settings, (manager.address, key)), Path(metrics))
        before = {each: signal.signal(each, lambda *_: stopped.set()) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            first = [crew.start() for _ in range(count)]
            what = [crew.wait_for(each, stopped) for each in first]
            if not stopped.is_set():
                announce(address_of(*listener.getsockname()), what[0])
            while not stopped.wait(PAUSE):
                crew.replace_ended()
        finally:
            crew.stop(settings.drain + KILLED)
            for number, handler in before.items():
                signal.signal(number, handler)
            keeper.close()


class _Crew:
    def __init__(self, given: tuple[Any, ...], metrics: Path) -> None:
        self._given, self._metrics = given, metrics
        self._workers: dict[BaseProcess, Connection] = {}

    def start(self) -> BaseProcess:
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(*self._given, theirs), name="calprompt worker")
        worker.start()
        theirs.close()
        self._workers[worker] = ours
        return worker

    def wait_for(self, worker: BaseProcess, stopped: threading.Event) -> str:
        """What a worker serves, once it can; raises if it cannot."""
        pipe = self._workers[worker]
        while not stopped.is_set():
            if not pipe.poll(0.2):
                continue
            try:
                found = pipe.recv()
            except EOFError:
                worker.join()
                raise CalpromptError(f"a worker ended before it could answer (exit code {worker.exitcode})") from None
            if isinstance(found, Exception):
                raise found
            return str(found)
        return ""

    def replace_ended(self) -> None:
        """Start workers in the place of those that ended."""
        for worker in [each for each in self._workers if not each.is_alive()]:
            self._workers.pop(worker).close()
            for path in self._metrics.glob(f"gauge_live*_{worker.pid}.db"):
                path.unlink()
            self.start()

    def stop(self, seconds: float) -> None:
        """End all workers, after what they are doing."""
        end = time.monotonic() + seconds
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()


def _work(
    listener: socket.socket, place: str, options: dict[str, Any], settings: ServeSettings, where: Any, ready: Connection
) -> None:
    from calprompt.serve.server import run_server

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        keeper, models = RemoteKeeper(*where), Models(place, options)
        loaded = models.load_active()
        for each in loaded:
            keeper.call("open", each)
    except CalpromptError as error:
        ready.send(error)
        return
    what = "; ".join(f"{each.name}, {len(each.labels)} classes" for each in loaded)
    del loaded
    run_server(models, settings, announce=lambda _: ready.send(what), listener=listener, keeper=keeper)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
