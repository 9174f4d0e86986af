"""What every request passes: who may ask, from which page, and what goes with every answer.

size      of the headers, in number and bytes
host      known by a name of this server's own, so that no foreign site can reach it under a name of its own
origin    a page of another site may not make a browser mark answers
token     if there is one, on everything but the page itself and /health
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from itertools import chain

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calprompt.serve.problems import MEDIA_TYPE, ProblemError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
OPEN = ("/", "/static/", "/health", "/ready")  # need no token: they hold nothing of the model
SAFE = ("GET", "HEAD", "OPTIONS")
MOST_HEADERS = 100
HEAD_BYTES = 64 * 1024  # of the address and all headers
LOCAL = ("localhost", "127.0.0.1", "[::1]")

Observe = Callable[[str, int, float], None]


class Guard:
    """Middleware around the whole app.

    Args:
        app: What is guarded.
        token: That clients need; None: none.
        hosts: Names that it may be asked by; empty: any, for a server behind a proxy that checks them.
        observe: Told route, status and seconds of every request.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str], observe: Observe) -> None:
        self.app, self.token, self.observe = app, token, observe
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            problem = self._problem(scope)
            if problem is None:
                await self.app(scope, receive, watched)
            else:
                await respond(problem, watched)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.observe(route, status, time.perf_counter() - start)

    def _problem(self, scope: Scope) -> ProblemError | None:
        headers, path = Headers(scope=scope), scope["path"]
        size = len(path) + len(scope["query_string"]) + sum(map(len, chain(*scope["headers"])))
        if len(scope["headers"]) > MOST_HEADERS or size > HEAD_BYTES:
            return ProblemError(
                431, f"the address and headers must have {HEAD_BYTES // 1024} KB and {MOST_HEADERS} lines at most"
            )
        host = headers.get("host", "").lower()
        if self.hosts and _name(host) not in self.hosts:
            return ProblemError(
                403,
                f"this server is not known as {host!r}; start it with allowed_hosts={_name(host) or 'NAME'} if it is",
            )
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in SAFE and origin.lower().partition("://")[2] != host:
            return ProblemError(403, "a page of another site may not use this server")
        if self.token is None or path in OPEN or path.startswith(OPEN[1]):
            return None
        given = headers.get("authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return None
        return ProblemError(
            401, "this server needs a token: send 'Authorization: Bearer TOKEN'", WWW_Authenticate="Bearer"
        )


async def respond(problem: ProblemError, send: Send) -> None:
    """Send a problem as the whole response."""
    body = problem.body()
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **problem.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def known_hosts(host: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Names that browsers may know a server by.

    >>> known_hosts("127.0.0.1"), known_hosts("10.0.0.5", ["models.example"])
    (('localhost', '127.0.0.1', '[::1]'), ('localhost', '127.0.0.1', '[::1]', '10.0.0.5', 'models.example'))
    """
    own = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return tuple(dict.fromkeys([*LOCAL, own, *others]))


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
