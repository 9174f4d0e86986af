"""Zero-shot accuracy and calibration of a model on sheets of drawings, through the library's own loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.metrics import accuracy, expected_calibration_error
from calprompt.pocket import Sheet

Row = dict[str, float]


def zero_shot(model: Path, data: Path, names: list[str], echo=print) -> dict[str, Row]:
    """Accuracy and ECE in per cent, of the base and the novel half of each dataset, or of all classes of a shift."""
    backbone, results = load_backbone(model), {}
    for name in names:
        sheet = Sheet.read(data, name)
        features, labels = encode(backbone, sheet, "test", backbone.encode_image)
        results[name] = by_half(backbone, sheet, F.normalize(torch.from_numpy(features), dim=1), labels)
        row = ", ".join(f"{what} {value:.1f}" for what, value in results[name].items())
        echo(f"{name} ({len(sheet.class_names)} classes): {row}")
    return results


@torch.no_grad()
def encode(
    backbone: Backbone, sheet: Sheet, split: str, tower: Callable[[torch.Tensor], object], most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What a tower makes of the first pictures of every class of a split, and their labels."""
    evaluation, labels, features, batch = backbone.preprocessing.evaluation(), [], [], []
    chosen = [(label, pixels) for label, number, pixels in sheet.pictures(split) if most is None or number < most]
    for label, pixels in chosen:
        labels.append(label)
        batch.append(evaluation(Image.fromarray(np.ascontiguousarray(pixels))))
        if len(batch) == 32 or len(labels) == len(chosen):
            features.append(np.asarray(tower(torch.stack(batch))))
            batch = []
    return np.concatenate(features), np.array(labels)


@torch.no_grad()
def by_half(backbone: Backbone, sheet: Sheet, features: torch.Tensor, labels: np.ndarray) -> Row:
    """Zero-shot accuracy and ECE of unit features, half by half."""
    count, half, row = len(sheet.class_names), -(-len(sheet.class_names) // 2), {}
    parts = {"all": (0, count)} if "of" in sheet.record else {"base": (0, half), "novel": (half, count)}
    for part, (first, last) in parts.items():
        inside = (labels >= first) & (labels < last)
        texts = backbone.zero_shot(sheet.class_names[first:last], sheet.record["template"])
        logits = backbone.logit_scale * features[torch.from_numpy(inside)] @ texts.T
        chances = logits.softmax(1).double().numpy()
        row[f"{part} accuracy"] = 100 * accuracy(chances, labels[inside] - first)
        row[f"{part} ece"] = 100 * expected_calibration_error(chances, labels[inside] - first)
    return row
