"""Image features on disk, computed once and shared by every run: a folder of spaces, a space a folder of shards.

    <folder>/<space>/space.json        everything that the features depend on besides an image and its view
                     1f0c….safetensors shards, see `calprompt.features.store.shards`
                     9ab2….index       in which shard a feature is, see `calprompt.features.store.index`
                     usage.jsonl       a line for every use

The folder's name is the digest of what is in space.json, and a key has the digest of an image's content in it, so a
feature is either the right one or not found. Shards are written atomically and never changed, so processes need no lock
to read and write. Many small ones are merged (`calprompt.features.store.compaction`). A folder that cannot be written
to is only read.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calprompt.cache import ENVIRONMENT, cache_folder
from calprompt.errors import CalpromptError
from calprompt.features.store.compaction import compact
from calprompt.features.store.hits import Hits
from calprompt.features.store.index import DamagedIndexError
from calprompt.features.store.shard_files import ShardFiles
from calprompt.features.store.shards import KEY, DamagedShardError, write_shard
from calprompt.features.store.usage import note_use
from calprompt.files import canonical_json, read_json, write_json

ABOUT = "space.json"

SECONDS, ROWS = 1.0, 4096  # features are written when the oldest has waited this long, or there are this many


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
        self.files = ShardFiles(self.folder, identity, lambda: store.writable)
        self._waiting: dict[bytes, Tensor] = {}  # not written yet
        self._since = 0.0

    def find(self, keys: Sequence[bytes]) -> tuple[list[int], Tensor]:
        """Look features up.

        Args:
            keys: See `calprompt.features.store.shards.key`.

        Returns:
            The indices of the keys that have features, and the features [found, D].
        """
        found = FoundRows(len(keys))
        for place, key in enumerate(keys):
            if key in self._waiting:
                found.put(np.array([place]), self._waiting[key][None])

        def read(hits: Hits, right: np.ndarray) -> None:
            raw, dtype = hits.read()
            whole = right.all()  # as nearly always
            rows = torch.from_numpy(raw if whole else raw[right]).view(dtype)
            found.put(hits.which if whole else hits.which[right], rows)

        self._search(keys, found.missing, read)
        return found.result()

    def contains(self, keys: Sequence[bytes]) -> np.ndarray:
        """Which keys have features, as booleans; the features are not read."""
        missing = np.array([key not in self._waiting for key in keys], dtype=bool)

        def note(hits: Hits, right: np.ndarray) -> None:
            missing[hits.which[right]] = False

        self._search(keys, missing, note)
        return ~missing

    def locate(self, key: bytes) -> Path | None:
        """The shard that has the feature of a key; None if there is none, or it is not written yet."""
        missing, paths = np.ones(1, dtype=bool), []

        def note(hits: Hits, right: np.ndarray) -> None:
            missing[:] = False
            paths.append(hits.segments[0].shard.path)

        self._search([key], missing, note)
        return paths[0] if paths else None

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
        self.files.listing.forget()
        self.compact()

    def compact(self) -> bool:
        """Merge some of the shards if there are many; returns whether there were."""
        return self.store.writable and compact(self.files)

    def describe(self) -> None:
        """Write down what the features depend on, unless that was done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            described = read_json(self.folder / ABOUT) is not None
        except CalpromptError:
            described = False
        if not described:
            write_json(self.folder / ABOUT, self.about)

    def note_use(self, found: int, computed: int, seconds: float) -> None:
        """Note how many features were found, how many were computed, and how long that took."""
        if self.store.writable and found + computed:
            note_use(self.folder, found, computed, seconds)

    def _search(self, keys: Sequence[bytes], missing: np.ndarray, use: Callable[[Hits, np.ndarray], None]) -> None:
        """Call `use` with places where missing keys may be, and which of these have the very key."""
        array = np.array(keys, dtype=KEY)
        while missing.any():
            self.files.refresh()
            try:
                for hits in self.files.hits(array, missing):
                    right = hits.keys == array[hits.which]
                    if right.any():
                        use(hits, right)
                return
            except FileNotFoundError:  # merged or pruned since it was listed
                self.files.listing.forget()
            except DamagedShardError as error:
                self.files.set_aside(error.path.name, str(error))
            except DamagedIndexError as error:
                self.files.drop_index(str(error))

    def _write(self, keys: np.ndarray, rows: Tensor) -> None:
        self.describe()
        write_shard(self.folder, self.identity, keys, rows)


class FoundRows:
    """Rows of some keys, put in as they are found."""

    def __init__(self, count: int) -> None:
        self.missing = np.ones(count, dtype=bool)
        self._rows = torch.empty(0, 0)

    def put(self, which: np.ndarray, rows: Tensor) -> None:
        """Put in the rows of the keys of these indices."""
        if not self._rows.numel():
            self._rows = torch.empty(len(self.missing), rows.shape[1], dtype=rows.dtype)
        self._rows[torch.from_numpy(which)] = rows
        self.missing[which] = False

    def result(self) -> tuple[list[int], Tensor]:
        """The indices that have rows, and the rows."""
        if not self.missing.any():
            return list(range(len(self.missing))), self._rows
        found = np.flatnonzero(~self.missing)
        return found.tolist(), self._rows[torch.from_numpy(found)] if len(found) else torch.empty(0, 0)
