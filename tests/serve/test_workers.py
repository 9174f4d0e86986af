"""Several processes on one port: they share feedback and versions, and one that dies is replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nursery
from export import exported
from serve import serving
from serve.serving import PATIENCE, Running, picture

JSON = {"Content-Type": "application/json"}


@contextmanager
def running(place: Path, *options: str) -> Iterator[Running]:
    process = nursery.calprompt("serve", str(place), "--port", "0", "--workers", "2", "--decoders", "1", *options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line
        yield Running(process, int(line.partition("127.0.0.1:")[2].partition("/")[0]))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        if process.stdout is not None:
            process.stdout.close()


def workers(served: Running) -> list[int]:
    """Processes that answer; the first child is multiprocessing's own."""
    return [pid for pid in serving.children(served.pid) if serving.children(pid)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    for version in ("1", "2"):
        shutil.copytree(exported.folder(), found / "things" / version)
    return found


def test_workers_share_feedback_and_switch_together(models: Path, tmp_path: Path) -> None:
    with running(models, "--feedback", str(tmp_path / "feedback")) as served:
        answers = [served.predict(picture(seed=seed)).json for seed in range(12)]
        sent = [
            served.request("POST", "/v1/feedback", json.dumps({"id": each["id"], "right": True}), JSON)
            for each in (*answers, answers[0])
        ]
        assert [each.status for each in sent] == [*12 * [200], 409]
        counted = sum(each.json["counted"] for each in sent[:-1])
        assert {served.request("GET", "/v1/watch").json["feedback"] for _ in range(8)} == {counted}
        for version in ("1", "2", "1"):
            body = json.dumps({"action": "switch", "version": version})
            found = served.request("POST", "/v1/versions", body, JSON)
            assert found.status == 200, found.body
            assert {served.predict().json["model_version"] for _ in range(8)} == {version}

        def asked() -> float:
            lines = served.request("GET", "/metrics").body.decode().splitlines()
            counts = (
                line for line in lines if line.startswith('calprompt_requests_total{route="/v1/predict",status="200"}')
            )
            return sum(float(line.split()[-1]) for line in counts)

        # a worker counts a request after its answer is sent
        assert serving.wait_until(lambda: asked() >= 12 + 3 * 8), "all workers are counted, whichever is asked"
        assert asked() == 12 + 3 * 8


def test_a_worker_that_dies_is_replaced_and_none_outlives_the_command(models: Path) -> None:
    with running(models) as served:
        before = workers(served)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        assert serving.wait_until(lambda: len(workers(served)) == 2 and before[0] not in workers(served))
        found: list[Any] = [served.predict().status for _ in range(8)]
        assert found == 8 * [200]
        left = workers(served)
        served.process.kill()
        served.process.wait()
        assert serving.wait_until(lambda: not any(map(serving.is_running, left)))


def test_what_a_worker_cannot_serve_is_reported_once(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models, tmp_path / "models", ignore=shutil.ignore_patterns("serving.json"))  # of other tests
    (tmp_path / "models" / "things" / "2" / "model.onnx").write_bytes(b"damaged")
    command = [sys.executable, "-m", "calprompt", "serve", str(tmp_path / "models"), "--port", "0", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert done.returncode == 2
    assert "model.onnx" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("model.onnx") == 1
