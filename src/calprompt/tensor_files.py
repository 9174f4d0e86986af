"""Tensors of a run on disk: safetensors, never pickled, the same bytes for the same values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from calprompt.errors import CalpromptError
from calprompt.files import canonical_json


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file; its metadata under one key, as JSON: of several keys the format does not keep the order."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return bytes(save(plain, {"calprompt": canonical_json(metadata).decode()}))


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata that `tensor_file` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
            return tensors, json.loads((file.metadata() or {})["calprompt"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CalpromptError(f"{path} is damaged or not of a run ({error}); delete it to start over") from error
