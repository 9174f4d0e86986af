"""The feature store at work: look-ups, writing, two writers, memory and disk.

    python benchmarks/feature_store.py                       100,000 and 1,000,000 features [512] in float32
    python benchmarks/feature_store.py --keys 100000 --repeats 3

Features are added as runs add them, 64 at a time and written 4,096 at a time. Times of look-ups are the fastest of
several repeats with files in the page cache, "first" is that of a new process, and its memory is what the process grew
by. Two writers are two processes that fill one store with halves that overlap by a tenth.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from calprompt.features.store import FeatureStore

ABOUT = {"benchmark": "feature_store"}
WIDTH, BATCH, SHOWN = 512, 64, 4096


def keys_of(start: int, stop: int) -> list[bytes]:
    """Keys of nine views of random images."""
    digests = [np.random.default_rng(image).bytes(32) for image in range(start // 9, (stop - 1) // 9 + 1)]
    return [digests[n // 9 - start // 9] + (n % 9).to_bytes(4, "big") for n in range(start, stop)]


def fill(folder: Path, start: int, stop: int) -> float:
    """Add features; returns seconds in the store."""
    space, seconds = FeatureStore(folder).space(ABOUT, "benchmark"), 0.0
    rows = torch.randn(BATCH, WIDTH)
    for first in range(start, stop, BATCH):
        keys = keys_of(first, min(first + BATCH, stop))
        begin = time.perf_counter()
        space.find(keys)
        space.add(keys, rows[: len(keys)])
        seconds += time.perf_counter() - begin
    begin = time.perf_counter()
    space.flush()
    return seconds + time.perf_counter() - begin


def look_up(folder: Path, count: int, repeats: int) -> dict[str, float]:
    """Times of look-ups in milliseconds, and memory in MB; in a process of its own."""
    space, rng = FeatureStore(folder).space(ABOUT, "benchmark"), np.random.default_rng(0)

    def some(n: int) -> list[bytes]:
        return [keys_of(number, number + 1)[0] for number in rng.integers(0, count, n).tolist()]

    def timed(keys: list[bytes]) -> float:
        begin = time.perf_counter()
        found, _ = space.find(keys)
        assert len(found) == len(keys)
        return 1e3 * (time.perf_counter() - begin)

    before = _resident()
    result = {"first 64": timed(some(64))}
    result["64"] = min(timed(some(64)) for _ in range(repeats * 10))
    result["memory after 64 MB"] = (_resident() - before) / 1e6
    result["10,000"] = min(timed(some(10_000)) for _ in range(repeats))
    result["peak memory MB"] = (1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    return result


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return int(fields[1]) * resource.getpagesize()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def child(*args: object) -> list[str]:
    return [sys.executable, __file__, *map(str, args)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fill", nargs=3, metavar=("FOLDER", "START", "STOP"), help=argparse.SUPPRESS)
    parser.add_argument("--look-up", nargs=2, metavar=("FOLDER", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.fill:
        print(json.dumps(fill(Path(args.fill[0]), int(args.fill[1]), int(args.fill[2]))))
        return
    if args.look_up:
        print(json.dumps(look_up(Path(args.look_up[0]), int(args.look_up[1]), args.repeats)))
        return
    for count in args.keys:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            seconds = float(subprocess.run(child("--fill", folder, 0, count), capture_output=True, check=True).stdout)
            size, payload = _size(folder), 4 * WIDTH * count
            print(f"{count} features: filled in {seconds:.1f} s of the store, {size / payload:.2f} times the payload")
            run = subprocess.run(child("--look-up", folder, count), capture_output=True, check=True)
            for what, value in json.loads(run.stdout).items():
                print(f"{count} features: {what:20} {value:9.2f}", flush=True)
    count = args.keys[0]
    with tempfile.TemporaryDirectory() as name:
        halves = ((0, count * 55 // 100), (count * 45 // 100, count))
        begin = time.perf_counter()
        both = [subprocess.Popen(child("--fill", name, *half), stdout=subprocess.PIPE) for half in halves]
        seconds = [float(each.communicate()[0]) for each in both]
        found, _ = FeatureStore(name).space(ABOUT, "benchmark").find(keys_of(0, count))
        print(
            f"two writers: {count} features in {time.perf_counter() - begin:.1f} s, {max(seconds):.1f} s in the store; "
        )
        print(f"  all there: {len(found) == count}; {_size(Path(name)) / (4 * WIDTH * count):.2f} times the payload")


if __name__ == "__main__":
    main()
