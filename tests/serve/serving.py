"""A real server on a free port of this machine, in a process of its own, and clients that can misbehave.

Its model is made of numpy alone, so that it starts within a second; `delay` makes every batch take that long. In the
processes of pytest-xdist, it is a copy of a process that has imported the server.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import nursery
from calprompt.errors import CalpromptError

CODE = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from serve import serving; serving.main()"
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
SIZE = 32
PATIENCE = 60.0  # seconds for whatever takes none on a machine that has nothing else to do
SMALL = {  # settings under which a test can reach every limit
    "port": 0,
    "decoders": 1,
    "max_body": "2MB",
    "max_memory": "8MB",
    "max_pixels": 2.0,  # a million in formats other than JPEG
    "max_images": 8,
    "timeout": 3.0,
    "decode_timeout": 3.0,
    "drain": 20.0,
}


def numpy_model(delay: float = 0.0, labels: tuple[str, ...] = NAMES, seed: int = 0) -> Any:
    """A model that looks at the mean colour of an image; needs no torch."""
    from dataclasses import replace

    from calprompt.promises import DecisionRule, ImageWatch
    from calprompt.serve.served_model import ServedModel, View

    directions = np.random.default_rng(seed).normal(size=(3, len(labels)))

    def predict(levels: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        time.sleep(delay)
        logits = (levels.mean(axis=(1, 2)) / 64) @ directions
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return logits, shifted / shifted.sum(axis=1, keepdims=True)

    colours = 45 + np.random.default_rng(1).integers(0, 160, (400, 3))  # of pictures as `picture` makes them
    held_out, others = np.split(colours / 64 @ directions, 2)

    def with_labels(names: tuple[str, ...]) -> ServedModel:
        other = numpy_model(delay, names, seed)
        rule = other.rule.without_promises("classes were edited")
        return replace(other, fingerprint="edited", rule=rule, image_watch=None, not_watched="classes were edited")

    return ServedModel(
        name="colours",
        kind="model",
        fingerprint=f"{seed:x}123456789abcdef",
        labels=labels,
        view=View(SIZE, "bicubic", "shortest", True),
        predict=predict,
        rule=DecisionRule(min_confidence=0.2, target_error=0.1),
        image_watch=ImageWatch.of(held_out, others).fresh_record(),
        with_labels=with_labels,
        fitted_labels=NAMES,
    )


def add_version(folder: Path, seed: int = 0, **more: Any) -> None:
    """A folder that `load_numpy_model` reads."""
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"seed": seed, **more}))


def load_numpy_model(folder: Path, **_: Any) -> Any:
    """Stands in for `load_served`."""
    found = json.loads((folder / "model.json").read_text())
    if "error" in found:
        raise CalpromptError(found["error"])
    return numpy_model(found.get("delay", 0.0), tuple(found.get("labels", NAMES)), found["seed"])


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: Of the response.
        headers: By name in lower case.
        body: All of it.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """The sentence of a problem; fails if the response is none."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.headers, self.body[:300])
        found = self.json
        assert found["status"] == self.status
        assert found["title"]
        assert len(found["detail"]) > 10
        return str(found["detail"])


