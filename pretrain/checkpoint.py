"""What a training leaves behind to go on from: weights, their running averages, the optimisers' moments and a record.

checkpoint.safetensors    model.NAME, average.NAME, mean.NAME, square.NAME; the record says at least how many `steps`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer, SparseAdam

FILE = "checkpoint.safetensors"
Weights = Mapping[str, Tensor]


def save(
    folder: Path, trained: Weights, average: Weights, optimisers: Sequence[Optimizer], record: dict[str, Any]
) -> None:
    """Replace the checkpoint of a folder."""
    names = {value: name for name, value in trained.items()}
    tensors = {f"average.{name}": value for name, value in average.items()}
    tensors |= {f"model.{name}": value.detach() for name, value in trained.items()}
    for optimiser in optimisers:
        for value, state in optimiser.state.items():
            tensors[f"mean.{names[value]}"] = state["exp_avg"]
            tensors[f"square.{names[value]}"] = state["exp_avg_sq"]
    partial = (folder / FILE).with_suffix(".partial")
    stored = {name: value.contiguous().clone() for name, value in tensors.items()}
    save_file(stored, partial, {"record": json.dumps(record)})
    partial.replace(folder / FILE)


def record_of(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; nothing if there is none."""
    if not (folder / FILE).is_file():
        return {}
    with safe_open(folder / FILE, "pt") as file:
        return json.loads(file.metadata()["record"])


@torch.no_grad()
def resume(
    folder: Path, trained: Weights, average: dict[str, Tensor], optimisers: Sequence[Optimizer]
) -> dict[str, Any]:
    """Put a checkpoint's state in place; its record, empty if there is none."""
    record = record_of(folder)
    if not record:
        return record
    with safe_open(folder / FILE, "pt") as file:
        for name, value in trained.items():
            value.copy_(file.get_tensor(f"model.{name}"))
            average[name] = file.get_tensor(f"average.{name}")
        for optimiser in optimisers:
            steps = record["steps"] if isinstance(optimiser, SparseAdam) else torch.tensor(float(record["steps"]))
            owned = {value for group in optimiser.param_groups for value in group["params"]}
            for name, value in trained.items():
                if value in owned:
                    moments = {"exp_avg": file.get_tensor(f"mean.{name}")}
                    moments["exp_avg_sq"] = file.get_tensor(f"square.{name}")
                    optimiser.state[value] = {"step": steps, **moments}
    return record
