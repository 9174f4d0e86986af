"""A model served on a Ray cluster that loses a replica, the keeper of feedback and a node, under load.

    python benchmarks/serve_ray.py MODEL IMAGES
    python benchmarks/serve_ray.py model photos --seconds 20 --clients 4

Starts a cluster of two nodes here, with room for one replica each, and `calprompt serve --ray` with two replicas on it.
Clients send images without a pause, and repeat a request that got no answer. Meanwhile the process of a replica is
killed, then that of the actor which holds the feedback, then a whole node. For each it is counted how many images were
answered and repeated, what the longest time without any answer was, and when there were two replicas again.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_cluster import MEMORY, start

HUGE = 200  # megabytes of a request that is refused
PATIENCE = 600.0  # seconds for anything to come back


def add_node(cluster: Any, attempts: int = 3) -> None:
    """A further node; Ray gives up after 30 seconds, which may be too early on a busy machine."""
    for attempt in range(attempts):
        try:
            cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        except Exception:
            if attempt == attempts - 1:
                raise
        else:
            return


@dataclass
class Load:
    """Clients that send images without a pause.

    Attributes:
        port: Of the service.
        images: Files to send.
        answered: When each answer came, and the seconds it took.
        repeated: Requests that were sent again, by the reason.
    """

    port: int
    images: list[bytes]
    answered: list[tuple[float, float]] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, clients: int) -> Load:
        """Start sending."""
        self.threads = [threading.Thread(target=self._send, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop after what is under way."""
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _send(self, number: int) -> None:
        while not self.over.is_set():
            begin = time.monotonic()
            while (problem := self._once(self.images[number % len(self.images)])) is not None:
                self.repeated[problem] = self.repeated.get(problem, 0) + 1
                time.sleep(0.2)
            self.answered.append((time.monotonic(), time.monotonic() - begin))
            number += 1

    def _once(self, image: bytes) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/predict", image, {"Content-Type": "image/png"})
            response = connection.getresponse()
            response.read()
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()
        return None if response.status == 200 else f"status {response.status}"


def replica_pids() -> dict[int, str]:
    """Processes of the replicas that run, with their nodes."""
    import ray

    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    details = ray.get(controller.get_serve_instance_details.remote())
    replicas = details["applications"]["calprompt"]["deployments"]["model"]["replicas"]
    return {each["pid"]: each["node_id"] for each in replicas if each["state"] == "RUNNING"}


def wait_for(what: Callable[[], bool]) -> float:
    """Seconds until something is the case."""
    begin = time.monotonic()
    while not what():
        assert time.monotonic() - begin < PATIENCE, "it did not come back"
        time.sleep(0.5)
    return time.monotonic() - begin


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    """The JSON that the service answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    kind = "image/png" if isinstance(body, bytes) else "application/json"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": kind})
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return found


def report(name: str, load: Load, begin: float, back: str) -> None:
    """A line on what clients saw since some time."""
    times = [begin, *sorted(end for end, _ in load.answered if end >= begin), time.monotonic()]
    gap = max(after - before for before, after in itertools.pairwise(times))
    seconds = sorted(seconds for end, seconds in load.answered if end >= begin)
    middle, high = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    words = ", ".join(f"{count} ({reason})" for reason, count in sorted(load.repeated.items())) or "none"
    print(
        f"{name}: {len(seconds)} answered in {times[-1] - begin:.0f} s, median {middle * 1000:.0f} ms, 95 % "
        f"{high * 1000:.0f} ms; repeated: {words}; longest without an answer {gap:.1f} s; {back}",
        flush=True,
    )


def measure(cluster: Any, port: int, images: list[bytes], args: argparse.Namespace) -> None:
    """Lose one thing after another under load."""
    import ray

    def period(name: str, harm: Callable[[], Any], replicas: int, without: int = 0) -> None:
        load = Load(port, images).start(args.clients)
        try:
            time.sleep(args.seconds / 2)
            begin = time.monotonic()
            harm()
            seconds = wait_for(lambda: len(replica_pids().keys() - {without}) == replicas)
            time.sleep(args.seconds / 2)
        finally:
            load.stop()
        report(name, load, begin, f"{replicas} replicas after {seconds:.0f} s")

    def give_feedback(image: bytes) -> None:
        answer = call(port, "POST", "/v1/predict", image)
        call(port, "POST", "/v1/feedback", {"id": answer["id"], "right": True})

    period("calm", lambda: None, 2)
    victim = min(replica_pids())
    period("a replica killed", lambda: os.kill(victim, signal.SIGKILL), 2, victim)
    for image in images[:10]:
        give_feedback(image)
    before = call(port, "GET", "/v1/watch")
    keeper = ray.get_actor("feedback", namespace="calprompt")
    lost = ray.get(keeper.pid.remote())
    os.kill(lost, signal.SIGKILL)
    after = call(port, "GET", "/v1/watch")
    now = ray.get(keeper.pid.remote())
    same = "the same" if after == before else "DIFFERENT"
    print(
        f"the keeper of feedback killed (process {lost}, now {now}): {before['feedback']} answers "
        f"with feedback before, {same} after it"
    )
    (node,) = cluster.worker_nodes
    period("a node killed", lambda: cluster.remove_node(node, allow_graceful=False), 1)
    period("a node added", lambda: add_node(cluster), 2)


def send_too_much(port: int, folder: str) -> None:
    """A request far over the limit whose size is not announced: what it costs the proxy."""
    proxies = [path for path in Path("/proc").glob("[0-9]*") if _is_proxy(path, folder)]
    before = [_megabytes(path, "VmRSS") for path in proxies]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begin = time.monotonic()
    try:
        pieces = (b"x" * 1_000_000 for _ in range(HUGE))
        connection.request("POST", "/v1/predict", pieces, {"Content-Type": "image/png"}, encode_chunked=True)
        status = str(connection.getresponse().status)
    except OSError as error:
        status = type(error).__name__
    finally:
        connection.close()
    after = [_megabytes(path, "VmHWM") for path in proxies]
    print(
        f"a request of {HUGE} MB: {status} after {time.monotonic() - begin:.1f} s; the proxy had {max(before):.0f} "
        f"MB before, {max(after):.0f} MB at most"
    )


def _is_proxy(process: Path, folder: str) -> bool:
    try:
        ours = f"RAY_TMPDIR={folder}".encode() in (process / "environ").read_bytes()
        return ours and (process / "cmdline").read_bytes().startswith(b"ray::ProxyActor")
    except OSError:
        return False


def _megabytes(process: Path, kind: str) -> float:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(f"{kind}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="folder of a fitted or exported model")
    parser.add_argument("images", metavar="IMAGES", help="folder with PNG files")
    parser.add_argument("--seconds", type=float, default=20, help="of load before and after each loss together")
    parser.add_argument("--clients", type=int, default=4, help="that send at a time")
    args = parser.parse_args()
    images = [path.read_bytes() for path in sorted(Path(args.images).rglob("*.png"))[:200]]
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        cluster = start(folder)
        import ray

        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        command = [sys.executable, "-m", "calprompt", "serve", args.model, "--port", "0", "--replicas", "2"]
        command += ["--ray", cluster.address, "--feedback", str(Path(place) / "feedback.db")]
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            print(f"{line.strip()}\n  after {time.monotonic() - begin:.0f} s", flush=True)
            port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
            measure(cluster, port, images, args)
            send_too_much(port, folder)
        finally:
            begin = time.monotonic()
            process.terminate()
            process.wait(120)
            print(f"ended with status {process.returncode} after {time.monotonic() - begin:.0f} s")
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
