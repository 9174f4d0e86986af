"""Versions switched under load: no request may fail, and none may be answered by a version that was left before it.

    python benchmarks/serve_switches.py EXPORTED --switches 20 --workers 2

Serves two versions, copies of an exported or fitted model, with `calprompt serve MODELS`. Four clients send pictures
all the time; meanwhile the version is switched to and fro, or taken back. Printed are the answers by status, how long
the longest answer and the longest switch took, and how many answers began after a switch and came from the version
before it.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

import calprompt
from served import serving

CLIENTS = 4


def main() -> None:
    """Switch, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(stream, "PNG")
    statuses: Counter[str] = Counter()
    seconds: list[float] = []
    stale = 0
    since, active = 0.0, "2"
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        for version in ("1", "2"):
            shutil.copytree(args.model, Path(folder) / "model" / version)
        with serving(folder, "--workers", str(args.workers)) as (_, port):
            address = f"http://127.0.0.1:{port}"

            def ask() -> None:
                nonlocal stale
                client = calprompt.Client(address, tries=1)
                while not over.is_set():
                    start, wanted, from_then = time.perf_counter(), active, since
                    try:
                        found = client.predict(stream.getvalue())["model_version"]
                        statuses["200"] += 1
                        stale += start > from_then and since == from_then and found != wanted
                    except calprompt.CalpromptError as error:
                        statuses[str(error)[:60]] += 1
                    seconds.append(time.perf_counter() - start)

            threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
            for thread in threads:
                thread.start()
            admin, switches = calprompt.Client(address), []
            for number in range(args.switches):
                time.sleep(0.5)
                start = time.perf_counter()
                since = float("inf")
                found = admin.rollback() if number % 4 == 3 else admin.switch("1" if active == "2" else "2")
                active, since = found["active"], time.perf_counter()
                switches.append(since - start)
            over.set()
            for thread in threads:
                thread.join()
    print(f"{args.switches} switches, {CLIENTS} clients, {args.workers} workers: {dict(statuses)}, {stale} stale")
    print(f"answers: median {statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s")
    print(f"switches: median {statistics.median(switches):.3f} s, longest {max(switches):.3f} s")
    sys.exit(set(statuses) != {"200"} or bool(stale))


if __name__ == "__main__":
    main()
