"""A shard: features of some images in one file that is written once and never changed.

    features   [n, D]
    keys       [n, 36] uint8   sha256 of an image's content, then the number of its view; sorted, no two alike
    checksums  [n, 8] uint8    of each row by itself: of the space, the type, the key and the feature
    metadata   space: what else the features depend on, as a digest; sha256: of the space, the keys and the features

It is a safetensors file, mapped into memory: only the rows that are needed are read, and each is compared with its
checksum. Files without checksums of rows, as earlier versions wrote them, are compared as a whole before the first use.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from calprompt.features.store.streaming import CHECKSUM, StreamedTensor, write_tensors

SUFFIX = ".safetensors"
DAMAGED = ".damaged"  # of a file that was set aside
DIGEST = 32
KEY = np.dtype("S36")
TYPES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
AT_ONCE = 4096  # rows that are copied together


class DamagedShardError(Exception):
    """A shard whose contents are not what was written.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def key(digest: str, view: int) -> bytes:
    """The key of a view of an image: 0 is the view for evaluation, 1 and above are those for training."""
    return bytes.fromhex(digest) + view.to_bytes(KEY.itemsize - DIGEST, "big")


@dataclass(eq=False)
class Shard:
    """An opened shard; nothing of it is read before it is needed.

    Attributes:
        path: Where the file is.
        space: The digest of what else the features depend on.
        keys: Sorted keys [n], of the type KEY.
        rows: Features [n, D].
        sums: Checksums [n] of the rows; None in a file of an earlier version.
        checksum: Of the space, the keys and the features.
        size: Of the file, in bytes.
        verified: Whether the checksum of the whole was compared.
    """

    path: Path
    space: str
    keys: np.ndarray
    rows: Tensor
    sums: np.ndarray | None
    checksum: str
    size: int
    verified: bool = False

    def __post_init__(self) -> None:
        self.raw = self.rows.view(torch.uint8).numpy()  # [n, bytes of a row]
        self.kind = (self.rows.dtype, self.rows.shape[1])

    def __len__(self) -> int:
        return len(self.keys)

    def verify(self) -> None:
        """Compare the checksum of the whole, once, and those of all rows.

        Raises:
            DamagedShardError: if one is wrong.
        """
        if self.verified:
            return
        digest = hashlib.sha256(self.space.encode())
        digest.update(self.keys.view(np.uint8).data)
        digest.update(self.raw.data)
        if digest.hexdigest() != self.checksum or not (self.sums is None or self.intact().all()):
            raise DamagedShardError(self.path, "its checksum is wrong")
        self.verified = True

    def intact(self) -> np.ndarray:
        """Which rows are what was written, as booleans; none of a file that has no checksums of rows."""
        if self.sums is None:
            return np.zeros(len(self), dtype=bool)
        parts = [slice(start, start + AT_ONCE) for start in range(0, len(self), AT_ONCE)]
        return np.concatenate(
            [row_checksums(self.space, self.kind, self.keys[part], self.raw[part]) == self.sums[part] for part in parts]
        )

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look keys up.

        Returns:
            Which of the keys the shard has, as booleans, and the rows of those that it has.
        """
        rows = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        stored = self.keys[rows] == keys
        return stored, rows[stored]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Read rows, compared with their checksums.

        Returns:
            The bytes of the features [rows, bytes of a row] and their checksums, if the file has any.

        Raises:
            DamagedShardError: if one is not what was written.
        """
        if self.sums is None:
            self.verify()
            return self.raw[rows], None
        values = self.raw[rows]
        sums = row_checksums(self.space, self.kind, self.keys[rows], values)
        if not np.array_equal(sums, self.sums[rows]):
            raise DamagedShardError(self.path, "the checksum of a feature is wrong")
        return values, sums


