"""Connections: how many there may be, how long a client may take, and how they end when the server is stopped.

uvicorn's protocol, with limits that it does not have:

    a connection too many          429 at once
    headers that do not come       closed
    answers that are not read      closed
    the rest of a refused body     taken and forgotten for a few seconds, so that its sender hears why
    SIGTERM                        a request that is on its way is still answered, and told that it was the last one
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from calprompt.serve.problems import MEDIA_TYPE, ProblemError

LINGER = 5.0  # seconds for the rest of a body that was refused
LAST_CALL = 0.3  # seconds in which a request may still come when the server is being stopped


class CarefulProtocol(H11Protocol):
    """A connection of a client.

    Attributes:
        most_connections: That may be open at a time.
        patience: Seconds for the headers of a request, and for a client to read an answer.
        is_stopping: Whether the server is being stopped.
    """

    most_connections: ClassVar[int] = 1000
    patience: ClassVar[float] = 30.0
    is_stopping: Callable[[], bool] = staticmethod(lambda: False)
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _refused = False

    @classmethod
    def with_limits(
        cls, most_connections: int, patience: float, is_stopping: Callable[[], bool] = lambda: False
    ) -> type[CarefulProtocol]:
        """The same with other limits."""
        limits = {"most_connections": most_connections, "patience": patience, "is_stopping": staticmethod(is_stopping)}
        return type(cls.__name__, (cls,), limits)

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
            self._wait(LAST_CALL if self.is_stopping() else self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
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
        body = problem.body()
        head: dict[str, Any] = {"Content-Type": MEDIA_TYPE, "Content-Length": len(body), "Connection": "close"}
        lines = [f"HTTP/1.1 {problem.status} {problem.to_dict()['title']}"]
        lines += [f"{name}: {value}" for name, value in {**head, **problem.headers}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if linger and self.transport.can_write_eof():  # to close with something unread would take back the answer
            self._refused = True
            self.transport.write_eof()
            self._wait(linger)
        else:
            self.transport.close()
