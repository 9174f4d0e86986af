"""A shard: features of some images in one file that is written once and never changed.

    keys      [n, 36] uint8   sha256 of an image's content, then the number of its view; sorted, no two alike
    features  [n, D]
    metadata  space: what else the features depend on, as a digest; sha256: of the space, the keys and the features

It is a safetensors file, mapped into memory: only rows that are asked for are read, and they stay readable after the
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
    """What is in the file is not what was written."""


def key(digest: str, view: int) -> bytes:
    """Of a view of an image: 0 is the one for evaluation, from 1 on come those for training."""
    return bytes.fromhex(digest) + view.to_bytes(KEY.itemsize - DIGEST, "big")


@dataclass(eq=False)
class Shard:
    """An opened shard; its rows are not looked at before `verify`."""

    path: Path
    space: str
    keys: np.ndarray  # [n] of KEY
    rows: Tensor  # [n, D]
    checksum: str
    size: int  # of the file, in bytes
    verified: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def verify(self) -> None:
        """Compare the checksum, once."""
        if not self.verified and _checksum(self.space, self.keys, self.rows) != self.checksum:
            raise DamagedShardError("its checksum is wrong")
        self.verified = True

    def find(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the wanted keys are here, and in which rows: [wanted] of bool, [found]."""
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        here = self.keys[places] == wanted
        return here, places[here]


def write_shard(folder: Path, space: str, keys: np.ndarray, rows: Tensor) -> Path:
    """Write features into a file of their own, in one step."""
    keys, first = np.unique(keys, return_index=True)
    rows = rows[torch.from_numpy(first)].contiguous()
    held = {"keys": torch.from_numpy(keys.view(np.uint8).reshape(len(keys), KEY.itemsize)), "features": rows}
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"  # a name no other process writes to
    write_bytes(path, bytes(save(held, {"space": space, "sha256": _checksum(space, keys, rows)})))
    return path


def open_shard(path: Path, space: str) -> Shard:
    """Map a shard of this space; a file that is not one is damaged, and a missing one an OSError."""
    try:
        with safe_open(path, framework="pt") as file:
            keys, rows, told = file.get_tensor("keys"), file.get_tensor("features"), file.metadata() or {}
        size = path.stat().st_size
    except (SafetensorError, ValueError) as error:
        raise DamagedShardError(str(error)) from error
    if told.get("space") != space:
        raise DamagedShardError("it was made for something else")
    if keys.ndim != 2 or keys.shape[1] != KEY.itemsize or rows.ndim != 2 or len(rows) != len(keys) or not len(keys):
        raise DamagedShardError(f"its keys are {list(keys.shape)} and its features {list(rows.shape)}")
    return Shard(path, space, keys.numpy().view(KEY).reshape(-1), rows, told.get("sha256", ""), size)


def _checksum(space: str, keys: np.ndarray, rows: Tensor) -> str:
    digest = hashlib.sha256(space.encode())
    for part in (keys.view(np.uint8), rows.numpy().reshape(-1).view(np.uint8)):
        digest.update(part.data)
    return digest.hexdigest()
