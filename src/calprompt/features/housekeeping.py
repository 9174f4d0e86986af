"""Maintenance of a feature store: what is in it, what can be removed, and whether it is damaged.

Processes that read or write are not disturbed: a file in use stays readable after it is removed, and features that a
process does not find it computes again.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from calprompt.cache import folder_size
from calprompt.errors import NotFoundError, SettingError
from calprompt.features.store import COMPANIONS, DAMAGED, SUFFIX, FeatureFile, FeatureStore, Usage, is_damage, set_aside

AGE = 3600.0  # seconds after which a half-made file must be that of a killed process
IDENTITY = r"[0-9a-f]{32}"


@dataclass(frozen=True)
class StoredFile:
    """A file of a store, or a folder of shards that an earlier version wrote.

    Attributes:
        path: Where it is.
        size: In bytes, with what SQLite keeps beside it.
        time: Of the last use, in seconds since 1970.
        name: Of the backbone.
        about: What its features depend on; empty if that cannot be read.
        usage: How often it was used.
        images: How many images it has features of.
        features: How many features it has.
        problem: Why it cannot be read, if so.
    """

    path: Path
    size: int
    time: float
    name: str = "?"
    about: dict[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    images: int = 0
    features: int = 0
    problem: str = ""

    @property
    def backbone(self) -> str:
        """Fingerprint of the backbone."""
        return str(self.about.get("backbone", ""))


def spaces(store: FeatureStore) -> list[StoredFile]:
    """All kinds of features of a store, the last used first."""
    found = [_space(path) for path in _listed(store.folder) if re.fullmatch(IDENTITY + re.escape(SUFFIX), path.name)]
    return sorted(found, key=lambda file: -file.time)


def unused(store: FeatureStore) -> list[StoredFile]:
    """Damaged files, half-made ones of killed processes, and folders of shards, which earlier versions wrote."""
    found = []
    for path in _listed(store.folder):
        size = folder_size(path)[1] if path.is_dir() else _size(path)
        file = StoredFile(path, size, _time(path))
        is_old = path.is_dir() and re.fullmatch(IDENTITY, path.name) is not None
        if is_old or path.suffix == DAMAGED or (path.suffix == ".tmp" and time.time() - file.time > AGE):
            found.append(file)
    return found


def to_prune(
    store: FeatureStore, *, older_than: float | None = None, max_size: int | None = None, backbone: str | None = None
) -> list[StoredFile]:
    """Files that can be removed: those that are not used, and others by one or several rules."""
    if backbone == "":
        raise SettingError("must be the beginning of a name or fingerprint, got an empty text", parameter="backbone")
    rubbish = unused(store)
    if older_than is None and max_size is None and backbone is None:
        return rubbish
    everything = spaces(store)
    selected = [file for file in everything if backbone is None or _is(file, backbone)]
    if backbone is not None and not selected:
        names = sorted({f"{file.name} ({file.backbone[:12]})" for file in everything})
        raise NotFoundError(
            f"{store.folder} has no features of backbone {backbone!r}; it has those of {', '.join(names) or 'none'}"
        )
    old = [file for file in selected if older_than is not None and time.time() - file.time > older_than]
    if older_than is None and max_size is None:
        old = selected
    if max_size is not None:
        size = sum(file.size for file in everything) - sum(file.size for file in old)
        for file in (file for file in reversed(selected) if file not in old):
            if size <= max_size:
                break
            old.append(file)
            size -= file.size
    return rubbish + old


def remove(files: Sequence[StoredFile]) -> None:
    """Remove files, with what SQLite keeps beside them."""
    for file in files:
        if file.path.is_dir():
            rmtree(file.path, ignore_errors=True)
            continue
        for companion in (*COMPANIONS, ""):
            Path(f"{file.path}{companion}").unlink(missing_ok=True)


def verify(store: FeatureStore) -> Iterator[tuple[StoredFile, str]]:
    """Check the structure of every file and all checksums; damaged features are removed, damaged files set aside."""
    for space in spaces(store):
        problem = ""
        try:
            problem = _verify(space.path)
        except sqlite3.Error as error:
            problem = str(error)
            if is_damage(error):
                set_aside(space.path)
        except FileNotFoundError:
            continue  # pruned meanwhile
        yield space, problem


def _verify(path: Path) -> str:
    file = FeatureFile.open(path)
    if problem := file.check():
        raise sqlite3.DatabaseError(problem)
    wrong = [number for _, numbers in file.scan() for number in numbers]
    if wrong and not file.read_only:
        file.delete(wrong)
    file.close()
    return f"{len(wrong)} features have a wrong checksum" if wrong else ""


def _is(file: StoredFile, backbone: str) -> bool:
    return file.backbone.startswith(backbone) or file.name.startswith(backbone)


def _space(path: Path) -> StoredFile:
    size, written = _size(path), _time(path)
    try:
        file = FeatureFile.open(path)
        usage, (images, features) = file.usage(), file.count()
        file.close()
    except (sqlite3.Error, OSError) as error:
        return StoredFile(path, size, written, problem=str(error))
    return StoredFile(path, size, usage.time or written, file.name, file.about, usage, images, features)


def _size(path: Path) -> int:
    total = 0
    for companion in ("", *COMPANIONS):
        with suppress(OSError):
            total += Path(f"{path}{companion}").stat().st_size
    return total


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
