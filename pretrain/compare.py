"""The two models of the package side by side: zero-shot, and a logistic regression on 16 pictures of every class."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.linear_model import LogisticRegression

from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.metrics import accuracy, expected_calibration_error
from calprompt.pocket import Sheet
from pretrain.evaluate import Row, by_half, encode
from pretrain.photo.tower import Graph
from pretrain.selection import COMPARED, KEPT_OUT

SHOTS = 16
STRENGTH = 10.0  # C of the regression on unit features, the same for all
SAMPLE, FEW = "photos", 8  # a dataset and the pictures of each class that a quick look takes
MARK = "<!-- measured -->"  # a page is written anew from here on


def compare(models: dict[str, Path], data: Path, cache: Path, page: Path, echo=print) -> dict[str, dict[str, Row]]:
    """Measure every dataset with every model; features are kept in `cache`, tables go to `page`."""
    found: dict[str, dict[str, Row]] = {}
    for choice in (*COMPARED, *KEPT_OUT):
        sheet = Sheet.read(data, choice.name)
        for name, folder in models.items():
            backbone = load_backbone(folder)
            train, test = (stored_features(backbone, sheet, split, most, cache) for split, most in _SPLITS)
            features, labels = test
            row = by_half(backbone, sheet, torch.from_numpy(features), labels) | _regression(*train, *test)
            found.setdefault(choice.name, {})[name] = row
            echo(f"{choice.name}, {name}: " + ", ".join(f"{what} {value:.1f}" for what, value in row.items()))
    _rewrite(page, tables(found))
    for name, folder in models.items():
        if (folder / "measured.json").is_file() or name != "pocket":  # the first model has a record of its own
            own = {dataset: rows[name] for dataset, rows in found.items()}
            record = {"datasets": own, "sample": sample(load_backbone(folder), Sheet.read(data, SAMPLE))}
            (folder / "measured.json").write_text(json.dumps(_rounded(record), indent=2) + "\n", "utf-8")
            _rewrite(folder / "README.md", card_table(own, data))
    return found


def _rewrite(page: Path, text: str) -> None:
    """The page with all after the mark anew."""
    before = page.read_text("utf-8").partition(MARK)[0] if page.is_file() else ""
    page.write_text(f"{before}{MARK}\n\n{text}\n", "utf-8")


@torch.no_grad()
def sample(backbone: Backbone, sheet: Sheet) -> Row:
    """Zero-shot accuracy and mean confidence over the first few test pictures of every class: quick to repeat."""
    chosen = [(label, pixels) for label, number, pixels in sheet.pictures("test") if number < FEW]
    evaluation = backbone.preprocessing.evaluation()
    images = torch.stack([evaluation(Image.fromarray(np.ascontiguousarray(pixels))) for _, pixels in chosen])
    cosines = (
        F.normalize(backbone.encode_image(images), dim=1)
        @ backbone.zero_shot(sheet.class_names, sheet.record["template"]).T
    )
    chances = (backbone.logit_scale * cosines).softmax(1).double().numpy()
    labels = np.array([label for label, _ in chosen])
    return {"accuracy": 100 * accuracy(chances, labels), "confidence": 100 * float(chances.max(axis=1).mean())}


def card_table(rows: dict[str, Row], data: Path) -> str:
    """Zero-shot numbers of one model."""
    lines = ["| dataset | classes | base | novel | ECE base | ECE novel |", "|---|---|---|---|---|---|"]
    kept_out = {choice.name for choice in KEPT_OUT}
    for name, row in rows.items():
        count = len(Sheet.read(data, name).class_names)
        cells = [f"{row[what]:.1f}" for what in ("base accuracy", "novel accuracy", "base ece", "novel ece")]
        title = f"{name}{', kept out' if name in kept_out else ''}"
        lines.append(f"| {title} | {-(-count // 2)} + {count // 2} | {' | '.join(cells)} |")
    return "\n".join(lines)


_SPLITS = (("train", SHOTS), ("test", None))


@torch.no_grad()
def stored_features(
    backbone: Backbone, sheet: Sheet, split: str, most: int | None, cache: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of the first pictures of every class, and labels.

    What is kept is what goes into the last projection of a tower of timm's, so that another one costs nothing.
    """
    visual = backbone.model.visual
    graph = hasattr(visual, "trunk")
    trunk, head = (visual.trunk, visual.head) if graph else (visual, torch.nn.Identity())
    path = cache / f"{_digest(trunk)}-{sheet.digest[:12]}-{split}.npz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        tower = Graph(trunk, backbone.preprocessing.size, cache / f"{_digest(trunk)}.onnx") if graph else None
        features, labels = encode(backbone, sheet, split, tower or backbone.encode_image, most)
        np.savez(path, features=features, labels=labels)
    with np.load(path) as stored:
        return F.normalize(head(torch.from_numpy(stored["features"])), dim=1).numpy(), stored["labels"]


def _digest(tower: torch.nn.Module) -> str:
    """Of a tower's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(tower.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _regression(train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, labels: np.ndarray) -> Row:
    fitted = LogisticRegression(C=STRENGTH, max_iter=500).fit(train, train_labels)
    chances = fitted.predict_proba(test)
    return {
        "regression accuracy": 100 * accuracy(chances, labels),
        "regression ece": 100 * expected_calibration_error(chances, labels),
    }


def tables(found: dict[str, dict[str, Row]]) -> str:
    """Zero-shot and regression, the datasets kept out apart."""
    kept_out = {choice.name for choice in KEPT_OUT}
    lines = []
    for title, columns in (
        ("Zero-shot", ("base accuracy", "novel accuracy", "base ece", "novel ece")),
        (f"Logistic regression, {SHOTS} pictures a class, all classes", ("regression accuracy", "regression ece")),
    ):
        models = list(next(iter(found.values())))
        head = [
            f"{column.removeprefix('regression ').replace('ece', 'ECE')}, {model}"
            for column in columns
            for model in models
        ]
        lines += [f"## {title}", "", f"| dataset | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
        for name, rows in found.items():
            cells = [f"{rows[model][column]:.1f}" for column in columns for model in models]
            lines.append(f"| {name}{', kept out' if name in kept_out else ''} | {' | '.join(cells)} |")
        compared = [rows for name, rows in found.items() if name not in kept_out]
        means = [f"{np.mean([rows[model][column] for rows in compared]):.1f}" for column in columns for model in models]
        lines += [f"| mean of the {len(compared)} compared | {' | '.join(means)} |", ""]
    return "\n".join(lines)


def _rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _rounded(value) for name, value in values.items()}
    return round(float(values), 3)
