"""Whatever is sent, the sender is told what is wrong with it, and the server answers the next one as before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import quote

import pytest

from serve import hostile_images, serving
from serve.hostile_requests import CLOSED, FORM, Case, get, request, requests
from serve.serving import END, Answer, Running, part, picture

IMAGES = {
    **dict(hostile_images.cut()),
    **dict(hostile_images.wrong_magic()),
    **dict(hostile_images.bombs()),
    **hostile_images.NO_IMAGES,
}
HARMLESS = dict(hostile_images.harmless())
REQUESTS = {case.name: case for case in requests()}
GROWTH = 40.0  # MB by which the server may grow: 8 MB of bodies, a copy of each while it is read, and the allocator
DECODER = 120.0  # MB of a decoder at most: Python, Pillow, and two pictures of a million pixels


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with serving.server() as found:
        for _ in range(20):
            found.check_health()
        yield found


@pytest.fixture
def unharmed(served: Running) -> Iterator[Running]:
    """The server; afterwards it answers as before, and neither it nor its decoders have grown."""
    before = serving.memory(served.pid)
    yield served
    served.check_health()
    assert serving.memory(served.pid) < before + GROWTH
    assert all(serving.memory(pid, "VmHWM") < DECODER for pid in served.decoders())


def test_there_are_over_three_hundred_hostile_requests() -> None:
    assert len(IMAGES) + len(REQUESTS) > 300


@pytest.mark.parametrize("name", IMAGES)
def test_a_hostile_image_is_refused_with_a_reason(unharmed: Running, name: str) -> None:
    found = unharmed.predict(IMAGES[name])
    assert found.status == 422, found.body
    assert found.detail.startswith("the image cannot be read: ")


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_images_that_look_dangerous_are_answered(unharmed: Running, name: str) -> None:
    found = unharmed.predict(HARMLESS[name], X_Image_Name="a.png")
    assert found.status == 200, found.body
    assert "alert" not in found.body.decode()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_and_harms_nobody(unharmed: Running, name: str) -> None:
    case: Case = REQUESTS[name]
    found = unharmed.raw(case.data, end=case.end)
    if found is None:
        assert CLOSED in case.statuses
        return
    assert found.status in case.statuses, found.body
    assert found.detail
    assert found.headers.get("x-content-type-options", "nosniff") == "nosniff"


def test_an_image_that_takes_too_long_is_given_up(unharmed: Running) -> None:
    start = time.monotonic()
    found = unharmed.predict(hostile_images.slow_jpeg())
    assert found.status == 422, found.body
    assert "takes longer than 3 s" in found.detail
    assert time.monotonic() - start < serving.PATIENCE


def test_a_batch_of_good_and_bad_images_is_answered_one_by_one(unharmed: Running) -> None:
    bad = [IMAGES[name] for name in ("PNG cut at 50%", "PNG, declared 100000 by 100000", "html", "zeros")]
    body = b"".join(part("image", data, f"{n}") for n, data in enumerate([picture(), *bad, picture("JPEG")])) + END
    found = unharmed.form("/v1/predict/batch", body)
    assert found.status == 200
    answers = found.json["answers"]
    assert ["problem" in each for each in answers] == [False, True, True, True, True, False]
    assert [each["name"] for each in answers] == ["0", "1", "2", "3", "4", "5"]


NAMES = {
    "../../../etc/passwd": "passwd",
    "..\\..\\windows\\system32\\config": "config",
    "C:\\Users\\me\\frog.png": "frog.png",
    "/etc/shadow": "shadow",
    "frog.png\0.exe": "frog.png.exe",
    "\r\nSet-Cookie: a=b": "Set-Cookie: a=b",
    "<script>alert(1)<": "<script>alert(1)<",
    "\u202egnp.exe": "gnp.exe",
    "..": "..",
    "": "image",
    "a" * 3000: "a" * 200,
    "🐸 frøg.png": "🐸 frøg.png",
}


@pytest.mark.parametrize("name", NAMES)
def test_image_names_are_shown_as_text(unharmed: Running, name: str) -> None:
    found = unharmed.predict(X_Image_Name=quote(name))
    assert found.status == 200, found.body
    assert found.json["name"] == NAMES[name]
    assert found.headers["content-type"] == "application/json"
    assert "set-cookie" not in found.headers
    if not set(name) & set('\0\r\n"'):
        found = unharmed.form("/v1/predict", part("image", picture(), name.replace("\\", "\\\\")) + END)
        assert found.json["name"] == NAMES[name]


def test_class_names_are_shown_as_text(unharmed: Running) -> None:
    names = ["<img src=x onerror=alert(1)>", "'; DROP TABLE classes; --", "猫", "../../etc/passwd"]
    body = b"".join(part("classes", name.encode()) for name in names) + part("image", picture(), "a.png") + END
    found = unharmed.form("/v1/predict", body)
    assert found.status == 200, found.body
    assert sorted(each["class_name"] for each in found.json["probabilities"]) == sorted(names)
    assert found.json["promised"] is False


def test_slow_clients_are_given_up_while_others_are_answered(unharmed: Running) -> None:
    def nothing() -> Answer | None:
        with unharmed.connect() as client:
            return serving.read_answer(client)

    def slow_headers() -> Answer | None:
        with unharmed.connect() as client:
            with suppress(OSError):
                for byte in get("/health", "X-Slow: " + "y" * 500):
                    client.send(bytes([byte]))
                    time.sleep(0.05)
            return serving.read_answer(client)

    def slow_second_request() -> Answer | None:
        with unharmed.connect() as client:
            client.sendall(get("/health"))
            assert serving.read_answer(client) is not None
            with suppress(OSError):
                for byte in get("/health", "X-Slow: " + "y" * 500):
                    client.send(bytes([byte]))
                    time.sleep(0.05)
            return serving.read_answer(client)

    def slow_body() -> Answer | None:
        with unharmed.connect() as client:
            client.sendall(request(length="1000"))
            with suppress(OSError):
                for _ in range(1000):
                    client.send(b"a")
                    time.sleep(0.05)
                    if time.monotonic() - start > 3.5:
                        break
            return serving.read_answer(client)

    def no_body() -> Answer | None:
        with unharmed.connect() as client:
            client.sendall(request(length="1000"))
            return serving.read_answer(client)

    start = time.monotonic()
    works: list[Callable[[], Answer | None]] = [nothing, slow_headers, slow_second_request, slow_body, no_body]
    with ThreadPoolExecutor(len(works)) as pool:
        waiting = [pool.submit(work) for work in works]
        while not all(each.done() for each in waiting):
            unharmed.check_health()
            time.sleep(0.2)
    found = [each.result() for each in waiting]
    assert found[:3] == [None, None, None]
    assert [each.status for each in found[3:] if each is not None] == [408, 408]
    assert all("not complete after 3 s" in each.detail for each in found[3:] if each is not None)
    assert time.monotonic() - start < serving.PATIENCE


def test_a_client_that_reads_nothing_is_closed(unharmed: Running) -> None:
    with unharmed.connect() as client:
        client.setsockopt(serving.socket.SOL_SOCKET, serving.socket.SO_RCVBUF, 4096)
        client.settimeout(1)
        with suppress(OSError):
            for _ in range(20_000):
                client.sendall(get("/static/page.js"))
        unharmed.check_health()
        time.sleep(4)
        client.settimeout(serving.PATIENCE)
        with suppress(ConnectionResetError):  # what was on its way can still be read; then it ends
            while client.recv(1 << 20):
                pass


def test_many_connections_that_send_nothing(unharmed: Running) -> None:
    clients = [unharmed.connect() for _ in range(600)]
    try:
        unharmed.check_health()
    finally:
        for client in clients:
            client.close()


def test_a_body_that_never_ends_is_refused_while_it_is_sent(unharmed: Running) -> None:
    block = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    refused = threading.Event()
    with unharmed.connect() as client:
        found: list[Answer | None] = []

        def read() -> None:
            found.append(serving.read_answer(client))
            refused.set()

        reader = threading.Thread(target=read)
        reader.start()
        client.sendall(request("/v1/predict", b"", "Transfer-Encoding: chunked"))
        sent = 0
        with suppress(OSError):
            while sent < 64 and not refused.is_set():
                client.sendall(block)
                sent += 1
        reader.join()
    assert found[0] is not None
    assert found[0].status == 413
    assert sent < 64


def test_receipts_count_once_and_only_from_their_server(unharmed: Running) -> None:
    def send(receipt: str, right: bool = True) -> Answer:
        body = json.dumps({"id": receipt, "right": right})
        return unharmed.request("POST", "/v1/feedback", body, {"Content-Type": "application/json"})

    own = unharmed.predict().json["id"]
    payload, _, signature = own.partition(".")
    other = unharmed.predict(picture("JPEG")).json["id"]
    assert send(f"{payload}.{other.partition('.')[2]}").status == 422
    assert send(f"{payload[:-2]}AA.{signature}").status == 422
    assert send(own[:-1] + ("A" if own[-1] != "A" else "B")).status == 422
    assert send(own + " ").status == 422
    assert send(own).status == 200
    again = send(own, False)
    assert again.status == 409
    assert "feedback on this answer already" in again.detail
    with serving.server() as stranger:
        foreign = stranger.predict().json["id"]
    assert send(foreign).status == 422


def test_without_the_token_nothing_is_disclosed() -> None:
    wrong = [
        "",
        "secret-token",
        "Bearer",
        "Bearer ",
        "Bearer secret-toke",
        "Bearer secret-token2",
        "Basic secret-token",
    ]
    wrong += ["bearer  secret-token", "Bearer sécret", "Bearer " + "a" * 5000, "Bearer secret-token, Bearer x"]
    with serving.server(token="secret-token") as served:
        assert served.request("GET", "/v1/model").status == 200  # who had the key before is not kept out by guesses
        for given in wrong:
            for data in (
                get("/v1/model?token=secret-token", f"Authorization: {given}"),
                get("/metrics", f"Authorization: {given}"),
                get("/openapi.json", f"Authorization: {given}"),
                request("/v1/predict", picture(), f"Authorization: {given}"),
                request("/v1/feedback", part("id", b"a") + END, f"Authorization: {given}", kind=FORM),
            ):
                found = served.raw(data)
                assert found is not None
                assert found.status in (401, 429), (given, found.body)  # guesses are limited
                assert "www-authenticate" in found.headers or "retry-after" in found.headers
                assert "secret" not in found.detail
        assert served.request("GET", "/v1/model").status == 200
        served.check_health()
