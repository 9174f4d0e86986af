"""Maintenance of a feature store: what is in it, what can be removed, and whether it is damaged.

Processes that read or write are not disturbed: a shard in use stays readable after it is removed, and features that a
process does not find it computes again.
"""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.features.store.compaction import GRACE
from calprompt.features.store.index import INDEX, DamagedIndexError, count_hashes, open_index
from calprompt.features.store.shard_files import MERGED, ShardFiles
from calprompt.features.store.shards import DAMAGED, SUFFIX, DamagedShardError, open_shard
from calprompt.features.store.spaces import ABOUT, FeatureStore
from calprompt.features.store.usage import USAGE, Usage, read_usage
from calprompt.files import LOCK, read_json

AGES = {".tmp": 3600.0, MERGED: GRACE}  # seconds after which a file must be that of a killed process, or unused


@dataclass(frozen=True)
class File:
    """A shard, or a damaged or half-written one.

    Attributes:
        path: Where it is.
        size: In bytes.
        time: When it was written, in seconds since 1970.
    """

    path: Path
    size: int
    time: float


@dataclass(frozen=True)
class SpaceFiles:
    """A space on disk.

    Attributes:
        folder: Where it is.
        about: space.json; empty if that is damaged.
        shards: Its files of features.
        rubbish: Damaged shards, half-written files of killed processes, and merged shards that nobody reads any more.
        derived: The index, and shards that were merged a moment ago.
        usage: How often it was used.
    """

    folder: Path
    about: dict[str, Any]
    shards: tuple[File, ...]
    rubbish: tuple[File, ...]
    derived: tuple[File, ...]
    usage: Usage

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.size for file in self.shards + self.rubbish + self.derived)

    @property
    def last_used(self) -> float:
        """In seconds since 1970."""
        return max([self.usage.time, *(file.time for file in self.shards)])

    @property
    def backbone(self) -> str:
        """Fingerprint of the backbone."""
        return str(self.about.get("backbone", ""))

    def count(self) -> tuple[int, int]:
        """How many images it has features of, and how many views of them altogether."""
        files = ShardFiles(self.folder, self.folder.name, lambda: False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `verify` is there to name what is damaged
            files.refresh(reindex=False)
        return count_hashes(files.hashes())


def spaces(store: FeatureStore) -> list[SpaceFiles]:
    """All spaces of a store, the last used first; other folders are ignored."""
    try:
        folders = [path for path in store.folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}", path.name)]
    except FileNotFoundError:
        return []
    return sorted((_space(folder) for folder in folders), key=lambda space: -space.last_used)


def to_prune(
    store: FeatureStore, *, older_than: float | None = None, max_size: int | None = None, backbone: str | None = None
) -> list[File]:
    """Files that can be removed: rubbish, and shards by one or several rules.

    Args:
        store: The feature store.
        older_than: Shards of spaces that were not used for so many seconds.
        max_size: As many shards as are needed to keep at most so many bytes: of the spaces not used for longest, their
            oldest ones first.
        backbone: Only shards of backbones whose name or fingerprint begins with this; all of these, without another
            rule.

    Raises:
        SettingError: if `backbone` is empty.
        NotFoundError: if the store has no features of that backbone.
    """
    if backbone == "":
        raise SettingError("must be the beginning of a name or fingerprint, got an empty text", parameter="backbone")
    everything = spaces(store)
    rubbish = [file for space in everything for file in space.rubbish]
    if older_than is None and max_size is None and backbone is None:
        return rubbish
    selected = [space for space in everything if backbone is None or _is(space, backbone)]
    if backbone is not None and not selected:
        names = sorted({f"{space.about.get('name', '?')} ({space.backbone[:12]})" for space in everything})
        raise NotFoundError(
            f"{store.folder} has no features of backbone {backbone!r}; it has those of {', '.join(names) or 'none'}"
        )
    old = [space for space in selected if older_than is not None and time.time() - space.last_used > older_than]
    if older_than is None and max_size is None:
        old = selected
    shards = [file for space in old for file in space.shards]
    if max_size is not None:
        size = sum(file.size for space in everything for file in space.shards) - sum(file.size for file in shards)
        remaining = [space for space in reversed(selected) if space not in old]
        for file in (file for space in remaining for file in sorted(space.shards, key=lambda file: file.time)):
            if size <= max_size:
                break
            shards.append(file)
            size -= file.size
    return rubbish + shards


def remove(files: list[File]) -> None:
    """Remove shards, and the folders of spaces that have no shard any more."""
    for file in files:
        file.path.unlink(missing_ok=True)
    for folder in {file.path.parent for file in files}:
        if not any(path.suffix == SUFFIX for path in _listed(folder)):
            derived = [path.name for path in _listed(folder) if path.suffix in (INDEX, MERGED)]
            for name in (ABOUT, USAGE, LOCK, *derived):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # a process has begun to fill it again
                folder.rmdir()


def verify(store: FeatureStore) -> Iterator[tuple[File, str]]:
    """Check every shard and every index; damaged shards are set aside, damaged indices are removed.

    Yields:
        The file and what is wrong with it; an empty text if nothing is.
    """
    for space in spaces(store):
        for file in space.derived:
            if file.path.suffix == INDEX:
                yield file, _index_problem(file.path, space.folder.name)
        for file in space.shards:
            problem = ""
            try:
                open_shard(file.path, space.folder.name).verify()
            except DamagedShardError as error:
                problem = str(error)
                with suppress(OSError):
                    os.rename(file.path, file.path.with_suffix(DAMAGED))
            except FileNotFoundError:
                continue  # merged or pruned meanwhile
            except OSError as error:
                problem = error.strerror or str(error)
            yield file, problem


def _index_problem(path: Path, space: str) -> str:
    try:
        open_index(path, space)
    except DamagedIndexError as error:
        with suppress(OSError):
            path.unlink()
        return str(error)
    except OSError as error:
        return "" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    return ""


def _is(space: SpaceFiles, backbone: str) -> bool:
    return space.backbone.startswith(backbone) or str(space.about.get("name", "")).startswith(backbone)


def _space(folder: Path) -> SpaceFiles:
    try:
        about = read_json(folder / ABOUT)
    except CalpromptError:
        about = {}
    shards, rubbish, derived = [], [], []
    for path in sorted(_listed(folder)):
        try:
            stat = path.stat()
        except OSError:
            continue
        file = File(path, stat.st_size, stat.st_mtime)
        if path.suffix == SUFFIX:
            shards.append(file)
        elif path.suffix == DAMAGED or time.time() - stat.st_mtime > AGES.get(path.suffix, math.inf):
            rubbish.append(file)
        elif path.suffix in (INDEX, MERGED):
            derived.append(file)
    return SpaceFiles(
        folder,
        about if isinstance(about, dict) else {},
        tuple(shards),
        tuple(rubbish),
        tuple(derived),
        read_usage(folder),
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
