"""The pocket with other logit scales, to see what the results depend on.

    python -m pretrain.scales --out runs/pocket          writes runs/pocket/sharp, calibrated-photos, …
    calprompt sweep experiments/sweeps/sharp.yaml --out runs/pocket

"sharp" multiplies cosines by 50 instead of 20. "calibrated" models have, for a dataset, the scale at which zero-shot is
as confident as it is accurate on the base half of the test pictures: an explanation that cannot be used in practice.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from calprompt.clip.load import load_backbone
from calprompt.pocket import MODELS
from calprompt.runs.config import build_config
from calprompt.runs.execute import run
from pretrain.selection import COMPARED

SHARP = 50.0
WEIGHTS = "open_clip_model.safetensors"


def scaled_model(folder: Path, scale: float) -> None:
    """Write the pocket with another logit scale; a folder that is there stays."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        partial = Path(shutil.copytree(MODELS["pocket"], Path(place) / "model"))
        weights = load_file(partial / WEIGHTS)
        weights["logit_scale"] = torch.tensor(math.log(scale)).to(weights["logit_scale"])
        save_file(weights, partial / WEIGHTS)
        partial.rename(folder)


def calibrated_scale(cosines: Tensor, labels: Tensor) -> float:
    """The scale at which mean confidence is accuracy, by bisection between 1 and 200."""
    cosines = cosines.double()
    accuracy = (cosines.argmax(1) == labels).double().mean()
    low, high = 1.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        sure = (middle * cosines).softmax(1).amax(1).mean() > accuracy
        low, high = (low, middle) if sure else (middle, high)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pocket"))
    parser.add_argument("--datasets", nargs="+", default=[choice.name for choice in COMPARED])
    args = parser.parse_args()
    scaled_model(args.out / "sharp", SHARP)
    own = load_backbone("pocket").logit_scale
    for dataset in args.datasets:
        config = build_config(backbone="pocket", data=f"pocket_{dataset}", tuner="zero-shot", loss="ce")
        stored = load_file(run(config, args.out).folder / "logits.safetensors")
        scale = calibrated_scale(stored["base/logits"].double() / own, stored["base/labels"])
        scaled_model(args.out / f"calibrated-{dataset}", scale)
        print(f"{dataset}: {scale:.2f}")


if __name__ == "__main__":
    main()