def row_checksums(space: str, kind: tuple[torch.dtype, int], keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Checksums of features one by one, as numbers [n].

    Args:
        space: The digest of what else the features depend on.
        kind: Their type and D.
        keys: [n], of the type KEY.
        rows: Their bytes, [n, bytes of a row].
    """
    start = hashlib.sha256(f"{space} {TYPES[kind[0]]} {kind[1]}".encode())
    texts, values, sums = keys.tobytes(), np.ascontiguousarray(rows).reshape(-1).data, []
    width = rows.shape[1]
    for number in range(len(keys)):
        digest = start.copy()
        digest.update(texts[number * KEY.itemsize : (number + 1) * KEY.itemsize])
        digest.update(values[number * width : (number + 1) * width])
        sums.append(digest.digest()[:8])
    return np.frombuffer(b"".join(sums), dtype="<u8")


def write_shard(folder: Path, space: str, keys: np.ndarray, rows: Tensor) -> Path:
    """Write features into a new file, atomically; returns its path."""
    keys, first = np.unique(keys, return_index=True)
    rows = rows[torch.from_numpy(first)].contiguous()
    return write_rows(folder, space, keys, (rows.dtype, rows.shape[1]), [(rows.view(torch.uint8).numpy(), None)])


def write_rows(
    folder: Path,
    space: str,
    keys: np.ndarray,
    kind: tuple[torch.dtype, int],
    pieces: Iterable[tuple[np.ndarray, np.ndarray | None]],
) -> Path:
    """Write features into a new file, a piece at a time, atomically.

    Args:
        folder: Of the space.
        space: The digest of what else the features depend on.
        keys: Sorted, no two alike.
        kind: The type of the features and D.
        pieces: In the order of the keys: bytes of features, and their checksums if these are known.

    Returns:
        The path of the new file.
    """
    digest = hashlib.sha256(space.encode())
    digest.update(keys.view(np.uint8).data)
    sums: list[np.ndarray] = []

    def features() -> Iterator[np.ndarray]:
        done = 0
        for raw, known in pieces:
            digest.update(raw.data)
            some = keys[done : done + len(raw)]
            sums.append(row_checksums(space, kind, some, raw) if known is None else known)
            done += len(raw)
            yield raw

    tensors = (
        StreamedTensor("features", TYPES[kind[0]], (len(keys), kind[1]), features()),
        StreamedTensor("keys", "U8", (len(keys), KEY.itemsize), [keys]),
        StreamedTensor("checksums", "U8", (len(keys), 8), sums),
    )
    path = folder / f"{secrets.token_hex(8)}{SUFFIX}"  # a name that no other process uses
    write_tensors(path, tensors, {"space": space}, digest)
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
            sums = file.get_tensor("checksums") if "checksums" in file.keys() else None  # noqa: SIM118 (no dictionary)
        size = path.stat().st_size
    except (SafetensorError, ValueError, RuntimeError) as error:  # torch's, if the file vanishes in between
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise DamagedShardError(path, str(error)) from error
    if metadata.get("space") != space:
        raise DamagedShardError(path, "it was made for something else")
    if keys.ndim != 2 or keys.shape[1] != KEY.itemsize or rows.ndim != 2 or len(rows) != len(keys) or not len(keys):
        raise DamagedShardError(path, f"its keys are {list(keys.shape)} and its features {list(rows.shape)}")
    if rows.dtype not in TYPES or keys.dtype != torch.uint8 or not rows.shape[1]:
        raise DamagedShardError(path, f"its keys are {keys.dtype} and its features {rows.dtype}")
    if sums is not None and (sums.dtype != torch.uint8 or sums.shape != (len(keys), 8)):
        raise DamagedShardError(path, f"its checksums are {sums.dtype} {list(sums.shape)}")
    numbers = None if sums is None else sums.numpy().view("<u8").reshape(-1)
    return Shard(path, space, keys.numpy().view(KEY).reshape(-1), rows, numbers, metadata.get(CHECKSUM, ""), size)
