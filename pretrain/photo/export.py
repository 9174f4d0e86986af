"""From a trained text tower to the package: open_clip's two files in half precision."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import nn

from pretrain.photo.tower import MEAN, STD
from pretrain.photo.train import CONFIG

PREPROCESSING = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"}


def write(model: CLIP, network: nn.Module, scale: float, folder: Path) -> None:
    """The text tower and projection of `model`, the image tower of `network`, and the chosen scale."""
    state = {name: value for name, value in model.state_dict().items() if name != "attn_mask"}
    for name, value in network.state_dict().items():
        if not name.startswith("classifier."):
            state[f"visual.trunk.{name}"] = value
    state["logit_scale"] = torch.tensor(math.log(scale))
    folder.mkdir(parents=True, exist_ok=True)
    half = {
        name: value.to(torch.float16).contiguous() if value.is_floating_point() else value
        for name, value in state.items()
        if not name.endswith("num_batches_tracked")
    }
    partial = folder / "open_clip_model.partial"
    save_file(half, partial, {"format": "pt"})
    record = {"model_cfg": CONFIG, "preprocess_cfg": PREPROCESSING}
    (folder / "open_clip_config.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    partial.replace(folder / "open_clip_model.safetensors")
