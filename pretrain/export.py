"""From a checkpoint to the package: open_clip's two files, with a zero row for every token never seen."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pretrain.model import CONFIG, Words
from pretrain.pool import Pool
from pretrain.views import MEAN, STD

PREPROCESSING = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"}


def export(checkpoint: Path, pool: Pool, folder: Path) -> dict[str, int]:
    """Write the averaged weights in half precision; what the checkpoint says of its training."""
    words = Words(pool.concepts)
    with safe_open(checkpoint, "pt") as file:
        names = [name for name in file.keys() if name.startswith("average.")]  # noqa: SIM118
        weights = {name.removeprefix("average."): file.get_tensor(name) for name in names}
        record = json.loads(file.metadata()["record"])
    table = torch.zeros(CONFIG["text_cfg"]["vocab_size"], CONFIG["text_cfg"]["width"])
    table[torch.tensor(words.tokens)] = weights["token_embedding.weight"]
    weights["token_embedding.weight"] = table
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": CONFIG, "preprocess_cfg": PREPROCESSING}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    half = {name: value.to(torch.float16).contiguous() for name, value in weights.items() if name != "attn_mask"}
    save_file(half, folder / "open_clip_model.safetensors", {"format": "pt"})
    return {**record, "concepts": len(pool.concepts), "pictures": len(pool.pictures), "tokens": len(words.tokens)}
