"""Maintenance of feature stores: what is in one, what can be removed, what is damaged, and merging several.

Processes that read or write are not disturbed: a file in use stays readable after it is removed, and features that a
process does not find it computes again. A merge only reads the other store, and leaves out what is damaged there; where
both have a feature, the one here stays. One that is stopped goes on where it was, because what was copied is found.

Processors of different makers round differently, and a key does not name the maker. So two right features of one image
may differ a little: 256 units in the last place, relative to the length of the feature, in float32, where a sum of
thousands of products is rounded at every step; 16 units in half precision and TensorFloat-32, whose sums are float32.
Features of different images are a thousand times as far apart in float32, and several times in bfloat16.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.features.store import (
    COMPANIONS,
    DAMAGED,
    DIGEST,
    SUFFIX,
    FeatureFile,
    FeatureStore,
    Space,
    Usage,
    is_damage,
    set_aside,
)
from calprompt.progress import Progress, silent

AGE = 3600.0  # seconds after which a half-made file must be that of a killed process
NAME = r"[0-9a-f]{32}" + re.escape(SUFFIX)


@dataclass(frozen=True)
class StoredFile:
    """A file of a store."""

    path: Path  # where it is
    size: int  # in bytes, with what SQLite keeps beside it
    time: float  # time of the last use, in seconds since 1970
    name: str = "?"  # name of the backbone
    about: dict[str, Any] = field(default_factory=dict)  # what its features depend on; empty if that cannot be read
    usage: Usage = field(default_factory=Usage)  # how often it was used
    images: int = 0  # how many images it has features of
    features: int = 0  # how many features it has
    problem: str = ""  # why it cannot be read, if so

    @property
    def backbone(self) -> str:
        """Fingerprint of the backbone."""
        return str(self.about.get("backbone", ""))


def spaces(store: FeatureStore) -> list[StoredFile]:
    """All kinds of features of a store, the last used first."""
    found = [_space(path) for path in _space_files(store.folder)]
    return sorted(found, key=lambda file: -file.time)


def unused(store: FeatureStore) -> list[StoredFile]:
    """Damaged files, and half-made ones of killed processes."""
    found = []
    for path in _listed(store.folder):
        file = StoredFile(path, _size(path), _time(path))
        if path.suffix == DAMAGED or (path.suffix == ".tmp" and time.time() - file.time > AGE):
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
    named = backbone or ""
    selected = [file for file in everything if file.backbone.startswith(named) or file.name.startswith(named)]
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


def _space_files(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if re.fullmatch(NAME, path.name)]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


MOST_CONFLICTS_LISTED = 100  # conflicts that are listed; others are counted
FINE, COARSE = 256, 16  # units in the last place that rounding explains, of float32 and of half precision


@dataclass
class MergeReport:
    """What a merge did."""

    copied: int = 0  # features that were missing
    same: int = 0  # features that were there with the same bits
    rounded: int = 0  # features that were there and differ by rounding
    largest: float = 0.0  # the largest difference by rounding, relative to the length of the feature
    n_conflicts: int = 0  # features that were there and differ by more
    conflicts: list[str] = field(default_factory=list)  # the first of these, in words
    damaged: list[str] = field(default_factory=list)  # files of which something was left out, and why


def merge_store(source: str | Path, into: FeatureStore, *, progress: Progress = silent) -> MergeReport:
    """Copy what is missing from another store.

    Args:
        source: The folder of the other store, or the cache folder it is in; it is not changed.
        into: The store that gets the features.
        progress: Called as features are compared.

    Raises:
        NotFoundError: if there is no store at `source`.
        SettingError: if both are the same.
        CalpromptError: if `into` cannot be written to; what was copied until then stays.
    """
    folder = _store_folder(Path(source).expanduser())
    if into.folder.exists() and folder.samefile(into.folder):
        raise SettingError(f"{folder} is the store that would get the features; name another one")
    report = MergeReport()
    opened = []
    for path in _space_files(folder):
        try:
            file = FeatureFile.open(path, read_only=True)
            space = into.space(file.about, file.name)
            if space.identity != file.identity:
                raise sqlite3.DatabaseError("it does not say what its features depend on")
            opened.append((file, space, file.count()[1]))
        except (sqlite3.Error, OSError) as error:
            report.damaged.append(f"{path} ({error})")
    done, total = 0, sum(count for _, _, count in opened)
    for file, space, _ in opened:
        lost = 0
        for rows, wrong in file.scan():
            done, lost = done + len(rows), lost + len(wrong)
            try:
                _merge_rows(rows, file, space, report)
            except (OSError, sqlite3.Error) as error:
                raise CalpromptError(
                    f"cannot write to {into.folder}: {getattr(error, 'strerror', None) or error}; {report.copied} "
                    "features were copied, and the same command goes on from there"
                ) from error
            progress("features", done, max(done, total), f"{report.copied} copied")
        if lost:
            report.damaged.append(f"{file.path} ({lost} features are damaged)")
        file.close()
    return report


def _merge_rows(rows: Mapping[bytes, bytes], file: FeatureFile, space: Space, report: MergeReport) -> None:
    """Copy what is missing, and compare the rest."""
    keys = list(rows)
    found, ours = space.find(keys)
    if found:
        raw = bytearray().join([rows[keys[place]] for place in found])
        apart = differences(ours, torch.frombuffer(raw, dtype=file.dtype).view(len(found), -1))
        limit = rounding_limit(file.about, file.dtype)
        small = apart[(apart > 0) & (apart <= limit)]
        report.same += int((apart == 0).sum())
        report.rounded += len(small)
        report.largest = max([report.largest, *small.tolist()])
        for number in np.flatnonzero(apart > limit):
            report.n_conflicts += 1
            if len(report.conflicts) < MOST_CONFLICTS_LISTED:
                key = keys[found[number]]
                image, view = f"{key[:DIGEST].hex()[:16]}…", int.from_bytes(key[DIGEST:], "big")
                much = f"{apart[number]:.2g} of their length apart" if apart[number] < np.inf else "of different kinds"
                report.conflicts.append(f"image {image}, view {view}: {space.path} and {file.path} are {much}")
    there = set(found)
    missing = {key: rows[key] for place, key in enumerate(keys) if place not in there}
    if missing:
        space.insert(missing, file.dtype)
        report.copied += len(missing)


def rounding_limit(about: Mapping[str, Any], dtype: torch.dtype) -> float:
    """The largest difference of two features, relative to their length, that rounding explains."""
    name = str(about.get("autocast") or about.get("dtype") or dtype).removeprefix("torch.")
    computed = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}.get(name, torch.float32)
    if computed.itemsize < 4:
        return COARSE * torch.finfo(computed).eps
    tf32 = about.get("matmul", "highest") != "highest" or str(about.get("device", "")).endswith("tf32")
    if tf32 and computed == torch.float32:
        return COARSE * torch.finfo(torch.float16).eps  # ten bits of fraction as well
    return FINE * torch.finfo(computed).eps


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
        if _space_files(folder):
            return folder
    raise NotFoundError(
        f"{path} is not a feature store; expected a folder such as the one 'calprompt cache show' names, copied or "
        "mounted from the other machine"
    )
