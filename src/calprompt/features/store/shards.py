"""A shard: features of some images in one file that is written once and never changed.

    keys      [n, 36] uint8   sha256 of an image's content, then the number of its view; sorted, no two alike
    features  [n, D]
    metadata  space: what else the features depend on, as a digest; sha256: of the space, the keys and the features

It is a safetensors file, mapped into memory: only the rows that are needed are read, and they stay readable after the
file was removed.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from calprompt.files import write_bytes

SUFFIX = ".safetensors"
DAMAGED = ".damaged"  # of a file that was set aside
DIGEST = 32
KEY = np.dtype("S36")


class DamagedShardError(Exception):
    """A shard whose contents are not what was written."""


def key(digest: str, view: int) -> bytes:
    """The key of a view of an image: 0 is the view for evaluation, 1 and above are those for training."""
    return bytes.fromhex(digest) + view.to_bytes(KEY.itemsize - DIGEST, "big")


@dataclass(eq=False)
class Shard:
    """An opened shard; its rows are not read before `verify`.

    Attributes:
        path: Where the file is.
        space: The digest of what else the features depend on.
        keys: Sorted keys [n], of the type KEY.
        rows: Features [n, D].
        checksum: Of the space, the keys and the features.
        size: Of the file, in bytes.
        verified: Whether the checksum was compared.
    """

    path: Path
    space: str
    keys: np.ndarray
    rows: Tensor
    checksum: str
    size: int
    verified: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def verify(self) -> None:
        """Compare the checksum, once.

        Raises:
            DamagedShardError: if it is wrong.
        """
        if not self.verified and _checksum(self.space, self.keys, self.rows) != self.checksum:
            raise DamagedShardError("its checksum is wrong")
        self.verified = True

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look keys up.

        Returns:
            Which of the keys the shard has, as booleans, and the rows of those that it has.
        """
        rows = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        stored = self.keys[rows] == keys
        return stored, rows[stored]


def write_shard(folder: Path, space: str, keys: np.ndarray, rows: Tensor) -> Path:
    """Write features into a new file, atomically; returns its path."""
    keys, first = np.unique(keys, return_index=True)
    rows = rows[torch.from_numpy(first)].contiguous()
    tensors = {"keys": torch.from_numpy(keys.view(np.uint8).reshape(len(keys), KEY.itemsize)), "features": rows}
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"  # a name that no other process uses
    write_bytes(path, bytes(save(tensors, {"space": space, "sha256": _checksum(space, keys, rows)})))
    return path


def open_shard(path: Path, space: str) -> Shard:
    """Map a shard of this space into memory.

    Raises:
        DamagedShardError: if the file is not a shard of this space.
        OSError: if it cannot be opened.
    """
    try:
        with safe_open(path, framework="pt") as file:
            keys, rows, metadata = file.get_tensor("keys"), file.get_tensor("features"), file.metadata() or {}
        size = path.stat().st_size
    except (SafetensorError, ValueError) as error:
        raise DamagedShardError(str(error)) from error
    if metadata.get("space") != space:
        raise DamagedShardError("it was made for something else")
    if keys.ndim != 2 or keys.shape[1] != KEY.itemsize or rows.ndim != 2 or len(rows) != len(keys) or not len(keys):
        raise DamagedShardError(f"its keys are {list(keys.shape)} and its features {list(rows.shape)}")
    return Shard(path, space, keys.numpy().view(KEY).reshape(-1), rows, metadata.get("sha256", ""), size)


def _checksum(space: str, keys: np.ndarray, rows: Tensor) -> str:
    digest = hashlib.sha256(space.encode())
    for part in (keys.view(np.uint8), rows.numpy().reshape(-1).view(np.uint8)):
        digest.update(part.data)
    return digest.hexdigest()
