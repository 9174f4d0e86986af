"""Features of other machines' stores, copied into one.

    other store ── shard ── checksums right? ──┬── key is not here      ── copied, some shards at a time
                              │                ├── the same bits here   ── nothing to do
                              └ no: named,     ├── differs by rounding  ── counted; what is here stays
                                left out       └── differs by more      ── reported with both places; what is here stays

The other store is only read. New shards appear in one step each, so a merge that is stopped leaves a valid store, and
the same merge goes on: what was copied is found.

Processors of different makers round differently, and a key does not name the maker. So two right features of one image
may differ a little: 256 units in the last place, relative to the length of the feature, in float32, where a sum of
thousands of products is rounded at every step; 16 units in half precision and TensorFloat-32, whose sums are float32.
Features of different images are a thousand times as far apart in float32, and several times in bfloat16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.features.store.compaction import merged_rows
from calprompt.features.store.index import hashes
from calprompt.features.store.shards import (
    AT_ONCE,
    DIGEST,
    KEY,
    SUFFIX,
    DamagedShardError,
    Shard,
    open_shard,
    write_rows,
)
from calprompt.features.store.spaces import ABOUT, FeatureStore, Space
from calprompt.files import read_json
from calprompt.progress import Progress, silent

TOGETHER = 64 << 20  # bytes of features that are written into one shard
LISTED = 100  # conflicts that are listed; others are counted
FINE, COARSE = 256, 16  # units in the last place that rounding explains, of float32 and of half precision


@dataclass(frozen=True)
class Conflict:
    """A key with two features that rounding does not explain.

    Attributes:
        image: sha256 of the image's content.
        view: The number of its view.
        here: The shard whose feature stays.
        there: The shard of the other store.
        difference: Of the features, relative to their length; infinite if they are not of one type and size.
    """

    image: str
    view: int
    here: Path | None
    there: Path
    difference: float

    def __str__(self) -> str:
        apart = f"{self.difference:.2g} of their length apart" if self.difference < np.inf else "of different kinds"
        return f"image {self.image[:16]}…, view {self.view}: {self.here} and {self.there} are {apart}"


@dataclass
class MergeReport:
    """What a merge did.

    Attributes:
        copied: Features that were missing.
        same: Features that were there with the same bits.
        rounded: Features that were there and differ by rounding.
        largest: The largest difference by rounding, relative to the length of the feature.
        n_conflicts: Features that were there and differ by more.
        conflicts: The first of these.
        damaged: Files that were left out, and what is wrong with them.
    """

    copied: int = 0
    same: int = 0
    rounded: int = 0
    largest: float = 0.0
    n_conflicts: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def merge_store(source: str | Path, into: FeatureStore, *, progress: Progress = silent) -> MergeReport:
    """Copy what is missing from another store.

    Args:
        source: The folder of the other store, or the cache folder it is in; it is not changed.
        into: The store that gets the features.
        progress: Called after every shard.

    Raises:
        NotFoundError: if there is no store at `source`.
        SettingError: if both are the same.
        CalpromptError: if `into` cannot be written to; what was copied until then stays.
    """
    folder = _store_folder(Path(source).expanduser())
    if into.folder.exists() and folder.samefile(into.folder):
        raise SettingError(f"{folder} is the store that would get the features; name another one")
    report = MergeReport()
    places = _space_folders(folder)
    total, done = sum(len(_shards(place)) for place in places), 0
    for place in places:
        merge = _SpaceMerge(place, into, report)
        try:
            for _ in merge.run():
                done += 1
                progress("shards", done, max(done, total), f"{report.copied + merge.waiting} features copied")
        except OSError as error:
            raise CalpromptError(
                f"cannot write to {into.folder}: {error.strerror or error}; {report.copied} features were copied, and "
                "the same command goes on from there"
            ) from error
    return report


def rounding_limit(about: Mapping[str, Any], dtype: torch.dtype) -> float:
    """The largest difference of two features, relative to their length, that rounding explains.

    Args:
        about: What the features depend on.
        dtype: Their type, which counts if `about` does not name the one they were computed in.
    """
    name = str(about.get("autocast") or about.get("dtype") or dtype).removeprefix("torch.")
    computed = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}.get(name, torch.float32)
    if computed.itemsize < 4:
        return COARSE * torch.finfo(computed).eps
    tf32 = about.get("matmul", "highest") != "highest" or str(about.get("device", "")).endswith("tf32")
    if tf32 and computed == torch.float32:
        return COARSE * torch.finfo(torch.float16).eps  # ten bits of fraction as well
    return FINE * torch.finfo(computed).eps


class _SpaceMerge:
    """One space of the other store."""

    def __init__(self, source: Path, into: FeatureStore, report: MergeReport) -> None:
        self.source, self.report = source, report
        self.space, self.described = self._target(into)
        self.pending: list[tuple[Shard, np.ndarray]] = []
        self.hashes: list[np.ndarray] = []

    @property
    def waiting(self) -> int:
        """Features that are copied with the next shard."""
        return sum(len(rows) for _, rows in self.pending)

    def run(self) -> Iterator[None]:
        """Copy everything; comes back after every shard."""
        seen: set[str] = set()
        while new := _shards(self.source) - seen:  # others may be merging there
            for name in sorted(new):
                seen.add(name)
                self._merge(self.source / name)
                yield
        self._write()
        while self.space.compact():
            pass

    def _target(self, into: FeatureStore) -> tuple[Space, bool]:
        try:
            about = read_json(self.source / ABOUT)
            space = into.space({name: value for name, value in about.items() if name != "name"}, about.get("name", "?"))
            if space.identity == self.source.name:
                return space, True
            reason = "it does not describe its folder"
        except (CalpromptError, AttributeError, TypeError) as error:
            reason = str(error)
        self.report.damaged.append(f"{self.source / ABOUT} ({reason})")
        return Space(into, self.source.name, {}), False

    def _merge(self, path: Path) -> None:
        try:
            shard = open_shard(path, self.source.name)
            shard.verify()
        except FileNotFoundError:
            return
        except DamagedShardError as error:
            self.report.damaged.append(f"{path} ({error})")
            return
        except OSError as error:
            self.report.damaged.append(f"{path} ({error.strerror or error})")
            return
        own = hashes(shard.keys)
        if self.pending and (self.pending[0][0].kind != shard.kind or np.isin(own, np.concatenate(self.hashes)).any()):
            self._write()
        missing = np.concatenate(
            [self._compare(shard, np.arange(start, min(start + AT_ONCE, len(shard)))) for start in self._starts(shard)]
        )
        if len(missing):
            self.pending.append((shard, missing))
            self.hashes.append(own[missing])
        if sum(len(rows) * shard.raw.shape[1] for shard, rows in self.pending) >= TOGETHER:
            self._write()

    @staticmethod
    def _starts(shard: Shard) -> range:
        return range(0, len(shard), AT_ONCE)

    def _compare(self, shard: Shard, rows: np.ndarray) -> np.ndarray:
        """Count what is here already; returns the rows that are not."""
        keys = [each.tobytes() for each in shard.keys[rows].view(np.uint8).reshape(-1, KEY.itemsize)]
        found, ours = self.space.find(keys)
        if found:
            theirs = shard.rows[torch.from_numpy(rows[found])]
            apart = differences(ours, theirs)
            limit = rounding_limit(self.space.about, shard.kind[0])
            small = apart[(apart > 0) & (apart <= limit)]
            self.report.same += int((apart == 0).sum())
            self.report.rounded += len(small)
            self.report.largest = max([self.report.largest, *small.tolist()])
            for number in np.flatnonzero(apart > limit):
                self._note_conflict(keys[found[number]], shard.path, float(apart[number]))
        return np.delete(rows, found)

    def _note_conflict(self, key: bytes, there: Path, difference: float) -> None:
        self.report.n_conflicts += 1
        if len(self.report.conflicts) < LISTED:
            image, view = key[:DIGEST].hex(), int.from_bytes(key[DIGEST:], "big")
            self.report.conflicts.append(Conflict(image, view, self.space.locate(key), there, difference))

    def _write(self) -> None:
        pending, self.pending, self.hashes = self.pending, [], []
        if not pending:
            return
        shards, rows = [shard for shard, _ in pending], [each for _, each in pending]
        if self.described:
            self.space.describe()
        self.space.folder.mkdir(parents=True, exist_ok=True)
        keys, pieces = merged_rows(shards, rows)
        write_rows(self.space.folder, self.space.identity, keys, shards[0].kind, pieces)
        self.space.files.listing.forget()
        self.report.copied += len(keys)


def differences(ours: Tensor, theirs: Tensor) -> np.ndarray:
    """How far features [n, D] are apart, relative to their length: 0 for the same bits, infinite for other kinds."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return np.full(len(theirs), np.inf)
    same = (ours.view(torch.uint8) == theirs.view(torch.uint8)).all(dim=1).numpy()
    one, other = ours.double(), theirs.double()
    length = torch.maximum(one.norm(dim=1), other.norm(dim=1))
    apart = ((one - other).norm(dim=1) / length).nan_to_num(nan=np.inf).numpy()
    return np.where(same, 0.0, np.maximum(apart, np.finfo(float).tiny))


def _store_folder(path: Path) -> Path:
    for folder in (path, path / "features"):
        with suppress(OSError):
            if _space_folders(folder):
                return folder
    raise NotFoundError(
        f"{path} is no feature store; expected a folder such as the one of 'calprompt cache show', copied or mounted "
        "from the other machine"
    )


def _space_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir())


def _shards(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith(".")}
    except OSError:
        return set()
