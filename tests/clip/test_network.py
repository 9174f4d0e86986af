"""Hosts that cannot be reached, do not answer or refuse: the user is told which it was, in seconds."""

import http.server
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import huggingface_hub
import pytest
from huggingface_hub.utils import RepositoryNotFoundError

from calprompt.clip import sources
from calprompt.errors import BackboneError


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no ban on downloads; and time enough for whoever answers, however busy the machine is."""
    for name in (sources.OFFLINE, "no_proxy", "NO_PROXY", *sources.PROXIES, *map(str.lower, sources.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # which keeps the proxies it was made with
    monkeypatch.setattr(sources, "TIMEOUT", 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, direct: None) -> None:
    """For hosts that never answer."""
    monkeypatch.setattr(sources, "TIMEOUT", 0.5)


@contextmanager
def serving(status: int) -> Iterator[str]:
    """The address of a server that answers everything with one status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_CONNECT = do_HEAD  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()  # a thread that goes on with a closed socket would never rest


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def never() -> None:
    raise AssertionError("nothing may be downloaded")


@pytest.fixture(params=["hub", "address"])
def file_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """An address on a host, of the hub or of somebody else: they are asked by different libraries."""

    def address(host: str) -> str:
        if request.param == "hub":
            monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", host)
        return f"{host}/me/tiny"

    return address


@pytest.mark.parametrize("status", [200, 401, 404, 501])
def test_a_host_that_answers_is_asked_for_the_file(file_of: Callable[[str], str], status: int) -> None:
    with serving(status) as host:
        assert sources.attempt(file_of(host), lambda: "file") == ("file", "")


def test_a_server_in_trouble_is_not_asked_again_and_again(file_of: Callable[[str], str]) -> None:
    with serving(503) as host:
        assert sources.attempt(file_of(host), never) == (None, "127.0.0.1 answers with the error 503")


@pytest.mark.usefixtures("impatient")
def test_a_firewall_that_swallows_everything_does_not_keep_anyone_waiting(file_of: Callable[[str], str]) -> None:
    start = time.monotonic()
    with silent() as host:
        reason = sources.attempt(file_of(host), never)[1]
    assert reason == "127.0.0.1 takes connections but does not answer within 0.5 s"
    assert time.monotonic() - start < 5


@pytest.mark.usefixtures("impatient")
def test_a_name_that_takes_for_ever_to_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(sources.socket, "create_connection", lambda *_, **__: done.wait(60))
    start = time.monotonic()
    reason = sources.attempt("https://example.org/tiny.pt", never)[1]
    done.set()
    assert reason == "no connection to example.org within 0.5 s"
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("written", ["http://127.0.0.1:{}", "127.0.0.1:{}"])
def test_the_proxy_is_what_is_named(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", written.format(port))
    reason = sources.attempt("https://example.org/tiny.pt", never)[1]
    assert reason == "no connection to the proxy 127.0.0.1 (Connection refused)"
    monkeypatch.setenv("no_proxy", "localhost")
    reason = sources.attempt(f"https://localhost:{port}/tiny.pt", never)[1]
    assert reason == "no connection to localhost (Connection refused)"


def test_a_proxy_that_refuses_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(403) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        reason = sources.attempt("https://example.org/tiny.pt", never)[1]
    assert reason.startswith("no answer from example.org through the proxy 127.0.0.1 (Tunnel connection failed: 403")


def test_failed_downloads_are_reported_briefly() -> None:
    def fail(error: Exception) -> str:
        def download() -> None:
            raise error

        with serving(200) as host:
            return sources.attempt(f"{host}/tiny.pt", download)[1]

    assert fail(OSError(28, "No space left on device")) == "No space left on device"
    assert fail(RuntimeError("first line\nand more")) == "first line"
    assert fail(RuntimeError()) == "RuntimeError"
    wrapped = FileNotFoundError("Failed to download file")  # as open_clip does
    wrapped.__context__ = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    assert fail(wrapped) == "there is no such repository, or it is private"
    with pytest.raises(BackboneError, match="no weights"):
        fail(BackboneError("no weights in it"))


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_a_ban_on_downloads_is_respected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(sources.OFFLINE, value)
    assert sources.attempt("https://example.org/tiny.pt", never)[1].startswith("HF_HUB_OFFLINE is set")
