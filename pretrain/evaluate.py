"""Zero-shot accuracy and calibration of a model folder on sheets of drawings, through the library's own loader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.metrics import accuracy, expected_calibration_error
from calprompt.pocket.sheets import Sheet


@torch.no_grad()
def zero_shot(model: Path, data: Path, names: list[str], echo=print) -> dict[str, dict[str, float]]:
    """Accuracy and ECE in per cent, of the base and the novel half of each dataset, or of all classes of a shift."""
    backbone = load_backbone(model)
    results = {}
    for name in names:
        sheet = Sheet.read(data, name)
        labels, features = _features(backbone, sheet)
        count, half = len(sheet.class_names), -(-len(sheet.class_names) // 2)
        parts = {"all": range(count)} if "of" in sheet.record else {"base": range(half), "novel": range(half, count)}
        results[name] = {}
        for part, classes in parts.items():
            inside = (labels >= classes.start) & (labels < classes.stop)
            texts = backbone.zero_shot(sheet.class_names[classes.start : classes.stop], sheet.record["template"])
            logits = backbone.logit_scale * features[inside] @ texts.T
            probabilities, right = logits.softmax(1).double().numpy(), labels[inside].numpy() - classes.start
            results[name][f"{part} accuracy"] = 100 * accuracy(probabilities, right)
            results[name][f"{part} ece"] = 100 * expected_calibration_error(probabilities, right)
        row = ", ".join(f"{what} {value:.1f}" for what, value in results[name].items())
        echo(f"{name} ({' + '.join(str(len(classes)) for classes in parts.values())} classes): {row}")
    return results


def _features(backbone: Backbone, sheet: Sheet) -> tuple[torch.Tensor, torch.Tensor]:
    from PIL import Image

    evaluation = backbone.preprocessing.evaluation()
    labels, batch, features = [], [], []
    for label, _, pixels in sheet.pictures("test"):
        labels.append(label)
        batch.append(evaluation(Image.fromarray(np.ascontiguousarray(pixels))))
        if len(batch) == 256:
            features.append(backbone.encode_image(torch.stack(batch)))
            batch = []
    if batch:
        features.append(backbone.encode_image(torch.stack(batch)))
    return torch.tensor(labels), F.normalize(torch.cat(features), dim=1)
