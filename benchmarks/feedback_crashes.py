"""Feedback under `kill -9` and on full disks: what a server confirmed is there afterwards, and the server starts.

    mount -t tmpfs -o size=24m tmpfs SMALL
    python benchmarks/feedback_crashes.py MODEL --kills 50 --disks 20 --small SMALL

Clients give feedback to `calprompt serve MODEL --feedback FILE` as fast as they can. A "kill" ends the server with
SIGKILL at a random moment; a "disk" fills the small file system that the feedback is in with another file, waits until
feedback is refused with 507, removes the other file, waits until feedback is taken again, and kills the server. All
rounds use the same file. At the end every confirmed receipt has to be in it.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from served import serving


def fill(folder: Path) -> Path:
    """A file that takes all the room of a file system."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return path


def picture(number: int) -> bytes:
    """A picture of its own."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class Client(threading.Thread):
    """Asks about pictures and gives feedback until the server is gone.

    Args:
        port: Of the server.
        seed: Of its pictures.
    """

    def __init__(self, port: int, seed: int) -> None:
        super().__init__()
        self.port, self.seed = port, seed
        self.confirmed: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.stop = threading.Event()

    def run(self) -> None:
        """See the class."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.request("POST", "/v1/predict", picture(self.seed), {"Content-Type": "image/png"})
            json.loads(connection.getresponse().read())
            while not self.stop.is_set():
                connection.request("POST", "/v1/predict", picture(self.seed), {"Content-Type": "image/png"})
                receipt = json.loads(connection.getresponse().read())["id"]
                body = json.dumps({"id": receipt, "right": True})
                connection.request("POST", "/v1/feedback", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                self.statuses[response.status] += 1
                if response.status == 200:
                    self.confirmed.append(receipt)
        except (OSError, http.client.HTTPException, ValueError):
            pass


def nonce(receipt: str) -> str:
    """What the file knows an answer by."""
    import base64

    body = receipt.partition(".")[0]
    return str(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["nonce"])


def main() -> None:
    """Run all rounds, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--small", type=Path, required=True, help="a small file system of its own, such as a tmpfs")
    args = parser.parse_args()
    chance = random.Random(0)
    confirmed: list[str] = []
    statuses: Counter[int] = Counter()
    rounds = ["kill"] * args.kills + ["disk"] * args.disks
    chance.shuffle(rounds)
    hits = 0
    with tempfile.TemporaryDirectory(dir=args.small) as folder:
        path = Path(folder) / "feedback.db"
        options = ("--decoders", "1", "--feedback", str(path))
        for number, kind in enumerate(rounds):
            with serving(args.model, *options) as (process, port):
                clients = [Client(port, 2 * number + each) for each in range(2)]
                for client in clients:
                    client.start()
                wanted = chance.randint(3, 40)
                end = time.monotonic() + 60
                while sum(len(each.confirmed) for each in clients) < wanted and time.monotonic() < end:
                    time.sleep(0.005)
                if kind == "disk":
                    filler = fill(args.small)
                    refused, end = sum(each.statuses[507] for each in clients), time.monotonic() + 90
                    while sum(each.statuses[507] for each in clients) < refused + 2 and time.monotonic() < end:
                        time.sleep(0.01)
                    hits += any(each.statuses[507] for each in clients)
                    filler.unlink()
                    before = sum(len(each.confirmed) for each in clients)
                    while sum(len(each.confirmed) for each in clients) < before + 3 and time.monotonic() < end + 20:
                        time.sleep(0.01)
                process.kill()
                process.wait()
                for client in clients:
                    client.stop.set()
                    client.join()
                    confirmed += client.confirmed
                    statuses += client.statuses
            sys.stderr.write(f"{number + 1} {kind}: {len(confirmed)} confirmed, {dict(statuses)}\n")
        with serving(args.model, *options):
            pass
        database = sqlite3.connect(path)
        kept = {row[0] for row in database.execute("SELECT nonce FROM feedback")}
        (sound,) = database.execute("PRAGMA integrity_check").fetchone()
    lost = {nonce(each) for each in confirmed} - kept
    print(
        f"{args.kills} kills, {args.disks} full disks, {hits} of which refused feedback: {len(confirmed)} confirmed, "
        f"{len(lost)} lost, {len(kept)} kept"
    )
    print(f"statuses {dict(statuses)}; file: {sound}; the server starts")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
