"""Look-ups in a feature store with few and many shards: through the index, and shard by shard.

    python benchmarks/feature_store.py                      1, 100, 400 and 2,000 shards of 200 features [512]
    python benchmarks/feature_store.py --shards 1 100 --repeats 3
    python benchmarks/feature_store.py --keys 11500000      the index of ImageNet's training images in nine views

"Shard by shard" is the store without an index: every look-up lists the folder and searches one shard after the other,
and a shard is compared with its checksum, as a whole, before its first use. Both ways look the same keys up in the same
files, by turns in one process; times are the fastest of several repeats, and "first" is that of a new handle, which has
to open everything. Files are in the page cache. Shards are not merged, so that there are as many as asked for.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from calprompt.features.store import FeatureStore, Space, compaction
from calprompt.features.store.index import build_index, newest_index, open_index, write_index
from calprompt.features.store.shards import KEY, Shard, open_shard, write_shard
from calprompt.files import write_bytes

ABOUT = {"benchmark": "feature_store"}
ROWS, WIDTH = 200, 512


class ShardByShard:
    """Look-ups without an index."""

    def __init__(self, folder: Path, space: str) -> None:
        self.folder, self.space = folder, space
        self.shards: dict[str, Shard] = {}

    def find(self, keys: list[bytes]) -> tuple[list[int], torch.Tensor]:
        names = self._names()
        assert names == self._names()
        for name in sorted(names - self.shards.keys()):
            self.shards[name] = open_shard(self.folder / name, self.space)
        array, found = np.array(keys, dtype=KEY), {}
        for shard in sorted(self.shards.values(), key=len, reverse=True):
            missing = np.array([place for place in range(len(keys)) if place not in found], dtype=np.int64)
            if not len(missing):
                break
            stored, rows = shard.find(array[missing])
            if len(rows):
                if not shard.verified:
                    shard.sums, sums = None, shard.sums  # the checksum of the whole only
                    shard.verify()
                    shard.sums = sums
                found |= dict(zip(missing[stored].tolist(), shard.rows[torch.from_numpy(rows)], strict=True))
        return list(found), torch.stack(list(found.values()))

    def _names(self) -> set[str]:
        return {name for name in os.listdir(self.folder) if name.endswith(".safetensors")}


def random_keys(count: int, seed: int) -> np.ndarray:
    digests = np.random.default_rng(seed).integers(0, 256, (count, 32), dtype=np.uint8)
    return np.concatenate([digests, np.zeros((count, 4), np.uint8)], 1).view(KEY).reshape(-1)


def as_bytes(keys: np.ndarray) -> list[bytes]:
    return [bytes(each) for each in keys.view(np.uint8).reshape(-1, KEY.itemsize)]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fill(space: Space, shards: int) -> np.ndarray:
    """Shards of random features; returns all keys."""
    space.describe()
    fsync, os.fsync = os.fsync, lambda file: None  # thousands of them would take minutes
    try:
        keys = [random_keys(ROWS, number) for number in range(shards)]
        for own in keys:
            write_shard(space.folder, space.identity, own, torch.randn(ROWS, WIDTH))
    finally:
        os.fsync = fsync
    return np.concatenate(keys)


def look_ups(shards: int, repeats: int, folder: Path) -> None:
    def handle() -> Space:
        return FeatureStore(folder).space(ABOUT, "benchmark")

    keys = fill(handle(), shards)
    if shards > 1:
        print(f"{shards:5} shards  making the index: {1e3 * timed(lambda: handle().find([b'?' * 36])):8.2f} ms")
    time.sleep(0.2)
    rng = np.random.default_rng(0)
    for count in (64, 10_000):
        plain, ours = ShardByShard(handle().folder, handle().identity), handle()
        seconds: dict[str, list[float]] = {"plain": [], "ours": []}
        for turn in range(repeats + 1):
            if turn == 1:  # both have opened all shards
                for start in range(0, len(keys), 100_000):
                    ours.find(as_bytes(keys[start : start + 100_000]))
            some = as_bytes(rng.choice(keys, count))
            for name, place in (("plain", plain), ("ours", ours)):
                begin = time.perf_counter()
                found, _ = place.find(some)
                seconds[name].append(time.perf_counter() - begin)
                assert len(found) == count
        first = [1e3 * each[0] for each in seconds.values()]
        best = [1e3 * min(each[1:]) for each in seconds.values()]
        print(
            f"{shards:5} shards {count:6} keys  shard by shard {best[0]:8.2f} ms  index {best[1]:7.2f} ms  "
            f"ratio {best[0] / best[1]:6.1f}   first: {first[0]:8.2f} and {first[1]:7.2f} ms, "
            f"ratio {first[0] / first[1]:5.1f}",
            flush=True,
        )


def writing(repeats: int, folder: Path) -> None:
    """4,096 features in one file, with checksums of rows and as `safetensors.torch.save` writes it."""
    folder.mkdir()
    keys, rows = np.sort(random_keys(4096, 0)), torch.randn(4096, WIDTH)

    def plain() -> None:
        raw = torch.from_numpy(keys.view(np.uint8).reshape(len(keys), -1))
        write_bytes(folder / "plain", bytes(save({"keys": raw, "features": rows}, {"space": "s"})))

    pairs = [(timed(plain), timed(lambda: write_shard(folder, "s", keys, rows))) for _ in range(repeats)]
    before, now = (1e3 * min(each) for each in zip(*pairs, strict=True))
    print(
        f"writing 4096 features: {before:.1f} ms without, {now:.1f} ms with checksums of rows, ratio {now / before:.2f}"
    )


def large_index(count: int, folder: Path) -> None:
    """Nine views of many images, in shards of 131,072 features; features are one number each."""
    space = FeatureStore(folder).space(ABOUT, "benchmark")
    space.describe()
    done, sample = 0, []
    while done < count:
        images = min(131_072, count - done) // 9 + 1
        raw = np.repeat(random_keys(images, done).view(np.uint8).reshape(images, -1), 9, axis=0)
        raw[:, -1] = np.tile(np.arange(9, dtype=np.uint8), images)
        keys = raw.reshape(-1).view(KEY)
        write_shard(space.folder, space.identity, keys, torch.zeros(len(keys), 1, dtype=torch.float16))
        sample += as_bytes(keys[:: len(keys) // 200])
        done += len(keys)
    space.files.refresh(reindex=False)
    shards = list(space.files.all())
    before = _peak()
    begin = time.perf_counter()
    index = build_index(shards)
    built = time.perf_counter() - begin
    wrote = timed(partial(write_index, space.folder, space.identity, index))
    path = space.folder / str(newest_index(space.folder, os.listdir(space.folder)))
    print(f"{len(index)} keys in {len(shards)} shards: index made in {built:.2f} s, written in {wrote:.2f} s, ", end="")
    print(f"{path.stat().st_size / 1e6:.0f} MB; peak memory grew by {(_peak() - before) / 1e6:.0f} MB")
    del index
    print(f"opening it: {1e3 * timed(lambda: open_index(path, space.identity)):.0f} ms")
    space = FeatureStore(folder).space(ABOUT, "benchmark")
    rng = np.random.default_rng(0)
    for size in (64, 10_000):
        times = []
        for _ in range(6):
            some = [sample[place] for place in rng.integers(0, len(sample), size)]
            times.append(timed(partial(space.find, some)))
        print(f"look-up of {size} keys: first {1e3 * times[0]:.2f} ms, fastest {1e3 * min(times):.2f} ms")


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 100, 400, 2000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--keys", type=int, help="only the index of so many keys")
    args = parser.parse_args()
    torch.set_num_threads(1)
    compaction.FAN = 10**9
    with tempfile.TemporaryDirectory() as folder:
        if args.keys:
            large_index(args.keys, Path(folder) / "large")
            return
        for shards in args.shards:
            look_ups(shards, args.repeats, Path(folder) / str(shards))
        writing(args.repeats, Path(folder) / "written")


if __name__ == "__main__":
    main()
