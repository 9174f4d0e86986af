"""Golden numbers: a manifest, its files, and a comparison that notices what was not compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from calprompt.clip.backbone import Backbone
from states import clip_from_state_dict

DEFAULT_TOLERANCE = 2e-5  # of entries whose manifest recommends none


@lru_cache(maxsize=4)
def manifest(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "manifest.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=4)
def inputs(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / manifest(directory)["inputs"]["file"])


@lru_cache(maxsize=4)
def backbone(directory: Path, file: str) -> Backbone:
    """A tiny model of the folder: OpenAI's names, half precision, and only the token rows that are not zero."""
    state = {name: tensor.float() for name, tensor in load_file(directory / file).items()}
    shape = manifest(directory)["models"][file]
    rows = state.pop("token_embedding.rows").long()
    embedding = torch.zeros(shape["vocab"], shape["text_width"])
    embedding[rows] = state.pop("token_embedding.values")
    state["token_embedding.weight"] = embedding
    return clip_from_state_dict(state, layout="openai", name=file)


@dataclass
class Golden:
    """The tensors of one entry. Each is to be compared, or taken as an input, or named as ignored."""

    directory: Path
    entry: dict[str, Any]
    tensors: dict[str, Tensor] = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors = load_file(self.directory / self.entry["file"])

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str) -> Tensor:
        """A tensor that is an input."""
        self.seen.add(name)
        return self.tensors[name]

    def ignore(self, name: str) -> None:
        self.seen.add(name)

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Tensors named `prefix/…`, by what comes after it."""
        return {name.removeprefix(prefix + "/"): t for name, t in self.tensors.items() if name.startswith(prefix + "/")}

    def check(self, name: str, value: Tensor | float, tolerance: float | None = None) -> None:
        """max |ours - theirs| / max |theirs| within the tolerance that the manifest recommends for the group."""
        self.seen.add(name)
        theirs = self.tensors[name]
        ours = torch.as_tensor(value).detach()
        assert ours.shape == theirs.shape, f"{name}: shape {tuple(ours.shape)}, golden {tuple(theirs.shape)}"
        if not theirs.is_floating_point():
            assert torch.equal(ours.to(theirs.dtype), theirs), f"{name}: not equal"
            return
        if tolerance is None:
            tolerance = self.entry.get("recommended_tolerance", {}).get(name.split("/")[0], DEFAULT_TOLERANCE)
        scale = theirs.double().abs().max().clamp(min=1e-30)
        error = float((ours.double() - theirs.double()).abs().max() / scale)
        assert error <= tolerance, f"{name}: relative error {error:.2e}, tolerated {tolerance:.1e}"

    def check_if_present(self, name: str, value: Tensor | float) -> None:
        if name in self:
            self.check(name, value)

    def finish(self) -> None:
        """Nothing of the file may be left unlooked at, and nothing of the manifest may be missing."""
        left = sorted(set(self.tensors) - self.seen)
        assert not left, f"{self.entry['name']}: never compared: {left}"
        missing = sorted(set(self.entry["tensors"]) - set(self.tensors))
        assert not missing, f"{self.entry['name']}: in the manifest but not in the file: {missing}"
