"""Attacks on a running server, and what an ordinary client notices of each.

    python benchmarks/serve_attacks.py MODEL                 a fitted or exported model
    python benchmarks/serve_attacks.py MODEL --only webp     one attack

Starts `calprompt serve MODEL` on this machine. During each attack, and after it, one ordinary picture after the other
is sent from the same address and timed. Printed are the longest and the median time of these, the first one after the
attack, the memory of the server and its decoders before and after (15 s later at most), answers other than 200 that
the ordinary client got, and tracebacks in the log.
"""

from __future__ import annotations

import argparse
import io
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from PIL import Image

from served import serving

SETTLE = 15.0  # seconds after which memory is to be back
BACK = 1.2  # times what it was


def ordinary() -> bytes:
    """A small picture, as a PNG file."""
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def jpeg_of_fill_bytes(size: int) -> bytes:
    """A JPEG file that is a marker after millions of fill bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 32)).save(stream, "JPEG")
    whole = stream.getvalue()
    return whole[:2] + b"\xff" * size + whole[2:]


def webp(width: int, height: int) -> bytes:
    """A few bytes that are a lossless WebP file of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, "WEBP", lossless=True, quality=0, method=0)
    return stream.getvalue()


def png_of_chunks(count: int) -> bytes:
    """A PNG file with empty chunks."""

    def chunk(kind: bytes, data: bytes = b"") -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(32 * 97)))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"abCd") * count + pixels + chunk(b"IEND")


def ppm_with_comment(size: int) -> bytes:
    """A PPM file with a long comment."""
    return b"P6\n#" + b"a" * size + b"\n32 32 255\n" + bytes(32 * 32 * 3)


def post(path: str, body: bytes, kind: str = "application/octet-stream", length: int | None = None) -> bytes:
    """A request."""
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def form(*images: bytes) -> tuple[bytes, str]:
    """Images as a form, and its type."""
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n%s\r\n' % each for each in images
    ]
    return b"".join(parts) + b"--b--\r\n", "multipart/form-data; boundary=b"


def form_of_headers() -> tuple[bytes, str]:
    """A form whose parts have headers of 15 KB, and its type."""
    head = b'--b\r\nContent-Disposition: form-data; name="top"' + b";a=b" * 3900
    return (head + b"\r\n\r\n1\r\n") * 1090 + b"--b--", "multipart/form-data; boundary=b"


class Target:
    """A server under attack.

    Args:
        process: Of the server.
        port: That it listens on.
    """

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.stop = threading.Event()

    def connect(self, timeout: float = 60.0) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(self, data: bytes) -> tuple[int, float]:
        """Status and seconds of a request; 0 if there is no answer."""
        start = time.perf_counter()
        try:
            with self.connect() as client:
                client.sendall(data)
                line = client.makefile("rb").readline()
        except OSError:
            line = b""
        return int(line.split()[1]) if line else 0, time.perf_counter() - start

    def memory(self) -> float:
        """Megabytes of the server and its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        total = 0.0
        for pid in [self.process.pid, *children]:
            with suppress(OSError, IndexError):  # gone, or a zombie
                text = Path(f"/proc/{pid}/status").read_text()
                total += int(text.split("VmRSS:")[1].split()[0]) / 1024
        return total

    def repeat(self, *requests: bytes, clients: int = 4, seconds: float = 5.0) -> None:
        """Several clients that send requests over and over."""
        end = time.monotonic() + seconds

        def run() -> None:
            while time.monotonic() < end and not self.stop.is_set():
                for each in requests:
                    self.ask(each)

        threads = [threading.Thread(target=run) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def hold(self, data: bytes, count: int, seconds: float = 5.0) -> None:
        """Connections that send this much and wait."""
        clients = []
        for _ in range(count):
            with suppress(OSError):
                client = self.connect(5)
                clients.append(client)
                client.sendall(data)
        self.stop.wait(seconds)
        for client in clients:
            client.close()


def abandoned(target: Target) -> None:
    """Six JPEGs of 9 MB of fill bytes, each socket closed after 0.3 s."""
    data = post("/v1/predict", jpeg_of_fill_bytes(9_000_000))
    for _ in range(6):
        with suppress(OSError), target.connect() as client:
            client.sendall(data)
            time.sleep(0.3)


def classes(target: Target) -> None:
    """A list of 1,000 classes, asked for by a page of another site and then by nobody's page."""
    query = urlencode({"classes": [f"thing number {n}" for n in range(1000)]}, doseq=True)
    head = f"GET /v1/model?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    status, _ = target.ask(f"{head}Sec-Fetch-Site: cross-site\r\n\r\n".encode())
    assert status == 403, status
    target.ask(f"{head}\r\n".encode())


ATTACKS: dict[str, Callable[[Target], None]] = {
    "abandoned": abandoned,
    "webp": lambda target: target.repeat(post("/v1/predict", webp(7000, 7100))),
    "webp-allowed": lambda target: target.repeat(post("/v1/predict", webp(4900, 5100))),
    "jpeg": lambda target: target.repeat(post("/v1/predict", jpeg_of_fill_bytes(5_000_000))),
    "png": lambda target: target.repeat(post("/v1/predict", png_of_chunks(400_000))),
    "ppm": lambda target: target.repeat(post("/v1/predict", ppm_with_comment(5_000_000))),
    "part-headers": lambda target: target.repeat(post("/v1/predict", *form_of_headers())),
    "lengths": lambda target: target.hold(post("/v1/predict", b"", length=20_000_000), 60),
    "one-byte": lambda target: target.hold(post("/v1/predict", b"x", length=1000), 257),
    "headers": lambda target: target.hold(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", 1000),
    "classes": classes,
    "forms": lambda target: target.repeat(post("/v1/predict/batch", *form(bytes(19_900_000))), clients=25, seconds=0.1),
}


def measure(target: Target, attack: Callable[[Target], None]) -> dict[str, float]:
    """What an ordinary client notices of an attack."""
    picture = post("/v1/predict", ordinary())
    for _ in range(5):
        target.ask(picture)
    before = target.memory()
    target.stop.clear()
    attacker = threading.Thread(target=attack, args=[target])
    attacker.start()
    during = []
    while attacker.is_alive():
        during.append(target.ask(picture))
        time.sleep(0.05)
    after = target.ask(picture)
    end = time.monotonic() + SETTLE
    while target.memory() > BACK * before and time.monotonic() < end:
        time.sleep(0.5)
    times = [seconds for _, seconds in during]
    return {
        "asked": len(during),
        "median": statistics.median(times),
        "longest": max(times),
        "next": after[1],
        "refused": sum(status != 200 for status, _ in [*during, after]),
        "before": before,
        "after": target.memory(),
    }


def main() -> None:
    """Run all attacks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS))
    args = parser.parse_args()
    print("| attack | asked | median, s | longest, s | next, s | not 200 | MB before | MB after | tracebacks |")
    print("|---|---|---|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryFile("w+") as log,
        serving(args.model, log=log) as (process, port),
    ):
        target = Target(process, port)
        for name in args.only or ATTACKS:
            found = measure(target, ATTACKS[name])
            log.seek(0)
            traces = log.read().count("Traceback")
            cells = [name, str(found["asked"]), *(f"{found[each]:.2f}" for each in ("median", "longest", "next"))]
            cells += [f"{found[each]:.0f}" for each in ("refused", "before", "after")]
            print(f"| {' | '.join(cells)} | {traces} |", flush=True)
        log.seek(0)
        sys.stderr.write(log.read()[-2000:])


if __name__ == "__main__":
    main()
