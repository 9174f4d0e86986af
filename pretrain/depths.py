"""Text towers of other depths for the pocket's image tower, to see what the depth of a text tower changes.

    python -m pretrain.depths --work build/pocket --out runs/pocket                 writes runs/pocket/depth1, depth3, …
    calprompt sweep experiments/sweeps/depths.yaml --out runs/pocket

All towers learn from the same batches of the same features: those that the pocket's image tower, which stays as it is,
gives to renders of the drawings that pretraining saw (`python -m pretrain assemble --work build/pocket` collects them).
They start from the pocket's weights, except for the blocks, which are new. One of three blocks, as many as the pocket
has, is trained too, so that nothing but the depth differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.clip.load import load_backbone
from calprompt.pocket import MODELS
from pretrain.evaluate import zero_shot
from pretrain.export import write
from pretrain.model import Words, build, deeper, encode_texts
from pretrain.pool import Pool
from pretrain.selection import COMPARED, KEPT_OUT
from pretrain.train import Sampler, contrast
from pretrain.views import views

ROOT = Path(__file__).parents[1]
CONCEPTS = 96  # in a batch
RATE, DECAY, WARMUP, FALL = 1e-3, 0.1, 0.02, 0.5


@torch.no_grad()
def bank(pool: Pool, batches: int, file: Path) -> Tensor:
    """Unit features [batches, 2 CONCEPTS, D] of renders; computed once and kept."""
    if not file.is_file():
        backbone = load_backbone("pocket")
        dice, sampler = torch.Generator().manual_seed(0), Sampler(pool, 0)
        parts, began = [], time.monotonic()
        for number in range(batches):
            index = torch.tensor(sampler.batch(CONCEPTS))
            images = views(sampler.pictures[index], sampler.media[index], sampler.photos, dice)
            parts.append(F.normalize(backbone.encode_image(images), dim=1).numpy())
            if number % 100 == 99:
                print(f"{number + 1} of {batches} batches of renders, {time.monotonic() - began:.0f} s", flush=True)
        partial = file.with_suffix(".partial.npy")
        np.save(partial, np.stack(parts))
        partial.rename(file)
    return torch.from_numpy(np.load(file))


def digest(pool: Pool) -> str:
    """Of what features depend on: the pictures, which are drawn, and the model."""
    content = hashlib.sha256((MODELS["pocket"] / "open_clip_model.safetensors").read_bytes())
    for array in (pool.pictures, pool.concept, pool.medium):
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:12]


def train(depth: int, pool: Pool, features: Tensor, epochs: int, folder: Path) -> None:
    """A text tower of this depth, with new sentences in every pass over the batches."""
    torch.manual_seed(0)
    words, config = Words(pool.concepts), deeper(depth)
    pocket, model = load_backbone("pocket").model, build(words, config=config)
    shared = {name: value for name, value in pocket.state_dict().items() if not name.startswith("transformer.")}
    shared["token_embedding.weight"] = shared["token_embedding.weight"][torch.tensor(words.tokens)]
    model.load_state_dict(shared, strict=False)
    model.visual.requires_grad_(False)
    model.logit_scale.requires_grad_(False)
    learned = [value for value in model.parameters() if value.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=RATE, betas=(0.9, 0.98), eps=1e-6, weight_decay=DECAY)
    steps, began, losses = epochs * len(features), time.monotonic(), []
    for epoch in range(epochs):
        again, sentences = Sampler(pool, 0), Sampler(pool, 1 + epoch)
        for number, images in enumerate(features):
            step = epoch * len(features) + number
            share = step / steps
            optimiser.param_groups[0]["lr"] = RATE * min(1.0, (share + 1e-4) / WARMUP, (1 - share) / FALL)
            texts = sentences.describe(again.batch(CONCEPTS))
            loss = contrast(images, F.normalize(encode_texts(model, words, texts), dim=1), model.logit_scale.exp())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimiser.step()
            losses.append(loss.item())
            if step % 200 == 199:
                print(
                    f"depth {depth}: {step + 1} of {steps} steps, loss {mean(losses[-200:]):.3f}, "
                    f"{time.monotonic() - began:.0f} s",
                    flush=True,
                )
    write({name: value.detach() for name, value in model.state_dict().items()}, words, folder, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/pocket"), help="where pool.npz is")
    parser.add_argument("--out", type=Path, default=Path("runs/pocket"), help="where the models go")
    parser.add_argument("--depths", type=int, nargs="+", default=(1, 3, 6, 12))
    parser.add_argument("--batches", type=int, default=1000, help="of 192 renders")
    parser.add_argument("--epochs", type=int, default=6, help="passes over these, with other sentences")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pool = Pool.load(args.work)
    features = bank(pool, args.batches, args.work / f"features-{args.batches}-{digest(pool)}.npy")
    for depth in args.depths:
        folder, how = args.out / f"depth{depth}", json.dumps({"batches": args.batches, "epochs": args.epochs})
        record = folder / "training.json"
        if not folder.is_dir():
            partial = folder.with_name(f".{folder.name}")
            train(depth, pool, features, args.epochs, partial)
            (partial / record.name).write_text(how, "utf-8")
            partial.rename(folder)
        elif not record.is_file() or record.read_text("utf-8") != how:
            raise SystemExit(f"{folder} was not trained with {how}, see {record}; remove it or use another --out")
        print(f"depth {depth}:")
        data = ROOT / "src" / "calprompt" / "pocket" / "data"
        zero_shot(folder, data, [choice.name for choice in (*KEPT_OUT, *COMPARED)])


if __name__ == "__main__":
    main()
