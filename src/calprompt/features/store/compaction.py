"""Merging small shards into large ones, while others read and write.

    a second's work   ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪  ──  sixteen of about the same size become one  ──  ▬
                                            sixteen of these become one …              ──  ▬▬▬▬▬▬  at most 256 MiB

So a feature is copied a few times at most, and there are never many shards. The new shard is complete on disk before
the old ones are renamed, so every feature is in one or the other, whenever a process is killed. The old ones are kept
for ten minutes: a process on another machine may be reading them, and there, unlike on the same machine, a file that
was removed cannot be read to the end.

The lock only saves work: if two processes merge the same shards at once, because a network file system does not know
locks, both write a shard with everything in it.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from calprompt.features.store.shard_files import MERGED, NO_LOCK, ShardFiles, replaced
from calprompt.features.store.shards import AT_ONCE, DamagedShardError, Shard, row_checksums, write_rows
from calprompt.files import locked

FAN = 16  # shards of about the same size that are merged into one
LARGEST = 256 << 20  # bytes of a merged shard at most; from half of that on, a shard is not merged any more
GRACE = 600.0  # seconds until a merged shard is removed


def group_to_merge(sizes: Mapping[str, int]) -> list[str]:
    """Which shards to merge into one, by their sizes in bytes; none if there are not enough of about the same size."""
    tiers: dict[int, list[str]] = defaultdict(list)
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        if sizes[name] < LARGEST // 2:
            tiers[int(math.log(max(sizes[name], 1), FAN))].append(name)
    for _, tier in sorted(tiers.items()):
        group, total = [], 0
        for name in tier:
            if total + sizes[name] > LARGEST:
                break
            group.append(name)
            total += sizes[name]
        if len(group) >= FAN or (len(group) > 1 and total > LARGEST // 2):
            return group
    return []


def compact(files: ShardFiles) -> bool:
    """Merge one group of shards, unless another process is merging; returns whether that was done."""
    files.refresh()
    _remove_merged(files)
    if not group_to_merge(files.sizes()):
        return False
    with suppress(*NO_LOCK), locked(files.folder):
        files.listing.forget()
        files.refresh(reindex=False)  # another process may just have done it
        shards = [files.open(name) for name in group_to_merge(files.sizes())]
        usable = [shard for shard in shards if shard is not None]
        group = [shard for shard in usable if shard.kind == usable[0].kind]
        if len(group) > 1:
            _merge(files, group)
            return True
    return False


def merged_rows(
    shards: Sequence[Shard], chosen: Sequence[np.ndarray] | None = None
) -> tuple[np.ndarray, Iterator[tuple[np.ndarray, np.ndarray]]]:
    """The rows of several shards in the order of their keys, none twice.

    Args:
        shards: Of one space and type.
        chosen: The rows of each that are taken; all, unless given.

    Returns:
        The keys, and the bytes of the features with their checksums, a piece at a time.
    """
    rows = [np.arange(len(shard)) for shard in shards] if chosen is None else list(chosen)
    keys, first = np.unique(
        np.concatenate([shard.keys[some] for shard, some in zip(shards, rows, strict=True)]), return_index=True
    )
    owner = np.repeat(np.arange(len(shards)), [len(some) for some in rows])[first]
    place = np.concatenate(rows)[first]

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(keys), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            raw = np.empty((len(keys[part]), shards[0].raw.shape[1]), dtype=np.uint8)
            sums = np.empty(len(raw), dtype="<u8")
            for number in np.unique(owner[part]):
                here = owner[part] == number
                raw[here], known = _take(shards[number], place[part][here])
                sums[here] = known
            yield raw, sums

    return keys, pieces()


def _take(shard: Shard, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    raw, sums = shard.take(rows)
    return raw, row_checksums(shard.space, shard.kind, shard.keys[rows], raw) if sums is None else sums


def _merge(files: ShardFiles, shards: Sequence[Shard]) -> None:
    keys, pieces = merged_rows(shards)
    try:
        write_rows(files.folder, files.space, keys, shards[0].kind, pieces)
    except DamagedShardError as error:
        files.set_aside(error.path.name, str(error))
        return
    for shard in shards:  # only now, so that every feature is always in one file or the other
        replaced(shard.path)
    files.listing.forget()


def _remove_merged(files: ShardFiles) -> None:
    for name in files.listing.names:
        if name.endswith(MERGED):
            with suppress(OSError):
                remove_if_old(files.folder / name)


def remove_if_old(path: Path) -> None:
    """Remove a merged shard that nobody can be reading any more."""
    if time.time() - path.stat().st_mtime > GRACE:
        path.unlink()
