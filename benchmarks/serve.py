"""Load on a server of this machine: latency, throughput, processor time and memory, beside a plain loop of the library.

    calprompt fit photos --out model && calprompt export model --out exported
    python benchmarks/serve.py --model model --exported exported --images photos
    python benchmarks/serve.py --exported exported --images photos --clients 1 8 --seconds 5 --total 2000

"one at a time" calls predict_proba of the library with the bytes of one image after the other, in a process that does
nothing else: no network, no queue, no second process that decodes. With torch the library fills up its batches, so one
image takes the time of a batch there; the server takes as many images through the model as there are.

Clients keep their connections and send the next image when they have the answer to the last one; they share a process,
beside those of the server and its decoders. "cpu ms" is the processor time of an image, in the server and its decoders
together; it says more than the clock on a machine that others use. "batch" is the mean number of images that went
through the model together. Memory is what the server has resident, without decoders.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served import serving

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MARKS = (1_000, 5_000, 10_000)  # requests after which memory is looked at
GIGABYTE = 10**9
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: "


def read_images(folder: Path, most: int = 200) -> list[bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        sys.exit(f"there are no images in {folder}")
    return [path.read_bytes() for path in paths[:most]]


def percentile(seconds: list[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def one_at_a_time(model: Path, images: list[bytes], seconds: float) -> dict[str, float]:
    """Images that the library alone answers, one after the other."""
    from calprompt import Classifier
    from calprompt.export.onnx_predictor import OnnxPredictor
    from calprompt.files import EXPORT, folder_kind

    predictor: Any = OnnxPredictor(model) if folder_kind(model) == EXPORT else Classifier.load(model)
    for data in images[:5]:
        predictor.predict_proba([data])
    times: list[float] = []
    used, end = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        predictor.predict_proba([images[len(times) % len(images)]])
        times.append(time.perf_counter() - start)
    cpu = (time.process_time() - used) / len(times)
    return {
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "rate": len(times) / sum(times),
        "cpu": 1000 * cpu,
    }


@dataclass
class Load:
    """Clients of one process.

    Attributes:
        port: Of the server.
        pid: Of the server.
        images: That are sent in turn.
        most: Requests at most.
        seconds: At most.
    """

    port: int
    pid: int
    images: list[bytes]
    most: int
    seconds: float
    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: dict[int, float] = field(default_factory=dict)
    sent: int = 0

    async def run(self, clients: int) -> dict[str, Any]:
        start, used = time.perf_counter(), processor_seconds(self.pid)
        self.end = start + self.seconds
        await asyncio.gather(*(self._client() for _ in range(clients)))
        total, used = time.perf_counter() - start, processor_seconds(self.pid) - used
        return {
            "p50": percentile(self.times, 0.5),
            "p99": percentile(self.times, 0.99),
            "rate": len(self.times) / total,
            "cpu": 1000 * used / len(self.times),
            "requests": len(self.times),
            "errors": sum(count for status, count in self.statuses.items() if status != 200),
            "memory": self.memory,
        }

    async def _client(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while self.sent < self.most and time.perf_counter() < self.end:
            data = self.images[self.sent % len(self.images)]
            self.sent += 1
            start = time.perf_counter()
            writer.write(HEAD + str(len(data)).encode() + b"\r\n\r\n" + data)
            answer = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", answer)
            await reader.readexactly(int(found[1]) if found else 0)
            self.times.append(time.perf_counter() - start)
            self.statuses[int(answer[9:12])] += 1
            if len(self.times) in MARKS:
                self.memory[len(self.times)] = resident(self.pid)
        writer.close()


def resident(pid: int) -> float:
    """Megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor_seconds(pid: int) -> float:
    """That a process and those it started have used."""
    found = 0
    for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        words = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        found += int(words[11]) + int(words[12])
    return found / os.sysconf("SC_CLK_TCK")


