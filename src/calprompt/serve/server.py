"""The processes that serve: a port, signals, an end that answers what was accepted, and connections with limits.

With `calprompt serve --workers N`, the first process has no model. It owns the socket, the feedback and the plans,
starts a worker again that ends, and ends them all when it is stopped. Workers end by themselves when it is gone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from calprompt.errors import CalpromptError, Parameter, SettingError
from calprompt.parallel import available_cores
from calprompt.serve.app import create_app
from calprompt.serve.guard import HEAD_BYTES, respond
from calprompt.serve.models import Keeper, Models
from calprompt.serve.problems import ProblemError
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import MOST_DECODERS, ServeSettings

SENDING_GRACE = 0.5  # seconds without a byte, after which a request that is being sent may be closed for another
LINGER = 5.0  # seconds for the rest of a body that was refused
LAST_CALL = 0.3  # seconds in which a request may still come when the server is being stopped


class CarefulProtocol(H11Protocol):
    """A connection of a client, with limits that uvicorn's protocol does not have; the values are those of all.

    a connection too many       the longest idle one is closed, or 429 at once
    headers that do not come    closed, and so are answers that are not read
    the rest of a refused body  taken and forgotten for a few seconds, so that its sender hears why
    SIGTERM                     a request on its way is still answered, and told that it was the last one
    """

    most_connections: ClassVar[int] = 1000  # that may be open at a time
    most_per_address: ClassVar[int] = 250  # of them by one address
    proxies: ClassVar[frozenset[str]] = frozenset()  # addresses that may have all of them
    by_address: ClassVar[dict[str, set[CarefulProtocol]]] = {}
    patience: ClassVar[float] = 30.0  # seconds for the headers of a request, and for a client to read an answer
    is_stopping: Callable[[], bool] = staticmethod(lambda: False)  # whether the server is being stopped
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _refused = False
    _address = ""
    _idle_since = 0.0

    @classmethod
    def with_limits(
        cls,
        most_connections: int,
        patience: float,
        is_stopping: Callable[[], bool] = lambda: False,
        proxies: Iterable[str] = (),
    ) -> type[CarefulProtocol]:
        """The same with other limits."""
        limits = {"most_connections": most_connections, "patience": patience, "is_stopping": staticmethod(is_stopping)}
        limits |= {"most_per_address": -(-most_connections // 4), "proxies": frozenset(proxies), "by_address": {}}
        return type(cls.__name__, (cls,), limits)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = str(self.client[0]) if self.client else ""
        self._idle_since = self.loop.time()
        own = self.by_address.setdefault(self._address, set())
        own.add(self)
        crowd = own
        if len(self.connections) > self.most_connections:
            crowd = max(self.by_address.values(), key=len)
        elif len(own) <= self.most_per_address or self._address in self.proxies:
            crowd = set()
        if crowd and not self._close_longest_idle(crowd):
            self._refuse(ProblemError(429, "too many connections are open; close some, or try again", Retry_After="1"))
        else:
            self._wait(LAST_CALL if self.is_stopping() else self.patience)

    def _close_longest_idle(self, crowd: set[CarefulProtocol]) -> bool:
        """Close the connection that has waited longest without a whole request; whether there is one."""
        idle = [each for each in crowd if each is not self and each._can_be_closed and not each.transport.is_closing()]
        if not idle:
            return False
        min(idle, key=lambda each: each._idle_since).transport.abort()
        return True

    @property
    def _can_be_closed(self) -> bool:
        """Whether no whole request has come, and of a part of one nothing lately."""
        return self.is_idle or (self.cycle.more_body and self.loop.time() > self._idle_since + SENDING_GRACE)

    def connection_lost(self, exc: Exception | None) -> None:
        own = self.by_address.get(self._address, set())
        own.discard(self)
        if not own:
            self.by_address.pop(self._address, None)
        self._wait(None)
        self._read_again()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def _read_again(self) -> None:
        """The client reads its answer, or is gone."""
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = None

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._idle_since = self.loop.time()
            super().data_received(data)

    def handle_events(self) -> None:
        if self._refused or self.transport.is_closing():
            return
        super().handle_events()
        if not self.is_idle and not self._refused:
            self._wait(None)
            if self.is_stopping():
                self._make_last()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.is_idle:
            return
        self._idle_since = self.loop.time()
        unread = self.conn.our_state is h11.DONE and self.conn.their_state is not h11.DONE
        self._wait(LINGER if unread else self.patience + self.timeout_keep_alive)

    def send_400_response(self, msg: str) -> None:
        if not self.is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self._refuse(ProblemError(400, "this is not a request in HTTP/1.1, or its headers are too long"), linger=LINGER)

    def shutdown(self) -> None:
        if self.is_idle:
            self._wait(LAST_CALL)
        else:
            self._make_last()

    def _make_last(self) -> None:
        """Close the connection after the answer that is being made, and say so in it."""
        self.cycle.keep_alive = False
        if CLOSE_HEADER not in self.cycle.default_headers:
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]

    def _wait(self, seconds: float | None) -> None:
        """Close the connection after some time without a request; None: wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        if (self.is_idle or self._refused) and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, problem: ProblemError, *, linger: float = 0.0) -> None:
        """Answer at once, whatever was sent, and close; not before the client does, or some seconds later."""
        answer = respond(problem)
        head = f"HTTP/1.1 {problem.status} {problem.to_dict()['title']}\r\nConnection: close\r\n".encode()
        head += b"".join(b"%s: %s\r\n" % pair for pair in answer.raw_headers)
        self.transport.write(head + b"\r\n" + bytes(answer.body))
        if linger and self.transport.can_write_eof():  # to close with something unread would take back the answer
            self._refused = True
            self.transport.write_eof()
            self._wait(linger)
        else:
            self.transport.close()


