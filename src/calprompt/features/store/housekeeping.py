"""Looking after a feature store: what is in it, what can go, and whether it is what was written.

Nothing here stops who reads or writes: a shard in use stays readable after it is removed, and what a process misses it
computes again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.errors import CalpromptError
from calprompt.features.store.shards import DAMAGED, DIGEST, KEY, SUFFIX, DamagedShardError, open_shard
from calprompt.features.store.spaces import ABOUT, FeatureStore
from calprompt.features.store.usage import USAGE, Usage, read_usage
from calprompt.files import LOCK, read_json

LEFTOVER = 3600.0  # seconds after which a file that was being written is what a killed process left


@dataclass(frozen=True)
class File:
    """A shard, or what is left of one."""

    path: Path
    size: int  # bytes
    time: float  # when it was written, since 1970


@dataclass(frozen=True)
class SpaceFiles:
    """A space as it lies on disk; of one whose space.json is damaged, `about` is empty."""

    folder: Path
    about: dict[str, Any]
    shards: tuple[File, ...]
    rubbish: tuple[File, ...]  # damaged shards, and half-written files of killed processes
    usage: Usage

    @property
    def size(self) -> int:
        return sum(file.size for file in self.shards + self.rubbish)

    @property
    def last_used(self) -> float:
        return max([self.usage.time, *(file.time for file in self.shards)])

    @property
    def backbone(self) -> str:
        """Fingerprint of the backbone."""
        return str(self.about.get("backbone", ""))

    def count(self) -> tuple[int, int]:
        """How many images it has features of, and how many views of them altogether."""
        held = [np.empty(0, KEY)]
        for file in self.shards:
            with suppress(OSError, DamagedShardError):
                held.append(np.array(open_shard(file.path, self.folder.name).keys))
        keys = np.unique(np.concatenate(held))
        digests = np.ascontiguousarray(keys.view(np.uint8).reshape(-1, KEY.itemsize)[:, :DIGEST])
        return len(np.unique(digests.view(f"S{DIGEST}"))), len(keys)


def spaces(store: FeatureStore) -> list[SpaceFiles]:
    """All spaces of a store, the last used first; folders that are none are left alone."""
    try:
        found = [path for path in store.folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}", path.name)]
    except FileNotFoundError:
        return []
    return sorted((_space(folder) for folder in found), key=lambda space: -space.last_used)


def to_prune(
    store: FeatureStore, *, older_than: float | None = None, max_size: int | None = None, backbone: str | None = None
) -> list[File]:
    """What may go: rubbish, and shards by one or several rules.

    older_than  of spaces not used for so many seconds
    max_size    as many as it takes to leave so many bytes: of the spaces not used for longest, their oldest first
    backbone    only of backbones whose name or fingerprint begins like this; all of them, without another rule
    """
    if backbone == "":
        raise CalpromptError("the backbone whose features may go is empty; expected the beginning of its name")
    everything = spaces(store)
    rubbish = [file for space in everything for file in space.rubbish]
    if older_than is None and max_size is None and backbone is None:
        return rubbish
    chosen = [space for space in everything if backbone is None or _is(space, backbone)]
    if backbone is not None and not chosen:
        known = sorted({f"{space.about.get('name', '?')} ({space.backbone[:12]})" for space in everything})
        raise CalpromptError(
            f"{store.folder} has no features of backbone {backbone!r}; it has those of {', '.join(known) or 'none'}"
        )
    old = [space for space in chosen if older_than is not None and time.time() - space.last_used > older_than]
    if older_than is None and max_size is None:
        old = chosen
    going = [file for space in old for file in space.shards]
    if max_size is not None:
        size = sum(file.size for space in everything for file in space.shards) - sum(file.size for file in going)
        left = [space for space in reversed(chosen) if space not in old]
        for file in (file for space in left for file in sorted(space.shards, key=lambda file: file.time)):
            if size <= max_size:
                break
            going.append(file)
            size -= file.size
    return rubbish + going


def remove(files: list[File]) -> None:
    """Remove shards, and folders that have none left."""
    for file in files:
        file.path.unlink(missing_ok=True)
    for folder in {file.path.parent for file in files}:
        if not any(path.suffix == SUFFIX for path in _listed(folder)):
            for name in (ABOUT, USAGE, LOCK):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # a process has begun to fill it again
                folder.rmdir()


def verify(store: FeatureStore) -> Iterator[tuple[File, str]]:
    """Every shard, and what is wrong with it, if anything; damaged ones are set aside."""
    for space in spaces(store):
        for file in space.shards:
            said = ""
            try:
                open_shard(file.path, space.folder.name).verify()
            except DamagedShardError as error:
                said = str(error)
                with suppress(OSError):
                    os.rename(file.path, file.path.with_suffix(DAMAGED))
            except FileNotFoundError:
                continue  # merged or pruned meanwhile
            except OSError as error:
                said = error.strerror or str(error)
            yield file, said


def _is(space: SpaceFiles, backbone: str) -> bool:
    return space.backbone.startswith(backbone) or str(space.about.get("name", "")).startswith(backbone)


def _space(folder: Path) -> SpaceFiles:
    try:
        about = read_json(folder / ABOUT)
    except CalpromptError:
        about = {}
    shards, rubbish = [], []
    for path in sorted(_listed(folder)):
        try:
            told = path.stat()
        except OSError:
            continue
        file = File(path, told.st_size, told.st_mtime)
        if path.suffix == SUFFIX:
            shards.append(file)
        elif path.suffix == DAMAGED or (path.suffix == ".tmp" and time.time() - told.st_mtime > LEFTOVER):
            rubbish.append(file)
    return SpaceFiles(
        folder, about if isinstance(about, dict) else {}, tuple(shards), tuple(rubbish), read_usage(folder)
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
