"""A model on a real Ray cluster of two nodes: replicas that answer as one, and what happens when something is lost."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calprompt.cli import main
from calprompt.errors import CalpromptError, SettingError
from calprompt.executors.ray import describe_driver
from calprompt.serve.loading import load_served
from calprompt.serve.on_ray import Replicas, check_machine, folder_digest, run_on_ray
from calprompt.serve.settings import ServeSettings
from executors import clusters
from export import exported
from serve.serving import Running

TOKEN = "a-token-of-tests"
LIMIT = 300.0  # seconds for whatever is started, on a machine that has much else to do
CLIENTS = 3


@pytest.fixture(scope="module")
def cluster() -> Any:
    started = clusters.cluster()
    clusters.restore(started)
    return started


@pytest.fixture(scope="module")
def feedback(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feedback") / "feedback.db"


@pytest.fixture(scope="module")
def service(cluster: Any, feedback: Path) -> Iterator[Running]:
    """The command, with a replica on each node."""
    with running(cluster, feedback) as found:
        yield found


@contextmanager
def running(cluster: Any, feedback: Path) -> Iterator[Running]:
    process = start(cluster, feedback)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"/#token={TOKEN} (stop with Ctrl-C)" in line, line
        yield Running(process, int(line.partition("127.0.0.1:")[2].partition("/")[0]), TOKEN)
    finally:
        stop(process)


def start(cluster: Any, feedback: Path) -> subprocess.Popen[str]:
    words = ["serve", exported.folder(), "--ray", cluster.address, "--replicas", 2, "--port", 0, "--show-token"]
    words += ["--feedback", feedback]
    return subprocess.Popen(
        [sys.executable, "-m", "calprompt", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CALPROMPT_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[str]) -> int:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode


@cache
def pictures() -> list[bytes]:
    found = []
    for pixels in exported.pictures():
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        found.append(stream.getvalue())
    return found


def replicas() -> dict[int, str]:
    """Processes of the replicas that run, and their nodes."""
    import ray

    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    details = ray.get(controller.get_serve_instance_details.remote(), timeout=LIMIT)
    found = details["applications"]["calprompt"]["deployments"]["model"]["replicas"]
    return {each["pid"]: each["node_id"] for each in found if each["state"] == "RUNNING"}


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < end, "it did not come back"
        time.sleep(0.5)


class Load:
    """Clients that send images all the time, and repeat what got no answer; a context manager."""

    def __init__(self, service: Running) -> None:
        self.service = service
        self.answered = 0
        self.repeated: list[Any] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        """Until so many more images are answered."""
        wanted = self.answered + more
        wait_until(lambda: self.answered >= wanted)

    def _send(self, number: int) -> None:
        while not self._over.is_set():
            try:
                found: Any = self.service.request(
                    "POST", "/v1/predict", pictures()[number % len(pictures())], {"Content-Type": "image/png"}, LIMIT
                )
            except OSError as error:
                self.repeated.append(error)
                continue
            if found.status == 200:
                self.answered += 1
                number += 1
            else:
                self.repeated.append(found)
                time.sleep(0.2)


def test_replicas_answer_as_the_model_does(service: Running) -> None:
    assert len(set(replicas().values())) == 2, "there is a replica on each node"
    model = load_served(exported.folder(), threads=1)
    expected = exported.loaded().predict_proba(exported.pictures())
    for picture, probabilities in zip(pictures()[:8], expected, strict=False):
        found = service.predict(picture)
        assert found.status == 200, found.body
        assert found.json["class_name"] == model.labels[int(probabilities.argmax())]
        np.testing.assert_allclose(found.json["probability"], probabilities.max(), atol=1e-4)
    found = service.request("GET", "/v1/model")
    assert (found.json["fingerprint"], found.json["name"]) == (model.fingerprint, model.name)
    refused = Running(service.process, service.port).predict(pictures()[0])
    assert refused.status == 401
    assert "needs a key" in refused.detail
    assert service.predict(b"no image").status == 422
    assert service.request("GET", "/v1/model", headers={"Host": "elsewhere.example"}).status == 403


def test_replicas_share_feedback_that_survives_a_killed_actor(service: Running, feedback: Path) -> None:
    def send(answer: dict[str, Any]) -> Any:
        body = json.dumps({"id": answer["id"], "right": True})
        return service.request("POST", "/v1/feedback", body, {"Content-Type": "application/json"}, LIMIT)

    def watches() -> list[Any]:
        found = [service.request("GET", "/v1/watch", timeout=LIMIT).json for _ in range(8)]
        assert {each.pop("images")["status"] for each in found} == {"unwatched"}, "it was exported without images"
        return found

    answers = [service.predict(picture).json for picture in pictures()]
    sent = [send(answer) for answer in answers[:-1]]
    assert {found.status for found in sent} == {200}, "a receipt is good for any replica"
    counted = sum(found.json["counted"] for found in sent)
    assert counted > 0
    again = send(answers[0])
    assert again.status == 409
    assert again.detail == "there is feedback on this answer already; undo it first to change it"
    before = watches()
    assert [each["feedback"] for each in before] == 8 * [counted]

    import ray

    keeper = ray.get_actor("feedback", namespace="calprompt")
    lost = ray.get(keeper.pid.remote(), timeout=LIMIT)
    os.kill(lost, signal.SIGKILL)
    assert watches() == before
    assert ray.get(keeper.pid.remote(), timeout=LIMIT) != lost
    assert send(answers[0]).status == 409
    assert [send(answers[-1]).status for _ in range(2)] == [200, 409]
    assert feedback.stat().st_size > 0


@pytest.mark.long
def test_killed_replica_is_replaced_under_load(service: Running) -> None:
    lost = min(replicas())
    with Load(service) as load:
        load.wait_for(20)
        assert not load.repeated
        os.kill(lost, signal.SIGKILL)
        load.wait_for(20)  # the other one goes on
        wait_until(lambda: len(replicas().keys() - {lost}) == 2)
        load.wait_for(20)
    assert len(load.repeated) <= 2 * CLIENTS, load.repeated


@pytest.mark.long
def test_lost_node_and_a_new_one_under_load(service: Running, cluster: Any) -> None:
    with Load(service) as load:
        load.wait_for(20)
        clusters.lose_node(cluster)
        load.wait_for(20)
        wait_until(lambda: len(replicas()) == 1)
    clusters.restore(cluster)
    wait_until(lambda: len(replicas()) == 2)
    assert service.predict(pictures()[0]).status == 200
    assert len(load.repeated) <= 2 * CLIENTS, load.repeated


def test_second_command_on_a_cluster_is_refused(service: Running, cluster: Any) -> None:
    with pytest.raises(CalpromptError, match="another calprompt serve uses this cluster"):
        run_on_ray(exported.folder(), ServeSettings(port=0), address=cluster.address)
    assert service.predict(pictures()[0]).status == 200


def test_stopped_command_leaves_nothing(service: Running) -> None:
    """Comes last of those that use the service."""
    service.process.terminate()
    assert service.process.stdout is not None
    assert service.process.stdout.read() == "", "Ray's own words about lost nodes are not for users"
    assert stop(service.process) == 0
    assert_nothing_is_left(service.port)


@pytest.mark.long
def test_next_command_removes_what_a_killed_one_left(cluster: Any, feedback: Path) -> None:
    with running(cluster, feedback) as service:
        service.process.kill()
        service.process.wait()
        assert service.predict(pictures()[0]).status == 200, "the replicas do without it"
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingError, match="cannot listen on 127"):
            run_on_ray(exported.folder(), ServeSettings(port=taken.getsockname()[1]), address=cluster.address)
        assert_nothing_is_left(service.port)


@pytest.mark.long
def test_autoscaled_replicas_without_a_feedback_file_leave_nothing(cluster: Any) -> None:
    answers: list[Any] = []

    def announce(address: str, what: str) -> None:
        answers.append((what, int(address.rstrip("/").rpartition(":")[2])))
        answers.append(Running(None, answers[0][1]).predict(pictures()[0]))  # type: ignore[arg-type]
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    run_on_ray(
        exported.folder(),
        ServeSettings(port=0),
        address=cluster.address,
        replicas=Replicas(1, 2),
        announce=announce,
    )
    (what, port), answer = answers
    assert what == f"{exported.folder().name}, {len(exported.CLASSES)} classes"
    assert answer.status == 200
    assert_nothing_is_left(port)


def is_closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    except ConnectionRefusedError:
        return True
    return False


def assert_nothing_is_left(port: int) -> None:
    import ray

    for name, namespace in (("feedback", "calprompt"), ("SERVE_CONTROLLER_ACTOR", "serve")):
        with pytest.raises(ValueError, match="Failed to look up actor"):
            ray.get_actor(name, namespace)
    wait_until(lambda: is_closed(port))  # the proxy may take a moment to end
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 2)


def test_too_little_room_for_replicas(cluster: Any) -> None:
    with pytest.raises(CalpromptError, match="room for 2 replicas that need 1 CPU each, and 3 are asked for"):
        run_on_ray(exported.folder(), ServeSettings(), address=cluster.address, replicas=Replicas(3, 4))


def test_machine_with_another_model_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(exported.folder(), tmp_path / "model")
    digest = folder_digest(folder)
    driver = describe_driver(1)
    check_machine(driver, str(folder), digest)
    (folder / ".lock").touch()
    check_machine(driver, str(folder), digest)
    (folder / "model.json").write_text("{}")
    with pytest.raises(CalpromptError, match=r"has another model in .*model; put it on storage that all machines"):
        check_machine(driver, str(folder), digest)
    with pytest.raises(CalpromptError, match=r"does not have the folder .*nowhere; put it on storage"):
        check_machine(driver, str(tmp_path / "nowhere"), digest)
    with pytest.raises(CalpromptError, match=r"calprompt .* instead of 99"):
        check_machine({**driver, "versions": {"calprompt": "99"}}, str(folder), digest)


@pytest.mark.parametrize("text", ["0", "2:1", "many", "1:2:3", "-1", ""])
def test_invalid_numbers_of_replicas_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="replicas must be a number of 1 or more, or MIN:MAX"):
        Replicas.parse(text)


def test_invalid_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(exported.folder())
    for words, expected in (
        (["--replicas", "2"], "replicas are those on a Ray cluster; give its address with --ray ADDRESS"),
        (["--ray", "auto", "--replicas", "none"], "--replicas must be a number of 1 or more"),
        (["--ray", "auto", "--device", "cuda:1"], "--device must be cuda or cpu on a Ray cluster"),
        (["--ray", "auto", "--host", "0.0.0.0"], "so keys are needed: --token-file FILE"),
        (["--ray", "nobody"], "Ray's address must be auto, local or HOST:PORT"),
    ):
        assert main(["serve", folder, *words]) == 2
        assert expected in capsys.readouterr().err