BACKLOG = 2048
SPARE = 64  # file descriptors for everything that is no connection


class Server(uvicorn.Server):
    """uvicorn's server, which ends without an error when it is asked to."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; what is under way is finished first, unless Ctrl-C is pressed again."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is under way, and what was connected and not looked at yet; then end."""
        loop = asyncio.get_running_loop()
        late = [
            loop.create_task(loop.connect_accepted_socket(self._protocol, client))
            for listener in sockets or []
            for client in _pending(listener)
        ]
        await super().shutdown(sockets)
        await asyncio.gather(*late, return_exceptions=True)

    def _protocol(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        found: asyncio.Protocol = made(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return found


def _pending(listener: socket.socket) -> Iterator[socket.socket]:
    """Clients that the system has connected, and nobody has accepted."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # there are no more
            return
        client.setblocking(False)
        yield client


def run_server(
    model: ServedModel | Models,
    settings: ServeSettings,
    *,
    announce: Callable[[str], None] = lambda address: None,
    listener: socket.socket | None = None,
    keeper: Any | None = None,
) -> None:
    """Serve one or several models until SIGTERM or Ctrl-C.

    Args:
        model: What is served, as `create_app` takes it.
        settings: How.
        announce: Told the address once the server can be reached.
        listener: Listens already, if several processes share a port.
        keeper: As `create_app` takes it.

    Raises:
        SettingError: if the port cannot be opened.
    """
    app = create_app(model, settings, keeper=keeper)
    listener = listener or open_port(settings.host, settings.port)
    config = uvicorn.Config(
        app,
        http=CarefulProtocol.with_limits(
            _connections(settings.connections),
            settings.timeout,
            lambda: server.should_exit,
            settings.trusted_proxies,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=round(settings.drain),
    )
    server = Server(config)

    app.state.service.is_draining = lambda: server.should_exit
    app.state.service.on_ready = lambda: announce(address_of(*listener.getsockname()))
    with listener:
        server.run(sockets=[listener])


def open_port(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with ",
            Parameter("port", "N"),
            ", or 0 for a free one",
        ) from error


def address_of(host: str, port: int, *_: object) -> str:
    """What to type into a browser."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host.strip("[]"))
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _connections(wanted: int) -> int:
    """As many as are wanted and the system allows."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE:
        soft = wanted + SPARE if hard == resource.RLIM_INFINITY else min(hard, wanted + SPARE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - SPARE))


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