@dataclass
class Running:
    """A server that runs.

    Attributes:
        process: Of the server.
        port: That it listens on.
        token: That it needs.
    """

    process: nursery.Process
    port: int
    token: str | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def connect_from(self, address: str, timeout: float = 20.0) -> socket.socket:
        """A connection of another client: all of 127.0.0.0/8 is this machine."""
        return socket.create_connection(("127.0.0.1", self.port), timeout, (address, 0))

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """One well-formed request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                connection.request(method, path, body, sent)
            return _answer(connection.sock)
        finally:
            connection.close()

    def predict(self, data: bytes | None = None, query: str = "", **headers: str) -> Answer:
        sent = {"Content-Type": "image/png", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.request("POST", f"/v1/predict{query}", picture() if data is None else data, sent)

    def form(self, path: str, parts: bytes, boundary: str = "b") -> Answer:
        return self.request("POST", path, parts, {"Content-Type": f"multipart/form-data; boundary={boundary}"})

    def raw(self, data: bytes, *, timeout: float = PATIENCE, end: bool = False) -> Answer | None:
        """What bytes are answered with; None if the connection is closed without an answer.

        Args:
            data: Sent as they are.
            timeout: Seconds for the answer.
            end: Say that nothing more will come.
        """
        with self.connect(timeout) as client:
            with suppress(OSError):  # refused before all of it was sent
                client.sendall(data)
                if end:
                    client.shutdown(socket.SHUT_WR)
            return read_answer(client)

    def check_health(self) -> None:
        """A normal image gets a normal answer."""
        found = self.predict()
        assert found.status == 200, found.body
        assert found.json["class_name"] in NAMES
        assert self.process.poll() is None

    def decoders(self) -> list[int]:
        """Processes that the server started."""
        return children(self.pid)


def read_answer(client: socket.socket) -> Answer | None:
    """The next answer on a connection; None if it is closed without one."""
    try:
        return _answer(client)
    except (http.client.BadStatusLine, ConnectionResetError):
        return None


def _answer(client: socket.socket) -> Answer:
    response = http.client.HTTPResponse(client)
    response.begin()
    body = response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


@contextmanager
def server(
    *,
    delay: float = 0.0,
    models: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: IO[str] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """A server with the settings `SMALL` and these, stopped at the end; what it logs goes to `log`."""
    place = None if models is None else str(models)
    given = json.dumps({"settings": {**SMALL, **settings}, "delay": delay, "models": place})
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
    errors = log or subprocess.DEVNULL
    process: nursery.Process
    if ready := os.environ.get("CALPROMPT_TEST_SERVERS"):
        process = nursery.Copy(ready, CODE, given, env=alone, stderr=errors)
    else:
        command = [sys.executable, "-c", CODE, given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=alone)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), f"the server did not start: {address!r}"
        yield Running(process, int(address.rstrip("/").rpartition(":")[2]), settings.get("token"))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


@cache
def picture(
    kind: str = "PNG", size: tuple[int, int] = (50, 40), seed: int = 1, brightest: int = 160, **options: Any
) -> bytes:
    """An image file of coloured noise."""
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 90, (size[1], size[0], 3)) + noise.integers(0, brightest, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, kind, **options)
    return stream.getvalue()


def part(name: str, data: bytes, filename: str | None = None, boundary: str = "b") -> bytes:
    """A part of a form; `end_of_form` comes after the last one."""
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode("utf-8", "surrogateescape") + data + b"\r\n"


END = b"--b--\r\n"


def children(pid: int) -> list[int]:
    """Processes that a process started and that run."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(each) for each in found.split()]


def memory(pid: int, kind: str = "VmRSS") -> float:
    """Megabytes that a process has in memory; VmHWM: at most so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_read(client: socket.socket) -> None:
    """Wait until the server has read everything that was sent to it."""
    here, there = (f":{each[1]:04X}" for each in (client.getsockname(), client.getpeername()))

    def is_read() -> bool:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        return any(row[1].endswith(there) and row[2].endswith(here) and row[4].endswith(":00000000") for row in rows)

    assert wait_until(is_read)


def processor_seconds(pid: int) -> float:
    """That a process has computed for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Any, seconds: float = PATIENCE) -> bool:
    """Whether something comes to be true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def main() -> None:
    from calprompt.serve import models
    from calprompt.serve.server import run_server
    from calprompt.serve.settings import ServeSettings

    given = json.loads(sys.argv[1])
    models.load_served = load_numpy_model
    settings = ServeSettings(**{name: _setting(value) for name, value in given["settings"].items()})

    def announce(address: str) -> None:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()

    served = models.Models(given["models"]) if given["models"] else numpy_model(given["delay"])
    run_server(served, settings, announce=announce)


def _setting(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
