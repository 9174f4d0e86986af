"""The shards of a space as one process sees them: listed, opened when needed, found through the index.

    key ── index ── shard and row ── the shard's own key is the same? ── checksum of the row is right? ── feature
      └─── the few shards that the index does not list yet, one by one ──┘

When these get many, the index is made again: entries of shards that are still there are taken over, those of new shards
are added. It is written if the folder can be written to, and otherwise kept in memory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from calprompt.errors import CalpromptError
from calprompt.features.store.hits import Hits, Segment
from calprompt.features.store.index import (
    INDEX,
    DamagedIndexError,
    Index,
    build_index,
    hashes,
    newest_index,
    open_index,
    write_index,
)
from calprompt.features.store.listing import Listing
from calprompt.features.store.shards import DAMAGED, SUFFIX, DamagedShardError, Shard, open_shard, write_shard
from calprompt.files import locked

NO_LOCK = (CalpromptError, OSError, NotImplementedError)  # busy, not writable, or a file system without locks
MERGED = ".merged"  # of a file whose contents are in another one
OUTSIDE = 16  # shards that may be outside the index,
PER = 1 << 18  # and one more for so many keys in it, because making it again takes the longer


class ShardFiles:
    """The shards of one folder.

    Args:
        folder: Where they are.
        space: The digest of what their features depend on.
        writable: Tells whether the folder may be written to.
    """

    def __init__(self, folder: Path, space: str, writable: Callable[[], bool]) -> None:
        self.folder, self.space, self.writable = folder, space, writable
        self.names: frozenset[str] = frozenset()
        self.index: Index | None = None
        self.listing = Listing(folder)
        self._opened: dict[str, Shard] = {}
        self._outside: list[Shard] = []
        self._unusable: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._index_name: str | None = None  # of the index that was read or written last

    def refresh(self, *, reindex: bool = True) -> None:
        """See what other processes have done in the meantime.

        Args:
            reindex: Whether an index may be made.
        """
        while self.listing.refresh():
            names = frozenset(name for name in self.listing.names if name.endswith(SUFFIX)) - self._unusable
            if names == self.names and self._newest() in (None, self._index_name):
                return
            self.names = names
            self._opened = {name: shard for name, shard in self._opened.items() if name in names}
            self._read_index()
            try:
                self._open_outside(reindex)
                return
            except FileNotFoundError:  # merged or pruned since it was listed
                self.names = frozenset()
                self.listing.forget()

    def open(self, name: str) -> Shard | None:
        """A shard; None if it cannot be used.

        Raises:
            FileNotFoundError: if it was merged or pruned since it was listed.
        """
        if name not in self.names:
            return None
        if name not in self._opened:
            path = self.folder / name
            try:
                self._opened[name] = open_shard(path, self.space)
            except DamagedShardError as error:
                self.set_aside(name, str(error))
                return None
            except FileNotFoundError:
                if not path.is_symlink():
                    raise
                self._leave_out(name)
                return None
            except PermissionError:  # another user's
                self._leave_out(name)
                return None
        return self._opened[name]

    def all(self) -> Iterator[Shard]:
        """All shards that can be used."""
        for name in sorted(self.names):
            shard = self.open(name)
            if shard is not None:
                yield shard

    def sizes(self) -> dict[str, int]:
        """Bytes of all shards; a shard never changes, so each is asked once."""
        for name in self.names - self._sizes.keys():
            with suppress(OSError):
                self._sizes[name] = os.stat(self.folder / name).st_size
        self._sizes = {name: size for name, size in self._sizes.items() if name in self.names}
        return self._sizes

    def hits(self, keys: np.ndarray, missing: np.ndarray) -> Iterator[Hits]:
        """Where keys are: first what the index says, then in the shards that it does not list.

        Args:
            keys: Of the type KEY.
            missing: Which of them are looked for, as booleans; the caller clears those it has found.

        Raises:
            FileNotFoundError: if a shard was merged or pruned since it was listed.
            DamagedIndexError: if the index does not match the shards.
        """
        if self.index is not None and missing.any():
            wanted = hashes(keys)
            for which, numbers, rows in self.index.candidates(wanted, missing):
                hits = self._indexed(self.index.names, which, numbers, rows)
                if not hits.segments:
                    continue
                hits.read_keys()
                if (hashes(hits.keys) != wanted[hits.which]).any():
                    raise DamagedIndexError("it does not match the shards")
                yield hits
        if self._outside and missing.any():
            hits = self._unindexed(keys, missing)
            if hits.segments:
                hits.read_keys()
                yield hits

    def _indexed(self, names: Sequence[str], which: np.ndarray, numbers: np.ndarray, rows: np.ndarray) -> Hits:
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        usable = np.ones(len(order), dtype=bool)
        segments, place = [], 0
        for start, stop in pairwise([*starts.tolist(), len(order)]):
            shard = self.open(names[numbers[order[start]]])
            if shard is None:
                usable[start:stop] = False
                continue
            segments.append(Segment(shard, place, place + stop - start))
            place += stop - start
        order = order[usable]
        lengths = np.repeat([len(each.shard) for each in segments], [each.stop - each.start for each in segments])
        if (rows[order] >= lengths).any():
            raise DamagedIndexError("it has rows that are not in the shards")
        return Hits(which[order], rows[order], segments)

    def _unindexed(self, keys: np.ndarray, missing: np.ndarray) -> Hits:
        left = np.flatnonzero(missing)
        which, rows, segments, place = [], [], [], 0
        for shard in self._outside:
            stored, found = shard.find(keys[left])
            if len(found):
                which.append(left[stored])
                rows.append(found)
                segments.append(Segment(shard, place, place + len(found)))
                place += len(found)
                left = left[~stored]
                if not len(left):
                    break
        nothing = np.empty(0, dtype=np.int64)
        return Hits(np.concatenate([nothing, *which]), np.concatenate([nothing, *rows]), segments)

    def hashes(self) -> np.ndarray:
        """Of all keys, in no order; those of a key that is in several shards come several times."""
        parts = [hashes(shard.keys) for shard in self._outside]
        if self.index is not None:
            parts.append(self.index.only(self.names))
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def set_aside(self, name: str, reason: str) -> None:
        """Rename a damaged shard, so that it is not used any more, with a warning; its intact rows are kept."""
        path, shard = self.folder / name, self._opened.get(name)
        self._leave_out(name)
        warnings.warn(
            f"{path} is damaged ({reason}); it is set aside, and what is lost is computed again", stacklevel=2
        )
        if not self.writable():
            return
        with suppress(OSError):
            os.rename(path, path.with_suffix(DAMAGED))
            self.listing.forget()
            intact = np.zeros(0, dtype=bool) if shard is None else shard.intact()
            if shard is not None and intact.any():
                write_shard(self.folder, self.space, shard.keys[intact], shard.rows[torch.from_numpy(intact)])

    def drop_index(self, reason: str) -> None:
        """Stop using the index, with a warning; another is made when it is needed."""
        self.index = None
        path = self.folder / (self._index_name or "")
        warnings.warn(f"{path} is damaged ({reason}); the index is made again", stacklevel=2)
        if self.writable():
            with suppress(OSError):
                path.unlink()
        self.names = frozenset()
        self.listing.forget()

    def _leave_out(self, name: str) -> None:
        self._unusable.add(name)
        self._opened.pop(name, None)
        self._outside = [shard for shard in self._outside if shard.path.name != name]
        self.names -= {name}

    def _read_index(self) -> None:
        name = self._newest()
        if name is None or name == self._index_name:
            return
        self._index_name = name
        try:
            self.index = open_index(self.folder / name, self.space)
        except DamagedIndexError as error:
            names = self.names
            self.drop_index(str(error))
            self.names = names
        except (FileNotFoundError, PermissionError):
            pass

    def _open_outside(self, reindex: bool) -> None:
        listed = frozenset() if self.index is None else frozenset(self.index.names)
        shards = [self.open(name) for name in sorted(self.names - listed)]
        self._outside = sorted((shard for shard in shards if shard is not None), key=len, reverse=True)
        entries = 0 if self.index is None else len(self.index)
        if reindex and len(self._outside) > OUTSIDE + entries // PER:
            self.index = build_index(self._outside, self.index, self.names)
            self._outside = []
            self._write_index()

    def _write_index(self) -> None:
        if self.index is None or not self.writable():
            return
        with suppress(*NO_LOCK), locked(self.folder):
            self.listing.forget()
            self.listing.refresh()
            if self._newest() not in (None, self._index_name):
                return  # another process has just made one
            others = [name for name in self.listing.names if name.endswith(INDEX)]
            self._index_name = write_index(self.folder, self.space, self.index)
            for name in others:
                replaced(self.folder / name)
            self.listing.forget()

    def _newest(self) -> str | None:
        return newest_index(self.folder, self.listing.names)


def replaced(path: Path) -> None:
    """Rename a file whose contents are in another one; it is removed later, when nobody can be reading it."""
    with suppress(FileNotFoundError):
        os.utime(path)
        os.rename(path, path.with_suffix(MERGED))
