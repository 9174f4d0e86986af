"""From a checkpoint to the package: open_clip's two files, with a zero row for every token never seen."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pretrain.model import CONFIG, Words
from pretrain.pool import Pool
from pretrain.views import MEAN, STD


def export(checkpoint: Path, pool: Pool, folder: Path) -> dict[str, int]:
    """Write the averaged weights in half precision; what the checkpoint says of its training."""
    words = Words(pool.concepts)
    if not checkpoint.is_file():
        raise SystemExit(f"{checkpoint} is not there; train first")
    with safe_open(checkpoint, "pt") as file:
        names = [name for name in file.keys() if name.startswith("average.")]  # noqa: SIM118
        weights = {name.removeprefix("average."): file.get_tensor(name) for name in names}
        record = json.loads(file.metadata()["record"])
    words.check(record, checkpoint)
    write(weights, words, folder)
    return {**record, "concepts": len(pool.concepts), "pictures": len(pool.pictures), "tokens": len(words.tokens)}


def write(weights: dict[str, Tensor], words: Words, folder: Path, config: dict = CONFIG) -> None:
    """open_clip's files of a model whose table of tokens has only these words."""
    table = torch.zeros(config["text_cfg"]["vocab_size"], config["text_cfg"]["width"])
    table[torch.tensor(words.tokens)] = weights["token_embedding.weight"]
    whole = {**weights, "token_embedding.weight": table}
    write_files(whole, config, (MEAN, STD), folder)


def write_files(state: dict[str, Tensor], config: dict, statistics: tuple, folder: Path) -> None:
    """open_clip's two files, in half precision; `statistics` are the mean and deviation of pixels."""
    half = {
        name: (value.to(torch.float16) if value.is_floating_point() else value).contiguous()
        for name, value in state.items()
        if name != "attn_mask" and not name.endswith("num_batches_tracked")
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "open_clip_model.partial"
    save_file(half, partial, {"format": "pt"})
    pixels = {"mean": statistics[0], "std": statistics[1], "interpolation": "bicubic", "resize_mode": "shortest"}
    record = {"model_cfg": config, "preprocess_cfg": pixels}
    (folder / "open_clip_config.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    partial.replace(folder / "open_clip_model.safetensors")
