"""Connections: how many there may be, how long a client may take, and how they end when the server is stopped.

uvicorn's protocol, with limits that it does not have:

    a connection too many          429 at once
    headers that do not come       closed
    the rest of a refused body     taken and forgotten for a few seconds, so that its sender hears why
    SIGTERM                        a request that is on its way is still answered; then its connection is closed
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from calprompt.serve.problems import MEDIA_TYPE, ProblemError

LINGER = 5.0  # seconds for the rest of a body that was refused
LAST_CALL = 0.3  # seconds in which a request may still come when the server is being stopped


class CarefulProtocol(H11Protocol):
    """A connection of a client.

    Attributes:
        most_connections: That may be open at a time.
        patience: Seconds for the headers of a request.
    """

    most_connections: ClassVar[int] = 1000
    patience: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None
    _ending = False

    @classmethod
    def with_limits(cls, most_connections: int, patience: float) -> type[CarefulProtocol]:
        """The same with other limits."""
        return type(cls.__name__, (cls,), {"most_connections": most_connections, "patience": patience})

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(
                ProblemError(
                    429,
                    f"{self.most_connections} connections are open already; close some, or try again",
                    Retry_After="1",
                )
            )
        else:
            self._wait(self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        if self.transport.is_closing():
            return
        super().handle_events()
        if not self.is_idle:
            self._wait(None)
            if self._ending:
                self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.is_idle:
            return
        unread = self.conn.our_state is h11.DONE and self.conn.their_state is not h11.DONE
        self._wait(LINGER if unread else self.patience + self.timeout_keep_alive)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ProblemError(400, "this is not a request in HTTP/1.1, or its headers are too long"))

    def shutdown(self) -> None:
        if self.is_idle:
            self._ending = True
            self._wait(LAST_CALL)
        else:
            super().shutdown()

    def _wait(self, seconds: float | None) -> None:
        """Close the connection after some time without a request; None: wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        if self.is_idle and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, problem: ProblemError) -> None:
        """Answer at once, whatever was sent, and close."""
        body = problem.body()
        head: dict[str, Any] = {"Content-Type": MEDIA_TYPE, "Content-Length": len(body), "Connection": "close"}
        lines = [f"HTTP/1.1 {problem.status} {problem.to_dict()['title']}"]
        lines += [f"{name}: {value}" for name, value in {**head, **problem.headers}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
