"""Downloads that fail fast with a short reason.

Libraries for downloads try again and again, or wait for ever, where a firewall swallows what is sent. So a host is
asked for a sign of life first: a connection, and an answer of any kind.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, get_session

from calprompt.errors import CalpromptError

T = TypeVar("T")
TIMEOUT = 5.0  # seconds to wait for a connection, and as many for an answer
SERVER_ERRORS = (500, 502, 503, 504)  # answers of a server or proxy that is out of order
UNREACHED = "no connection to"  # how the reason begins if nothing was reached
OFFLINE = "HF_HUB_OFFLINE"
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_IN_WORDS: tuple[tuple[type[Exception], str], ...] = (  # the first that fits
    (GatedRepoError, "its owner has to let you in; ask on its page, then log in with 'hf auth login'"),
    (RepositoryNotFoundError, "there is no such repository, or it is private"),
    (RevisionNotFoundError, "the repository has no such revision"),
)


def attempt(address: str, download: Callable[[], T]) -> tuple[T | None, str]:
    """Download something, if its host can be reached."""
    reason = f"{OFFLINE} is set, which forbids downloads" if is_offline() else obstacle(address)
    if reason:
        return None, reason
    try:
        return download(), ""
    except CalpromptError:
        raise
    except Exception as error:  # servers and libraries raise many kinds
        return None, in_words(error)


def is_offline() -> bool:
    """Whether the user has forbidden downloads, before Python started or since."""
    now = os.environ.get(OFFLINE, "0").upper() not in ("", "0", "NO", "OFF", "FALSE")
    return now or bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def proxy_variables() -> list[str]:
    """Environment variables that name a proxy, such as HTTPS_PROXY."""
    return [name for name in PROXIES if os.environ.get(name) or os.environ.get(name.lower())]


def obstacle(address: str) -> str:
    """Why the host of an address cannot be reached; empty if it answers at all."""
    host = urllib.parse.urlsplit(address)
    proxy = _proxy(host)
    gate = proxy or host
    where = f"the proxy {gate.hostname}" if proxy else str(gate.hostname)
    port = gate.port or (80 if gate.scheme == "http" else 443)
    try:
        _in_time(lambda: socket.create_connection((gate.hostname or "", port), timeout=TIMEOUT).close())
    except TimeoutError:
        return f"{UNREACHED} {where} within {TIMEOUT:g} s"
    except OSError as error:
        return f"{UNREACHED} {where} ({error.strerror or error})"
    try:
        status = _in_time(lambda: _status(address))
    except TimeoutError:
        return f"{where} takes connections but does not answer within {TIMEOUT:g} s"
    except Exception as error:  # of whichever library the hub's client is made with
        return f"no answer from {host.hostname}{f' through {where}' if proxy else ''} ({in_words(error)})"
    return f"{where} answers with the error {status}" if status in SERVER_ERRORS else ""


def in_words(error: BaseException) -> str:
    """The reason why a download failed, on one line."""
    chain: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in chain:
        chain.append(inner)
        inner = inner.__cause__ or inner.__context__
    for kind, words in _IN_WORDS:
        if any(isinstance(each, kind) for each in chain):
            return words
    reason = error.reason if type(error) is urllib.error.URLError else error  # its subclass has a status to tell
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return (text.strip() or type(error).__name__).splitlines()[0]


def _proxy(host: urllib.parse.SplitResult) -> urllib.parse.SplitResult | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(host.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host.hostname or ""):
        return None
    return urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _status(address: str) -> int:
    """The status that a host answers with, asked in the way in which the download asks."""
    longer = 2 * TIMEOUT  # so that it is `_in_time` that ends it
    if address.startswith(huggingface_hub.constants.ENDPOINT):
        return int(get_session().head(address, timeout=longer).status_code)
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=longer) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def _in_time(call: Callable[[], T]) -> T:
    """The result or error of a call, or TimeoutError if it takes too long.

    Looking up a host's name has no time limit of its own, and a host with many addresses is tried at each of them. A
    call that takes too long is left behind in its thread, which does not keep the process from ending.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = answers.get(timeout=TIMEOUT)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value
