"""Limits of the queue, of memory and of connections; uploads stay in memory; torch is only there if it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from classifier import fits
from serve import serving
from serve.hostile_requests import get, request
from serve.serving import END, Answer, part, picture


def test_a_full_queue_says_when_to_come_back() -> None:
    with serving.server(queue=4, batch=2, delay=0.6) as served:
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda _: served.predict(), range(24)))
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) == {200, 429}
        assert statuses[200] >= 3
        for answer in answers:
            if answer.status == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert "send it again later" in answer.detail
        served.check_health()


def test_a_batch_takes_as_many_places_as_it_has_images() -> None:
    with serving.server(queue=4) as served:
        images = [part("image", picture(), f"{n}.png") for n in range(5)]
        found = served.form("/v1/predict/batch", b"".join(images) + END)
        assert found.status == 429
        assert "of 4 images" in found.detail
        assert served.form("/v1/predict/batch", b"".join(images[:3]) + END).status == 200


def test_memory_of_all_bodies_together_is_bounded() -> None:
    large = picture("BMP", (800, 800))  # 1.9 MB

    def send(form: bool) -> Answer:
        return served.form("/v1/predict", part("image", large, "a.bmp") + END) if form else served.predict(large)

    with serving.server(queue=1000, delay=0.2, max_memory="8MB", timeout=10.0) as served:
        served.check_health()
        before = serving.memory(served.pid)
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(send, [False, True] * 48))
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) == {200, 429}
        assert all("memory" in answer.detail for answer in answers if answer.status == 429)
        assert serving.memory(served.pid, "VmHWM") - before < 60, (
            "32 bodies of 2 MB would be twice that with their copies"
        )
        served.check_health()


def test_an_announced_length_reserves_no_memory() -> None:
    """Bodies that are announced, or of which one byte has come, keep nobody from being answered."""
    with serving.server(max_memory="8MB", timeout=20.0, queue=16) as served:
        with suppress(OSError):
            clients = []
            for number in range(150):
                client = served.connect()
                clients.append(client)
                client.sendall(request(length="1900000") + b"x" * (number % 2))
        start = time.monotonic()
        served.check_health()
        assert time.monotonic() - start < 10
        for client in clients:
            client.close()


def test_bodies_that_fill_the_memory_make_room_for_faster_ones() -> None:
    with serving.server(max_memory="8MB", max_body="2MB", timeout=60.0) as served:
        clients = [served.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request(length="1999999") + bytes(1_900_000))
        assert serving.wait_until(lambda: served.predict().status == 200)
        time.sleep(1.2)  # so long no sender is called slow
        with served.connect_from("127.0.0.2") as other:
            body = picture("BMP", (810, 800))
            other.sendall(request("/v1/predict", body))
            found = serving.read_answer(other)
        assert found is not None
        assert found.status == 200
        with served.connect_from("127.0.0.2") as other:
            body = part("image", picture("BMP", (810, 800)), "a.bmp") + END  # takes twice its size
            other.sendall(request("/v1/predict", body, kind="multipart/form-data; boundary=b"))
            found = serving.read_answer(other)
        assert found is not None
        assert found.status == 200, found.body
        answers = []
        for client in clients:
            client.settimeout(0.5)
            with suppress(TimeoutError):
                answers.append(serving.read_answer(client))
        assert {answer.status for answer in answers if answer is not None} <= {429}
        assert answers, "one of the slow senders was dropped"
        for client in clients:
            client.close()


def test_the_memory_of_large_forms_is_given_back() -> None:
    """A cycle that holds an upload would keep it until the next full collection, which may be hours away."""
    with serving.server(max_body="20MB", max_memory="1GB", timeout=60.0, decode_timeout=20.0) as served:
        served.check_health()
        before = serving.memory(served.pid)
        body = part("image", bytes(19_000_000), "a.bin") + END
        with ThreadPoolExecutor(6) as pool:
            found = {answer.status for answer in pool.map(lambda _: served.form("/v1/predict", body), range(6))}
        assert found <= {422, 429}, "429: on a busy machine they take so long that some have to wait"
        assert serving.wait_until(lambda: serving.memory(served.pid) < 1.2 * before), (
            before,
            serving.memory(served.pid),
        )


def test_a_request_with_two_lengths_is_refused_and_closed() -> None:
    with serving.server() as served, served.connect() as client:
        chunk = b"3\r\nabc\r\n0\r\n\r\n"
        client.sendall(request("/v1/predict", chunk, "Transfer-Encoding: chunked", length="1"))
        found = serving.read_answer(client)
        assert found is not None
        assert found.status == 400
        assert "not both" in found.detail
        assert found.headers["connection"] == "close"
        assert client.recv(1) == b""


def test_idle_connections_are_closed_when_others_need_room() -> None:
    """A thousand half-sent headers: an address has a quarter of the places, and who asks finds one."""
    with serving.server(connections=1000, timeout=60.0) as served:
        served.check_health()
        before = serving.memory(served.pid)
        clients = [served.connect(60) for _ in range(1000)]
        try:
            for client in clients:
                with suppress(OSError):
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            assert serving.wait_until(lambda: served.request("GET", "/health").status == 200)
            served.check_health()
            with served.connect_from("127.0.0.2") as other:
                other.sendall(get("/health"))
                found = serving.read_answer(other)
                assert found is not None
                assert found.status == 200
            assert serving.memory(served.pid) - before < 60
        finally:
            for client in clients:
                client.close()
        served.check_health()


def test_nothing_that_is_uploaded_is_written_to_disk(tmp_path: Path) -> None:
    body = b"".join(part("image", picture("BMP", (350, 350), seed), f"{seed}.bmp") for seed in range(5)) + END
    data = request("/v1/predict/batch", body, kind="multipart/form-data; boundary=b")
    with serving.server(environment={"TMPDIR": str(tmp_path)}, decoders=1, delay=0.3) as served:
        written = _written(served.pid)
        with served.connect() as client:
            client.sendall(data[: len(data) // 2])
            time.sleep(0.3)
            assert _files(served.pid) == []
            client.sendall(data[len(data) // 2 :])
            for _ in range(5):
                assert all(_files(pid) == [] for pid in [served.pid, *served.decoders()])
                assert list(tmp_path.iterdir()) == []
                time.sleep(0.05)
            found = serving.read_answer(client)
        assert found is not None
        assert found.status == 200
        assert len(found.json["answers"]) == 5
        assert _written(served.pid) == written
        assert list(tmp_path.iterdir()) == []


def _files(pid: int) -> list[str]:
    """Ordinary files that a process has open and can write to."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(each)
            flags = Path(f"/proc/{pid}/fdinfo/{each.name}").read_text().split("flags:")[1].split()[0]
            if target.startswith("/") and not target.startswith("/dev/") and int(flags, 8) & 3:
                found.append(target)
    return found


def _written(pid: int) -> int:
    """Bytes that a process has sent to a disk."""
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.split("write_bytes:")[1].split()[0])


def test_an_exported_model_is_served_without_torch(tmp_path: Path) -> None:
    fits.fitted().export(tmp_path / "exported")
    script = """
import http.client, sys, threading
from calprompt.serve.loading import load_served
from calprompt.serve.server import run_server
from calprompt.serve.settings import ServeSettings

def ask(address):
    connection = http.client.HTTPConnection(address.split("/")[2])
    connection.request("POST", "/v1/predict", open(sys.argv[2], "rb").read(), {"Content-Type": "image/png"})
    response = connection.getresponse()
    print(response.status, "torch" in sys.modules, response.read()[:40])
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)

announce = lambda address: threading.Thread(target=ask, args=[address]).start()
run_server(load_served(sys.argv[1]), ServeSettings(port=0, decoders=1), announce=announce)
print("torch" in sys.modules)
"""
    (tmp_path / "a.png").write_bytes(picture())
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "exported"), str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200 False"), done.stdout + done.stderr
    assert done.stdout.endswith("False\n")
