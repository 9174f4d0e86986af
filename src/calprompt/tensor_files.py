"""Tensors of a run on disk: safetensors, never pickled, the same bytes for the same values, with a checksum inside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from calprompt.errors import DamagedFileError, NotFoundError
from calprompt.files import canonical_json

CHECKSUM = "sha256"


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file.

    Its metadata stand under one key, as JSON: of several keys the format does not keep the order. A checksum of tensors
    and metadata stands among them.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    payload = {**metadata, CHECKSUM: _checksum(plain, metadata)}
    return bytes(save(plain, {"calprompt": canonical_json(payload).decode()}))


def read_tensor_file(path: Path, *, checked: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata that `tensor_file` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
            metadata = json.loads((file.metadata() or {})["calprompt"])
        expected = metadata.pop(CHECKSUM, None)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no {path}") from error
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or not of a run ({error}); delete it to start over") from error
    if (checked or expected is not None) and expected != _checksum(tensors, metadata):
        raise DamagedFileError(f"{path} is damaged, its checksum is wrong; delete it to start over")
    return tensors, metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(metadata))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
