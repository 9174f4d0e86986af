"""JSON and safetensors files with a checksum inside: damage, edits and newer formats are noticed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import calprompt
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, NotFoundError
from calprompt.files import canonical_json, json_digest, read_json

if TYPE_CHECKING:
    from torch import Tensor


def sealed(payload: Mapping[str, Any], number: int) -> dict[str, Any]:
    """With a format number and a checksum of everything."""
    whole = {"format": number, **{name: value for name, value in payload.items() if name not in ("format", "checksum")}}
    return {**whole, "checksum": json_digest(whole)}


def read_sealed(path: Path, number: int, keys: set[str], advice: str) -> dict[str, Any]:
    """A JSON file that `sealed` made, or one without a format number, verified."""
    try:
        payload = read_json(path)
    except NotFoundError:
        raise
    except CalpromptError as error:
        raise DamagedFileError(f"{error}; {advice}") from error
    require(path, payload, set(), advice)
    _refuse_newer(path, payload, number)
    checksum = payload.pop("checksum", None)
    if "format" in payload or checksum is not None:
        try:
            right = checksum == json_digest(payload)
        except (TypeError, ValueError):
            right = False
        if not right:
            raise DamagedFileError(f"{path} is damaged or was edited, its checksum is wrong; {advice}")
    payload.pop("format", None)
    require(path, payload, keys, advice)
    return payload


def require(path: Path, payload: Any, keys: set[str], advice: str, within: str | None = None) -> None:
    """Raise for keys that are missing."""
    place = f" in {within!r}" if within else ""
    if not isinstance(payload, dict):
        raise DamagedFileError(f"{path} is damaged, {within or 'it'} has no settings by name; {advice}")
    missing = sorted(keys - set(payload))
    if missing:
        raise DamagedFileError(f"{path} is damaged, it has no {', '.join(missing)}{place}; {advice}")


def _refuse_newer(path: Path, payload: Mapping[str, Any], known: int) -> None:
    number = payload.get("format", 1)
    versions = payload.get("versions")
    written = str(versions.get("calprompt", "")) if isinstance(versions, dict) else ""
    newer = isinstance(number, int) and number > known
    if not newer and written:
        newer = _release(written) > _release(calprompt.__version__)
    if newer:
        by = f"calprompt {written}" if written else "a newer calprompt"
        raise NewerFormatError(
            f"{path} was written by {by} (format {number}), and this is calprompt {calprompt.__version__}, which reads "
            f"formats up to {known}; update calprompt to read it"
        )


def _release(version: str) -> tuple[int, int]:
    """Major and minor number: what may change a format."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


CHECKSUM = "sha256"


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file.

    Its metadata stand under one key, as JSON: of several keys the format does not keep the order. A checksum of tensors
    and metadata stands among them.
    """
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    payload = {**metadata, CHECKSUM: _tensor_checksum(plain, metadata)}
    return bytes(save(plain, {"calprompt": canonical_json(payload).decode()}))


def read_tensor_file(
    path: Path, *, checked: bool = False, framework: str = "pt"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors, or arrays of the framework "numpy", and metadata that `tensor_file` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dictionary)
            metadata = json.loads((file.metadata() or {})["calprompt"])
        expected = metadata.pop(CHECKSUM, None)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no {path}") from error
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or not of a run ({error}); delete it to start over") from error
    if (checked or expected is not None) and expected != _tensor_checksum(tensors, metadata):
        raise DamagedFileError(f"{path} is damaged, its checksum is wrong; delete it to start over")
    return tensors, metadata


def _tensor_checksum(tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    import numpy as np

    digest = hashlib.sha256(canonical_json(metadata))
    for name, tensor in sorted(tensors.items()):
        if isinstance(tensor, np.ndarray):  # needs no torch
            kind, data = f"torch.{tensor.dtype}", np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        else:
            import torch

            kind, data = str(tensor.dtype), tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(f"{name} {kind} {tuple(tensor.shape)}".encode())
        digest.update(data.data)
    return digest.hexdigest()
