"""The process that serves: a port, signals, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from calprompt.errors import Parameter, SettingError
from calprompt.serve.app import create_app
from calprompt.serve.guard import HEAD_BYTES
from calprompt.serve.protocol import CarefulProtocol
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings

BACKLOG = 2048
SPARE = 64  # file descriptors for everything that is no connection


class Server(uvicorn.Server):
    """uvicorn's server, which ends without an error when it is asked to."""

    on_stop: Callable[[], None] = staticmethod(lambda: None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; what is under way is finished first, unless Ctrl-C is pressed again."""
        self.on_stop()
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
    model: ServedModel, settings: ServeSettings, *, announce: Callable[[str], None] = lambda address: None
) -> None:
    """Serve a model until SIGTERM or Ctrl-C.

    Args:
        model: What is served.
        settings: How.
        announce: Told the address once the server can be reached.

    Raises:
        SettingError: if the port cannot be opened.
    """
    app = create_app(model, settings)
    listener = open_port(settings.host, settings.port)
    config = uvicorn.Config(
        app,
        http=CarefulProtocol.with_limits(
            _connections(settings.connections), settings.timeout, lambda: app.state.service.draining
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

    def stop() -> None:
        app.state.service.draining = True

    server.on_stop = stop
    app.state.service.on_ready = lambda: announce(address_of(listener))
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


def address_of(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listener.getsockname()[:2]
    host = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
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
