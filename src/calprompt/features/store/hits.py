"""Rows of several shards that belong to the keys of one look-up, read and compared with their checksums at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from calprompt.features.store.shards import KEY, DamagedShardError, Shard, row_checksums


@dataclass(frozen=True, eq=False)
class Segment:
    """The rows of one shard among the rows of a look-up.

    Attributes:
        shard: The shard.
        start: The first of its rows.
        stop: The one after the last.
    """

    shard: Shard
    start: int
    stop: int


@dataclass(eq=False)
class Hits:
    """Where some keys are.

    Attributes:
        which: Indices of the keys that were looked for.
        rows: For each of them, the row in its shard.
        segments: The shards, in the order of the rows.
        keys: What the shards have there, once it was read.
    """

    which: np.ndarray
    rows: np.ndarray
    segments: Sequence[Segment]
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, KEY))

    def read_keys(self) -> None:
        """Read the keys of the rows."""
        self.keys = np.empty(len(self.rows), dtype=KEY)
        for each in self.segments:
            part = slice(each.start, each.stop)
            each.shard.keys.take(self.rows[part], out=self.keys[part], mode="clip")

    def read(self) -> tuple[np.ndarray, torch.dtype]:
        """Read the features, compared with their checksums.

        Returns:
            Their bytes [rows, bytes of a row] and their type.

        Raises:
            DamagedShardError: if one is not what was written.
        """
        first = self.segments[0].shard
        raw = np.empty((len(self.rows), first.raw.shape[1]), dtype=np.uint8)
        sums = np.empty(len(raw), dtype="<u8")
        compared = np.ones(len(raw), dtype=bool)
        for each in self.segments:
            part, shard = slice(each.start, each.stop), each.shard
            if shard.kind != first.kind:
                raise DamagedShardError(shard.path, f"its features are {shard.kind}, those of others {first.kind}")
            shard.raw.take(self.rows[part], axis=0, out=raw[part], mode="clip")
            if shard.sums is None:
                shard.verify()
                compared[part] = False
            else:
                shard.sums.take(self.rows[part], out=sums[part], mode="clip")
        if compared.all():
            wrong = row_checksums(first.space, first.kind, self.keys, raw) != sums
        else:
            wrong = np.zeros(len(raw), dtype=bool)
            wrong[compared] = (
                row_checksums(first.space, first.kind, self.keys[compared], raw[compared]) != sums[compared]
            )
        if wrong.any():
            place = int(np.argmax(wrong))
            shard = next(each.shard for each in self.segments if each.start <= place < each.stop)
            raise DamagedShardError(shard.path, "the checksum of a feature is wrong")
        return raw, first.kind[0]
