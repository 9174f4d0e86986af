"""A safetensors file written a piece at a time, so that its size does not matter for memory.

    length of the header | header: JSON, with names, types, places and metadata | tensors, one after the other

The checksum among the metadata is known at the end only, so the header is written twice; the file appears in its place
when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from calprompt.files import replacing

CHECKSUM = "sha256"
SIZES = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I64": 8}  # bytes, by the names that safetensors uses


class Digest(Protocol):
    """A sum over everything that matters in the file, such as `hashlib.sha256()`."""

    def hexdigest(self) -> str:
        """The sum so far, always of the same length."""
        ...


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor to write.

    Attributes:
        name: In the file.
        dtype: As safetensors spells it.
        shape: Of the whole.
        pieces: Its contents in C order, as contiguous arrays.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]

    @property
    def size(self) -> int:
        """In bytes."""
        return SIZES[self.dtype] * prod(self.shape)


def write_tensors(path: Path, tensors: Sequence[StreamedTensor], metadata: Mapping[str, str], checksum: Digest) -> None:
    """Write a file, atomically.

    Args:
        path: Where.
        tensors: In the order of the file; those of larger elements first, so that all are aligned.
        metadata: Texts by name.
        checksum: Is read when all pieces were taken, and stands among the metadata.
    """
    with replacing(path) as file:
        file.write(_header(tensors, metadata, checksum))
        for tensor in tensors:
            written = 0
            for piece in tensor.pieces:
                written += file.write(piece.reshape(-1).view(np.uint8).data)
            if written != tensor.size:
                raise ValueError(f"{tensor.name} has {written} bytes, not {tensor.size}")
        file.seek(0)
        file.write(_header(tensors, metadata, checksum))


def _header(tensors: Sequence[StreamedTensor], metadata: Mapping[str, str], checksum: Digest) -> bytes:
    table: dict[str, Any] = {"__metadata__": {**metadata, CHECKSUM: checksum.hexdigest()}}
    start = 0
    for tensor in tensors:
        table[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.size],
        }
        start += tensor.size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
