"""What every request passes: who may ask, from which page, and what goes with every answer.

size      of the headers, in number and bytes
host      known by a name of this server's own, so that no foreign site can reach it under a name of its own
origin    a page of another site may not make a browser ask this server anything
key       if there are keys, for everything but the page itself, /health and /ready; some things need a role

A request whose client is gone is cancelled. Every answer has an id, which stands in the access log too.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calprompt.errors import CalpromptError
from calprompt.files import file_signature
from calprompt.serve.problems import MEDIA_TYPE, ProblemError
from calprompt.serve.settings import ADMIN, FEEDBACK, LOCAL, PREDICT, Key, read_keys

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
PUBLIC = ("/", "/health", "/ready", "/v2/health/live", "/v2/health/ready", "/favicon.ico")  # need no key, nor /static/
ADMINISTERED = ("/v1/watch", "/v1/versions", "/v1/improve")  # reading them needs no role of its own
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITE = ("same-origin", "none")  # values of Sec-Fetch-Site; "none" is an address that a person typed
MOST_HEADERS = 100
HEAD_BYTES = 64 * 1024  # of the address and all headers
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@]*)(:\d{1,5})?")
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
SHOWN_HOST = 80  # characters of a foreign host name in an error
GUESSES, GUESS_SECONDS = 10, 60.0  # wrong keys from one address in a time, before further ones are not looked at
MOST_ADDRESSES = 10_000  # that are remembered
REREAD_SECONDS = 1.0
LOG = logging.getLogger("calprompt.serve")
NAMED_MODEL = re.compile(r"/models/([^/]{1,100})(/.*)?", re.DOTALL)  # the same addresses for each model
INFERENCE = "/v2"  # addresses of the Open Inference Protocol, which has errors of its own
CLIENT_CLOSED = 499  # status in the access log of a request whose client did not wait


@dataclass
class _Address:
    wrong: deque[float] = field(default_factory=deque)
    known: set[bytes] = field(default_factory=set)


class KeyRing:
    """The keys of a server: those that are given, and those of a file, which is read again when it changes."""

    def __init__(self, keys: Iterable[tuple[str, str, str]] = (), path: str | Path | None = None) -> None:
        self._given = tuple(keys)
        self._path = None if path is None else Path(path).expanduser()
        self._read, self._looked = file_signature(self._path or ""), time.monotonic()
        self._keys = self._digests(() if path is None else read_keys(path))
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._keys) or self._path is not None

    def check(self, authorization: str, address: str) -> Key:
        """Whose key it is; a problem if it is nobody's, or if too many wrong ones came from the address.

        An address that sent a key before is not kept out by the wrong keys of others behind it.
        """
        self._reread()
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise ProblemError(
                401, "this server needs a key: send 'Authorization: Bearer TOKEN'", WWW_Authenticate="Bearer"
            )
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        now, known = time.monotonic(), self._addresses.get(address)
        if known is not None and digest not in known.known:
            while known.wrong and known.wrong[0] < now - GUESS_SECONDS:
                known.wrong.popleft()
            if len(known.wrong) >= GUESSES:
                wait = max(1, round(known.wrong[0] + GUESS_SECONDS - now))
                raise ProblemError(429, f"too many wrong keys; try again in {wait} s", Retry_After=str(wait))
        found = next((key for own, key in self._keys.items() if hmac.compare_digest(own, digest)), None)
        entry = self._addresses.setdefault(address, _Address())
        self._addresses.move_to_end(address)
        while len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        if found is None:
            entry.wrong.append(now)
            entry.known.discard(digest)
            raise ProblemError(401, "this key is not known here", WWW_Authenticate="Bearer")
        entry.known.add(digest)
        return found

    def _digests(self, read: Iterable[tuple[str, str, str]]) -> dict[bytes, Key]:
        return {hashlib.sha256(token.encode()).digest(): Key(name, role) for name, role, token in (*self._given, *read)}

    def _reread(self) -> None:
        """Take over the file if it was changed; one that cannot be read changes nothing."""
        if self._path is None or time.monotonic() < self._looked + REREAD_SECONDS:
            return
        self._looked, before = time.monotonic(), self._read
        self._read = file_signature(self._path)
        if self._read == before:
            return
        try:
            self._keys = self._digests(read_keys(self._path))
            for each in self._addresses.values():
                each.known.clear()
        except CalpromptError as error:
            LOG.warning("the keys stay as they were: %s", error)


@dataclass
class Caller:
    """Who asks, and what the access log says of it."""

    id: str  # of the request
    address: str  # of the client
    key: Key = LOCAL  # that it sent
    has_key: bool = False  # whether keys tell clients apart; else addresses do
    notes: dict[str, Any] = field(default_factory=dict)  # for the access log

    @property
    def client(self) -> str:
        """Whom the request counts for."""
        return f"key {self.key.name}" if self.has_key else self.address


def caller_of(request: Request) -> Caller:
    found: Caller = request.scope["caller"]
    return found


Observe = Callable[[Caller, str, str, int, float], None]


class Guard:
    """Middleware around the whole app.

    `hosts` are names that it may be asked by; empty: any, for a server behind a proxy that checks them. `observe` is
    told caller, method, route, status and seconds of every request.
    """

    def __init__(
        self, app: ASGIApp, *, keys: KeyRing, hosts: Iterable[str], proxies: Iterable[str], observe: Observe
    ) -> None:
        self.app, self.keys, self.observe = app, keys, observe
        self.hosts = frozenset(host.lower() for host in hosts)
        self.proxies = frozenset(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), CLIENT_CLOSED
        if named := NAMED_MODEL.fullmatch(scope["path"]):
            scope = {**scope, "path": named[2] or "/", "deployment": named[1]}
        headers = Headers(scope=scope)
        caller = scope["caller"] = self._caller(scope, headers)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
                sent["X-Request-Id"] = caller.id
            await send(message)

        try:
            self._check(scope, headers, caller)
            if named and not named[2]:  # the addresses in the page are relative to its own
                place = f"{quote(named[1], safe='')}/"
                raise ProblemError(308, "the page of a model is at this address with a / behind it", Location=place)
            await run_while_connected(self.app, scope, receive, watched)
        except ProblemError as problem:
            await respond(problem, scope["path"], caller.id)(scope, receive, watched)
        except Exception:
            LOG.exception("request %s: internal error", caller.id)
            started, status = status != CLIENT_CLOSED, 500
            if not started:
                failure = ProblemError(500, "internal error; see the server log")
                await respond(failure, scope["path"], caller.id)(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.observe(caller, scope["method"], route, status, time.perf_counter() - start)

    def _caller(self, scope: Scope, headers: Headers) -> Caller:
        given = headers.get("x-request-id", "")
        address = str((scope.get("client") or ("unknown",))[0])
        if address in self.proxies:
            address = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:64] or address
        return Caller(given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8), address)

    def _check(self, scope: Scope, headers: Headers, caller: Caller) -> None:
        """Raise what is wrong with a request, whatever it asks for; notes its key."""
        path = scope["path"]
        size = len(path) + len(scope["query_string"]) + sum(map(len, chain(*scope["headers"])))
        if len(scope["headers"]) > MOST_HEADERS or size > HEAD_BYTES:
            raise ProblemError(
                431, f"the address and headers exceed the limit of {HEAD_BYTES // 1024} KB and {MOST_HEADERS} lines"
            )
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ProblemError(
                400, "a request has either Content-Length or Transfer-Encoding, not both", Connection="close"
            )
        host = headers.get("host", "").lower()
        if self.hosts and host_name(host) not in self.hosts:
            raise ProblemError(
                403, f"host not allowed: {host[:SHOWN_HOST]!r}; start the server with --allowed-hosts to add a name"
            )
        changes = scope["method"] not in SAFE_METHODS
        origin = headers.get("origin", "").lower().partition("://")[2] if "origin" in headers else host
        is_foreign = path != "/" and headers.get("sec-fetch-site", "none") not in OWN_SITE
        if is_foreign or (changes and origin != host):
            raise ProblemError(403, "pages of other sites may not use this server")
        if not self.keys or path in PUBLIC or path.startswith("/static/"):
            return
        caller.key, caller.has_key = self.keys.check(headers.get("authorization", ""), caller.address), True
        role = FEEDBACK if path.startswith("/v1/feedback") else PREDICT
        if path in ADMINISTERED and changes:
            role = ADMIN
        if not caller.key.may(role):
            raise ProblemError(
                403, f"the key {caller.key.name!r} has the role {caller.key.role}, and this needs the role {role}"
            )


def respond(problem: ProblemError, path: str = "", request_id: str | None = None) -> JSONResponse:
    """A problem as a whole answer."""
    body = problem.to_dict(request_id)
    if path.startswith(INFERENCE):
        return JSONResponse({"error": body["detail"]}, problem.status, headers=problem.headers)
    return JSONResponse(body, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


async def run_while_connected(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an app, and cancel it if its client goes away after it has sent everything."""
    complete = asyncio.Event()

    async def received() -> Message:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            complete.set()
        return message

    async def wait_for_end() -> None:
        await complete.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(app(scope, received, send))
    gone = asyncio.ensure_future(wait_for_end())
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    finally:
        for task in (work, gone):
            task.cancel()


def known_hosts(host: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Names that browsers may know a server by.

    >>> known_hosts("127.0.0.1"), known_hosts("10.0.0.5", ["models.example"])
    (('localhost', '127.0.0.1', '[::1]'), ('localhost', '127.0.0.1', '[::1]', '10.0.0.5', 'models.example'))
    """
    own = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return tuple(dict.fromkeys([*LOCAL_HOSTS, own, *others]))


def host_name(host: str) -> str | None:
    """A host without its port; None if it is not a host.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("[::1]evil.com")
    ('localhost', '[::1]', None)
    """
    found = HOST.fullmatch(host)
    return None if found is None else found[1]
