"""Image features on disk, computed once and shared by every run: a folder of spaces, a space a folder of shards.

    <folder>/<space>/space.json        everything that the features depend on besides an image and its view
                     1f0c….safetensors shards, see `calprompt.features.store.shards`
                     usage.jsonl       a line for every use

The folder's name is the digest of what is in space.json, and a key has the digest of an image's content in it, so a
feature is either the right one or not found. Shards are written atomically and never changed, so processes need no lock
to read and write. Many small ones are merged by the process that gets the space's lock. A folder that cannot be written
to is only read.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.cache import ENVIRONMENT, cache_folder
from calprompt.errors import CalpromptError
from calprompt.features.store.shards import DAMAGED, KEY, SUFFIX, DamagedShardError, Shard, open_shard, write_shard
from calprompt.features.store.usage import note_use
from calprompt.files import canonical_json, locked, read_json, write_json

ABOUT = "space.json"

SECONDS, ROWS = 1.0, 4096  # features are written when the oldest has waited this long, or there are this many
FAN = 16  # shards of about the same size that are merged into one
LARGEST = 2 << 20  # bytes of a shard that is not merged any more


class FeatureStore:
    """Image features on disk.

    Args:
        folder: Where they are; "features" in the cache folder, see `calprompt.cache`, unless given.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = cache_folder("features") if folder is None else Path(folder).expanduser()
        self.writable = True  # until a write fails
        self._spaces: dict[str, Space] = {}

    def __repr__(self) -> str:
        return f"FeatureStore({str(self.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)  # another process opens its own files

    def space(self, about: Mapping[str, Any], name: str) -> Space:
        """The features of one kind.

        Args:
            about: Everything that they depend on besides the image and its view, as plain data.
            name: Of the backbone, for people.
        """
        identity = hashlib.sha256(canonical_json(about)).hexdigest()[:32]
        if identity not in self._spaces:
            self._spaces[identity] = Space(self, identity, {"name": name, **about})
        return self._spaces[identity]

    def give_up(self, error: OSError) -> None:
        """Stop writing, with one warning."""
        if self.writable:
            reason = error.strerror or str(error)
            warnings.warn(
                f"features are not stored: cannot write to {self.folder} ({reason}); set {ENVIRONMENT} to a folder "
                "with room, or free some with 'calprompt cache prune'",
                stacklevel=2,
            )
        self.writable = False


class Space:
    """Features that differ in nothing but the image and its view; use it from one thread."""

    def __init__(self, store: FeatureStore, identity: str, about: Mapping[str, Any]) -> None:
        self.store, self.identity, self.about = store, identity, about
        self.folder = store.folder / identity
        self.shards: dict[str, Shard] = {}  # by file name
        self._waiting: dict[bytes, Tensor] = {}  # not written yet
        self._since = 0.0

    def refresh(self) -> None:
        """Open the shards that other processes have written in the meantime."""
        while True:
            names = self._names()
            if names != self._names():  # a merge while listing: the list may lack both the old and the new shard
                continue
            self.shards = {name: shard for name, shard in self.shards.items() if name in names}
            with suppress(FileNotFoundError):
                for name in sorted(names - self.shards.keys()):
                    try:
                        self.shards[name] = open_shard(self.folder / name, self.identity)
                    except DamagedShardError as error:
                        self.set_aside(name, str(error))
                    except PermissionError:
                        continue  # another user's
                return

    def find(self, keys: Sequence[bytes]) -> tuple[list[int], Tensor]:
        """Look features up.

        Returns:
            The indices of the keys that have features, and the features [found, D].
        """
        self.refresh()
        array = np.array(keys, dtype=KEY)
        found: dict[int, Tensor] = {i: self._waiting[key] for i, key in enumerate(keys) if key in self._waiting}
        for name, shard in sorted(self.shards.items(), key=lambda item: -len(item[1])):
            missing = np.array([i for i in range(len(keys)) if i not in found], dtype=np.int64)
            if not len(missing):
                break
            stored, rows = shard.find(array[missing])
            if not len(rows):
                continue
            try:
                shard.verify()
            except DamagedShardError as error:
                self.set_aside(name, str(error))
                continue
            found |= dict(zip(missing[stored].tolist(), shard.rows[torch.from_numpy(rows)], strict=True))
        return list(found), torch.stack(list(found.values())) if found else torch.empty(0, 0)

    def add(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Store features [keys, D]; they are written after a moment, together with others, or by `flush`."""
        if not keys:
            return
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting |= dict(zip(keys, rows, strict=True))
        if len(self._waiting) >= ROWS or time.monotonic() - self._since >= SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the features that are waiting; if that fails, the store writes no more."""
        waiting, self._waiting = self._waiting, {}
        if not waiting or not self.store.writable:
            return
        keys, rows = np.array(list(waiting), dtype=KEY), torch.stack(list(waiting.values()))
        try:
            try:
                self._write(keys, rows)
            except FileNotFoundError:  # the space was pruned at this moment
                self._write(keys, rows)
        except OSError as error:
            self.store.give_up(error)
            return
        self._merge()

    def note_use(self, found: int, computed: int, seconds: float) -> None:
        """Note how many features were found, how many were computed, and how long that took."""
        if self.store.writable and found + computed:
            note_use(self.folder, found, computed, seconds)

    def set_aside(self, name: str, reason: str) -> None:
        """Rename a damaged shard, so that it is not used any more, with a warning."""
        self.shards.pop(name, None)
        warnings.warn(
            f"{self.folder / name} is damaged ({reason}); it is set aside, and its features are computed again",
            stacklevel=2,
        )
        with suppress(OSError):
            os.rename(self.folder / name, (self.folder / name).with_suffix(DAMAGED))

    def _names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self.folder) if name.endswith(SUFFIX) and not name.startswith(".")}
        except OSError:
            return set()

    def _write(self, keys: np.ndarray, rows: Tensor) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            described = read_json(self.folder / ABOUT) is not None
        except CalpromptError:
            described = False
        if not described:
            draft = self.folder / f".{secrets.token_hex(8)}.tmp"  # two processes may come here at once
            write_json(draft, self.about)
            os.replace(draft, self.folder / ABOUT)
        write_shard(self.folder, self.identity, keys, rows)

    def _merge(self) -> None:
        """Merge shards of about the same size, unless another process is merging."""
        self.refresh()
        tiers: dict[int, list[Shard]] = defaultdict(list)
        for shard in self.shards.values():
            if shard.size < LARGEST:
                tiers[int(math.log(shard.size, FAN))].append(shard)
        if max(map(len, tiers.values()), default=0) < FAN:
            return
        with suppress(CalpromptError, OSError), locked(self.folder):
            before = self._names()  # another process may just have done it
            for tier in tiers.values():
                if len(tier) >= FAN and all(shard.path.name in before for shard in tier):
                    self._put_together(tier)

    def _put_together(self, shards: Sequence[Shard]) -> None:
        good = []
        for shard in shards:
            try:
                shard.verify()
                good.append(shard)
            except DamagedShardError as error:
                self.set_aside(shard.path.name, str(error))
        keys, rows = np.concatenate([shard.keys for shard in good]), torch.cat([shard.rows for shard in good])
        write_shard(self.folder, self.identity, keys, rows)
        for shard in good:  # only now, so that every feature is always in one file or the other
            shard.path.unlink(missing_ok=True)