def child(work: str, *args: object) -> Any:
    """What a process of its own measured."""
    command = [sys.executable, __file__, "--child", work, *map(str, args)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_child(work: str, args: list[str]) -> Any:
    if work == "loop":
        return one_at_a_time(Path(args[0]), read_images(Path(args[1])), float(args[2]))
    port, pid, folder, clients, most, seconds = args
    load = Load(int(port), int(pid), read_images(Path(folder)), int(most), float(seconds))
    return asyncio.run(load.run(int(clients)))


def mean_batch(port: int) -> tuple[float, float]:
    """Images and batches so far."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
    total, count = (re.search(rf"calprompt_batch_images_{name} (\S+)", text) for name in ("sum", "count"))
    assert total is not None
    assert count is not None
    return float(total[1]), float(count[1])


def gigabyte(port: int, pid: int) -> str:
    """What becomes of a body of a gigabyte whose client does not listen while it sends."""
    before, block, sent = resident(pid), b"100000\r\n" + bytes(1 << 20) + b"\r\n", 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        most = before
        try:
            while sent < GIGABYTE:
                client.sendall(block)
                sent += 1 << 20
                most = max(most, resident(pid))
        except OSError:
            pass
        answer = client.recv(1 << 16).decode()
    status = answer.split(" ", 2)[1] if answer else "none"
    return f"answer {status} after {sent / 1e6:.0f} MB were sent; memory grew by {most - before:.1f} MB meanwhile"


def row(name: str, found: dict[str, Any], baseline: float, **more: str) -> str:
    times = f"{found['p50']:8.1f} {found['p99']:8.1f} {found['rate']:9.1f} {found['rate'] / baseline:7.2f}x"
    times += f" {found['cpu']:7.1f}"
    return f"  {name:16s} {times}" + "".join(f"  {key} {value}" for key, value in more.items())


def measure(model: Path, args: argparse.Namespace) -> None:
    heads = f"{'p50 ms':>8s} {'p99 ms':>8s} {'images/s':>9s} {'ratio':>8s} {'cpu ms':>7s}"
    print(f"{model}, load {os.getloadavg()[0]:.1f}\n  {'':16s} {heads}", flush=True)
    loop = child("loop", model, args.images, args.seconds)
    print(row("one at a time", loop, loop["rate"]), flush=True)
    with serving(model, *args.extra) as (process, port):
        pid = process.pid
        where = (port, pid, args.images)
        child("load", *where, 8, 200, 30)  # warm
        for clients in args.clients:
            images, batches = mean_batch(port)
            found = child("load", *where, clients, args.total, args.seconds)
            now = mean_batch(port)
            batch = f"{(now[0] - images) / max(1, now[1] - batches):.1f}"
            name = f"{clients} client{'s' if clients > 1 else ''}"
            print(row(name, found, loop["rate"], batch=batch, errors=str(found["errors"])), flush=True)
        if args.total >= MARKS[0]:
            found = child("load", *where, 8, args.total, 1e6)
            memory = ", ".join(f"{value:.1f} MB after {int(count):,}" for count, value in found["memory"].items())
            print(f"  {found['requests']:,} requests: {found['errors']} errors; {memory}", flush=True)
        if args.gigabyte:
            print(f"  a gigabyte: {gigabyte(port, pid)}", flush=True)
    print(f"  load at the end {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a fitted model")
    parser.add_argument("--exported", type=Path, help="folder of an exported model")
    parser.add_argument("--images", type=Path, help="folder of images; the first 200 are sent")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row (default: 20)")
    parser.add_argument("--total", type=int, default=10_000, help="requests of a row at most, and of the memory's row")
    parser.add_argument("--gigabyte", action="store_true", help="send a body of a gigabyte too")
    parser.add_argument("--extra", nargs="*", default=[], help="flags of calprompt serve, such as --extra=--decoders=2")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_child(args.child[0], args.child[1:])))
        return
    models = [model for model in (args.model, args.exported) if model is not None]
    if not models or args.images is None:
        parser.error("give --images, and --model or --exported or both")
    for model in models:
        measure(model, args)


if __name__ == "__main__":
    main()
