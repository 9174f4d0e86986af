"""The two models of the package side by side: zero-shot, and a logistic regression on 16 pictures of every class."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.linear_model import LogisticRegression

from calprompt.clip import Backbone, load_backbone
from calprompt.metrics import accuracy, expected_calibration_error
from calprompt.pocket.sheets import Sheet
from pretrain.selection import COMPARED, KEPT_OUT

SHOTS = 16
STRENGTH = 10.0  # C of the regression on unit features, the same for all
MARK = "<!-- measured -->"  # a page is written anew from here on

Row = dict[str, float]


def compare(models: dict[str, Path], data: Path, cache: Path, page: Path, echo=print) -> dict[str, dict[str, Row]]:
    """Measure every dataset with every model; features are kept in `cache`, tables go to `page`."""
    found: dict[str, dict[str, Row]] = {}
    for choice in (*COMPARED, *KEPT_OUT):
        sheet = Sheet.read(data, choice.name)
        for name, folder in models.items():
            backbone = load_backbone(folder)
            train, test = (_features(backbone, sheet, split, most, cache) for split, most in _SPLITS)
            row = _zero_shot(backbone, sheet, *test) | _regression(*train, *test)
            found.setdefault(choice.name, {})[name] = row
            echo(f"{choice.name}, {name}: " + ", ".join(f"{what} {value:.1f}" for what, value in row.items()))
    before = page.read_text("utf-8").partition(MARK)[0] if page.is_file() else ""
    page.write_text(f"{before}{MARK}\n\n{tables(found)}", "utf-8")
    page.with_suffix(".json").write_text(json.dumps(_rounded(found), indent=2) + "\n", "utf-8")
    return found


_SPLITS = (("train", SHOTS), ("test", None))


@torch.no_grad()
def _features(
    backbone: Backbone, sheet: Sheet, split: str, most: int | None, cache: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of the first pictures of every class, and labels."""
    path = cache / f"{backbone.fingerprint[:12]}-{sheet.digest[:12]}-{split}.npz"
    if not path.is_file():
        evaluation, labels, features, batch = backbone.preprocessing.evaluation(), [], [], []
        chosen = [(label, pixels) for label, number, pixels in sheet.pictures(split) if most is None or number < most]
        for label, pixels in chosen:
            labels.append(label)
            batch.append(evaluation(Image.fromarray(np.ascontiguousarray(pixels))))
            if len(batch) == 32 or len(labels) == len(chosen):
                features.append(F.normalize(backbone.encode_image(torch.stack(batch)), dim=1))
                batch = []
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, features=torch.cat(features).numpy(), labels=np.array(labels))
    with np.load(path) as stored:
        return stored["features"], stored["labels"]


@torch.no_grad()
def _zero_shot(backbone: Backbone, sheet: Sheet, features: np.ndarray, labels: np.ndarray) -> Row:
    count, row = len(sheet.class_names), {}
    half = -(-count // 2)
    for part, first, last in (("base", 0, half), ("novel", half, count)):
        inside = (labels >= first) & (labels < last)
        texts = backbone.zero_shot(sheet.class_names[first:last], sheet.record["template"])
        logits = backbone.logit_scale * torch.from_numpy(features[inside]) @ texts.T
        chances = logits.softmax(1).double().numpy()
        row[f"{part} accuracy"] = 100 * accuracy(chances, labels[inside] - first)
        row[f"{part} ece"] = 100 * expected_calibration_error(chances, labels[inside] - first)
    return row


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


def _rounded(found: dict[str, dict[str, Row]]) -> dict[str, dict[str, Row]]:
    return {
        name: {model: {what: round(value, 3) for what, value in row.items()} for model, row in rows.items()}
        for name, rows in found.items()
    }
