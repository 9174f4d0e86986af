"""The index of a space: in which shard, and in which of its rows, the feature of a key is.

    9ab2….index     hashes [n] int64   of all keys, sorted: 48 bits of the image's digest, 16 of the view's number
                    places [n] int64   number of the shard (32 bits) and of its row (32 bits)
                    metadata           the shards' names; a checksum of everything

A look-up is one binary search, however many shards there are. The file is mapped into memory, and processes share it: a
key takes 16 bytes. All views of an image are neighbours, so they are on the same page.

The index says where to look, and nothing else: the key is compared with the shard's own, and the feature with its
checksum. So an index that is old or wrong can miss features, but never returns a wrong one. It can be deleted at any
time. Shards it does not list are searched one by one, shards that are gone are passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from calprompt.features.store.shards import KEY, Shard
from calprompt.features.store.streaming import CHECKSUM, StreamedTensor, write_tensors

INDEX = ".index"  # how its name ends; a new one has a new name, because others may be reading the old one
FORMAT = "1"
VIEW = np.uint64(0xFFFF)  # the bits of a hash that are of the view
ROW = np.uint64(32)  # the bits of a place that are of the row
PIECE = 1 << 16  # entries that are written at a time


class DamagedIndexError(Exception):
    """An index that is not what was written, or does not match the shards."""


def hashes(keys: np.ndarray) -> np.ndarray:
    """A number for every key: 48 bits of the image's digest, then 16 of the view's number."""
    raw = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY.itemsize)
    images = np.ascontiguousarray(raw[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    views = np.ascontiguousarray(raw[:, -2:]).view(">u2").reshape(-1).astype(np.uint64)
    return (images & ~VIEW) | views


def count_hashes(numbers: np.ndarray) -> tuple[int, int]:
    """How many images there are among hashes, and how many views of them."""
    numbers = np.unique(numbers)
    return len(np.unique(numbers >> np.uint64(16))), len(numbers)


@dataclass(eq=False)
class Index:
    """Where features are.

    Attributes:
        names: Of the shards.
        hashes: Of all their keys, sorted.
        places: For each of them, the number of the shard and the row.
    """

    names: list[str]
    hashes: np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    def only(self, names: frozenset[str]) -> np.ndarray:
        """The hashes of the keys of some shards."""
        chosen = np.array([name in names for name in self.names], dtype=bool)
        return self.hashes if chosen.all() else self.hashes[chosen[(self.places >> ROW).astype(np.int64)]]

    def candidates(
        self, wanted: np.ndarray, missing: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Where keys may be.

        Args:
            wanted: Hashes of the keys.
            missing: Which keys are looked for, as booleans; the caller clears those that it has found.

        Yields:
            Indices of keys, and for each of them the number of a shard and a row. A key comes again, with another
            place, as long as it is missing and there is one.
        """
        order = np.argsort(wanted)
        place = np.empty(len(wanted), dtype=np.int64)
        place[order] = np.searchsorted(self.hashes, wanted[order])
        while True:
            which = np.flatnonzero(missing & (place < len(self)))
            which = which[self.hashes[place[which]] == wanted[which]]
            if not len(which):
                return
            found = self.places[place[which]]
            yield which, (found >> ROW).astype(np.int64), (found & np.uint64(0xFFFFFFFF)).astype(np.int64)
            place += 1


def build_index(shards: Sequence[Shard], before: Index | None = None, names: frozenset[str] = frozenset()) -> Index:
    """An index of some shards, together with what is still right of another one.

    Args:
        shards: Whose keys are read.
        before: An index whose entries are taken over.
        names: The shards of which they are.
    """
    known: list[str] = []
    hashed, places = np.empty(0, np.uint64), np.empty(0, np.uint64)
    if before is not None:
        known = [name for name in before.names if name in names]
        number = {name: place for place, name in enumerate(known)}
        renumbered = np.array([number.get(name, -1) for name in before.names], dtype=np.int64)
        now = renumbered[(before.places >> ROW).astype(np.int64)]
        alive = now >= 0
        hashed = before.hashes[alive]
        places = (now[alive].astype(np.uint64) << ROW) | (before.places[alive] & np.uint64(0xFFFFFFFF))
    if shards:
        added = np.concatenate([hashes(shard.keys) for shard in shards])
        there = np.concatenate(
            [
                (np.uint64(len(known) + place) << ROW) | np.arange(len(shard), dtype=np.uint64)
                for place, shard in enumerate(shards)
            ]
        )
        order = np.argsort(added)
        hashed, places = np.concatenate([hashed, added[order]]), np.concatenate([places, there[order]])
        order = np.argsort(hashed, kind="stable")  # two sorted halves, which takes no longer than reading them
        hashed, places = hashed[order], places[order]
    return Index([*known, *(shard.path.name for shard in shards)], hashed, places)


def newest_index(folder: Path, names: Iterable[str]) -> str | None:
    """The name of the index among the names of a folder; None if there is none."""
    times = {}
    for name in names:
        if name.endswith(INDEX):
            with suppress(OSError):
                times[name] = (os.stat(folder / name).st_mtime_ns, name)
    return max(times, key=times.__getitem__, default=None)


def write_index(folder: Path, space: str, index: Index) -> str:
    """Write an index beside its shards, atomically; returns its name."""
    names = json.dumps(index.names)
    digest = _digest(space, names)

    def pieces(numbers: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(numbers), PIECE):
            piece = np.ascontiguousarray(numbers[start : start + PIECE])
            digest.update(piece.view(np.uint8).data)
            yield piece

    tensors = [
        StreamedTensor("hashes", "I64", (len(index),), pieces(index.hashes)),
        StreamedTensor("places", "I64", (len(index),), pieces(index.places)),
    ]
    name = f"{secrets.token_hex(8)}{INDEX}"
    write_tensors(folder / name, tensors, {"format": FORMAT, "space": space, "shards": names}, digest)
    return name


def open_index(path: Path, space: str) -> Index:
    """Map an index into memory and compare its checksum.

    Raises:
        DamagedIndexError: if it is not what was written, or of a format that is not known.
        FileNotFoundError: if it is gone.
    """
    try:
        with safe_open(path, framework="pt") as file:
            parts = [file.get_tensor(name).numpy().view(np.uint64) for name in ("hashes", "places")]
            metadata = file.metadata() or {}
        names = json.loads(metadata["shards"])
    except (FileNotFoundError, PermissionError):
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise DamagedIndexError(str(error)) from error
    if metadata.get("format") != FORMAT:
        raise DamagedIndexError(f"it has the format {metadata.get('format')}, not {FORMAT}")
    digest = _digest(space, metadata["shards"])
    for part in parts:
        digest.update(part.view(np.uint8).data)
    if digest.hexdigest() != metadata.get(CHECKSUM):
        raise DamagedIndexError("its checksum is wrong")
    return Index(names, *parts)


def _digest(space: str, names: str) -> hashlib._Hash:
    return hashlib.sha256(f"{space} {names}".encode())
