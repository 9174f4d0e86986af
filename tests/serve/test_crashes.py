"""Processes die: a killed decoder costs the image it held, a stopped server answers what it took, and none are left."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serve import hostile_images, serving
from serve.hostile_requests import get, request
from serve.serving import PATIENCE, Answer, Running, picture

LARGE = picture("JPEG", (990, 990))  # decoded in tens of milliseconds, so that a decoder always holds some


@dataclass
class Load:
    """Clients that send one image after the other until they are told to stop or the server is gone.

    Attributes:
        served: Whom they ask.
        clients: How many.
        keep_alive: Whether a client uses its connection again, as long as it may.
        data: The image.
        answers: Status of every answer, with the time its request was sent.
        lost: Times at which requests were sent that got no answer.
    """

    served: Running
    clients: int = 4
    keep_alive: bool = True
    data: bytes = LARGE
    answers: list[tuple[float, Answer]] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    refused: int = 0

    def __enter__(self) -> Load:
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._run) for _ in range(self.clients)]
        for thread in self.threads:
            thread.start()
        assert serving.wait_until(lambda: len(self.answers) > 2 * self.clients)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _run(self) -> None:
        connection: socket.socket | None = None
        while not self.stop.is_set():
            try:
                connection = connection or self.served.connect()
            except OSError:  # nobody listens any more
                self.refused += 1
                return
            sent = time.monotonic()
            try:
                connection.sendall(request("/v1/predict", self.data))
                found = serving.read_answer(connection)
            except OSError:
                found = None
            if found is None:
                self.lost.append(sent)
            else:
                self.answers.append((sent, found))
            if found is None or not self.keep_alive or found.headers.get("connection") == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def statuses(self) -> Counter[int]:
        return Counter(answer.status for _, answer in self.answers)


def test_a_killed_decoder_loses_only_its_own_image() -> None:
    with serving.server(decoders=2) as served:
        with Load(served, clients=6) as load:
            killed = 0
            for _ in range(3):
                assert serving.wait_until(lambda: len(served.decoders()) == 3)
                seen = len(load.answers)
                os.kill(served.decoders()[0], signal.SIGKILL)
                killed += 1
                assert serving.wait_until(lambda start=seen: len(load.answers) > start + 20)
        statuses = load.statuses()
        assert set(statuses) <= {200, 503}
        assert statuses[503] <= killed, "a decoder holds one image"
        assert not load.lost
        for _, answer in load.answers:
            if answer.status == 503:
                assert answer.headers["retry-after"] == "1"
                assert "send it again" in answer.detail
        assert served.predict(LARGE).status == 200  # the same image again
        assert serving.wait_until(lambda: len(served.decoders()) == 3)


def test_an_image_that_crashes_its_decoder_is_refused_and_others_are_answered() -> None:
    with serving.server(timeout=60.0, decode_timeout=60.0) as served:
        found: list[Answer] = []
        sender = threading.Thread(target=lambda: found.append(served.predict(hostile_images.slow_jpeg())))
        idle = {pid: serving.processor_seconds(pid) for pid in served.decoders()}

        def busy() -> list[int]:
            return [pid for pid, before in idle.items() if serving.processor_seconds(pid) > before + 0.2]

        sender.start()
        assert serving.wait_until(busy)
        os.kill(busy()[0], signal.SIGSEGV)  # as a fault of a library would
        sender.join()
        assert found[0].status == 422
        assert "crashes the decoder" in found[0].detail
        served.check_health()


def test_decoders_come_back_after_all_of_them_were_killed() -> None:
    with serving.server(decoders=2) as served:
        for pid in served.decoders():
            os.kill(pid, signal.SIGKILL)
        statuses = [served.predict().status for _ in range(6)]
        assert set(statuses) <= {200, 503}
        assert statuses[-1] == 200
        assert served.request("GET", "/ready").status == 200


@pytest.mark.parametrize("keep_alive", [True, False], ids=["kept alive", "new connections"])
def test_a_stopped_server_answers_what_it_took(keep_alive: bool) -> None:
    with serving.server(decoders=2, delay=0.05) as served:
        decoders = served.decoders()
        idle = served.connect()
        with Load(served, clients=8, keep_alive=keep_alive, data=picture()) as load:
            stopped = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            served.process.wait(PATIENCE)
        assert served.process.returncode == 0
        assert set(load.statuses()) == {200}
        assert not [sent for sent in load.lost if sent < stopped]
        if keep_alive:
            assert not load.lost, "a last answer says that it is the last one"
        assert any(answer.headers.get("connection") == "close" for _, answer in load.answers)
        assert serving.read_answer(idle) is None
        idle.close()
    assert serving.wait_until(lambda: not any(map(serving.is_running, decoders)))


def test_a_request_that_is_half_sent_when_the_server_is_stopped_is_answered() -> None:
    with serving.server() as served, served.connect() as client:
        data = request("/v1/predict", picture())
        client.sendall(data[: len(data) // 2])
        serving.wait_until_read(client)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        client.sendall(data[len(data) // 2 :])
        found = serving.read_answer(client)
        assert found is not None
        assert found.status == 200
        assert found.headers["connection"] == "close"
        assert served.process.wait(PATIENCE) == 0


def test_a_server_that_is_being_stopped_says_that_it_is_not_ready() -> None:
    with serving.server(delay=3.0) as served, served.connect() as client, served.connect() as other:
        client.sendall(request("/v1/predict", picture()))
        serving.wait_until_read(client)
        served.process.send_signal(signal.SIGTERM)
        statuses = []
        while 503 not in statuses:
            other.sendall(get("/ready"))
            found = serving.read_answer(other)
            assert found is not None
            statuses.append(found.status)
        assert set(statuses) <= {200, 503}
        answer = serving.read_answer(client)
        assert answer is not None
        assert answer.status == 200
        assert served.process.wait(PATIENCE) == 0


def test_a_killed_server_leaves_no_decoder_behind() -> None:
    with serving.server(decoders=2, timeout=60.0, decode_timeout=10.0) as served:
        decoders = served.decoders()
        assert len(decoders) == 3, "one is ready to take the place of another"
        idle = sum(map(serving.processor_seconds, decoders))
        sender = threading.Thread(target=lambda: served.raw(request("/v1/predict", hostile_images.slow_jpeg())))
        sender.start()  # one of them is in the middle of an image that takes long
        assert serving.wait_until(lambda: sum(map(serving.processor_seconds, decoders)) > idle + 0.2)
        served.process.kill()
        served.process.wait()
        sender.join()
        assert serving.wait_until(lambda: not any(map(serving.is_running, decoders)))


def test_ctrl_c_stops_it_without_an_error() -> None:
    with serving.server() as served:
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE) == 0


def test_the_watch_of_images_survives_a_killed_server(tmp_path: Path) -> None:
    """What it had written is there again, copies are known, and an alarm is never lost."""
    path = tmp_path / "watch.json"

    def images(served: Running) -> dict[str, Any]:
        return dict(served.request("GET", "/v1/watch").json["images"])

    with serving.server(watch=str(path)) as served:
        for seed in (1, 2, 3, 3):
            assert served.predict(picture(seed=seed)).status == 200
        assert (images(served)["seen"], images(served)["repeated"]) == (3, 1)
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(PATIENCE)
    assert json.loads(path.read_text())["seen"] == 3, "a server that is stopped writes what it knows"
    with serving.server(watch=str(path)) as served:
        assert served.predict(picture(seed=3)).status == 200
        assert (images(served)["seen"], images(served)["repeated"]) == (3, 2)
        for seed in range(100, 160):
            assert served.predict(picture(seed=seed, brightest=2)).status == 200
            if images(served)["status"] == "changed":
                break
        state = images(served)
        assert "not like those the model was fitted on" in state["sentence"]
        assert "calprompt evaluate" in state["advice"]
        os.kill(served.pid, signal.SIGKILL)
        served.process.wait(PATIENCE)
    with serving.server(watch=str(path)) as served:
        assert images(served) == state
        text = served.request("GET", "/metrics").body.decode()
        assert 'calprompt_images_alike{model="colours"} 0.0' in text
