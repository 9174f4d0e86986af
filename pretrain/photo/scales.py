"""Would another logit scale calibrate pocket-photo? Zero-shot's ECE by scale, on the datasets that means are about.

    python -m pretrain.photo.scales build/pocket/compared     writes experiments/photo_scales.json; keeps features there

docs/pocket-photo.md has the table. The model's own scale was chosen on what pretraining left out, see `scale`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from calprompt.clip.load import load_backbone
from calprompt.metrics import expected_calibration_error
from calprompt.pocket import DATA, Sheet
from pretrain.compare import stored_features
from pretrain.selection import COMPARED

OUT = Path(__file__).parents[2] / "experiments" / "photo_scales.json"
GRID = np.exp(np.linspace(np.log(8), np.log(60), 40)).round(2).tolist()


@torch.no_grad()
def measure(cache: Path, out: Path = OUT, echo=print) -> None:
    """ECE in per cent of every half at the model's own scale, which is the first, and at those of the grid."""
    backbone, found = load_backbone("pocket-photo"), {}
    scales = [round(float(backbone.logit_scale), 2), *GRID]
    for name in [choice.name for choice in COMPARED if choice.name != "digits"]:  # of which zero-shot knows nothing
        sheet = Sheet.read(DATA, name)
        features, labels = stored_features(backbone, sheet, "test", None, cache)
        half = -(-len(sheet.class_names) // 2)
        for part, first, last in (("base", 0, half), ("novel", half, len(sheet.class_names))):
            inside = (labels >= first) & (labels < last)
            texts = backbone.zero_shot(sheet.class_names[first:last], sheet.record["template"])
            cosines = (torch.from_numpy(features[inside]) @ texts.T).double()
            chances = ((scale * cosines).softmax(1).numpy() for scale in scales)
            errors = [round(100 * expected_calibration_error(each, labels[inside] - first), 2) for each in chances]
            found[f"{name} {part}"] = errors
            echo(f"{name} {part}: {errors[0]:.1f}, at best {min(errors):.1f}", flush=True)
    lines = [f'"scales": {scales}', *(f'"{cell}": {errors}' for cell, errors in found.items())]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure(Path(sys.argv[1]))
