"""The scale of the cosines sets how confident the model is: chosen where mean ECE is least on what was left out.

    places, events    drawings of studios that pretraining never saw, classes of no compared dataset
    sketch_rest       sketches of classes of no compared dataset
    stamps            photographs cut out for Tux Paint, with a caption each; pretraining has no such pictures. They
                      are under the GPL, so none is in the package

None of them is among the datasets that methods are compared on, so these are not what the scale is fitted to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from PIL import Image
from torch import Tensor

from calprompt.class_names import fill_template
from calprompt.metrics import expected_calibration_error
from calprompt.pocket import Sheet
from pretrain.photo.tower import SIZE
from pretrain.photo.train import Sentences
from pretrain.selection import KEPT_OUT

NATURE = ("animals", "food", "plants")
GROUPS = (*NATURE, "clothes", "hobbies", "household", "sports", "town", "vehicles")
TEMPLATE = "a photo of a {}."
_FEWEST = 8  # classes of a group
GRID = np.exp(np.linspace(np.log(8), np.log(40), 60))


Cell = tuple[str, Tensor, np.ndarray, list[str]]  # name, features [n, width], labels, sentences
Tower = Callable[[Tensor], np.ndarray]  # of pixels [n, 3, s, s] from 0 to 1


def left_out(data: Path, stamps: Path, tower: Tower, folder: Path | None = None) -> Iterator[Cell]:
    """Every half of a dataset and every group of stamps; groups of one name count together.

    Args:
        data: The sheets of the datasets.
        stamps: Where Tux Paint's are.
        tower: What makes features of them.
        folder: Where these are kept, if they are.
    """
    for choice in KEPT_OUT:
        sheet = Sheet.read(data, choice.name)
        rows = [(label, pixels) for label, _, pixels in sheet.pictures("test")]
        labels = np.array([label for label, _ in rows])
        pixels = torch.from_numpy(np.stack([each for _, each in rows])).permute(0, 3, 1, 2).float() / 255
        features = _kept(folder, choice.name, tower, pixels)
        half = -(-len(sheet.class_names) // 2)
        for part, first, last in (("base", 0, half), ("novel", half, len(sheet.class_names))):
            inside = (labels >= first) & (labels < last)
            texts = [fill_template(sheet.record["template"], name) for name in sheet.class_names[first:last]]
            yield f"{choice.name} {part}", features[torch.from_numpy(inside)], labels[inside] - first, texts
    for group in read_stamps(stamps):
        features = _kept(folder, f"stamps-{group.group}", tower, group.pixels)
        yield (
            f"stamps of {'nature' if group.group in NATURE else 'things'}",
            features,
            group.labels,
            [fill_template(TEMPLATE, name) for name in group.class_names],
        )


def _kept(folder: Path | None, name: str, tower: Tower, pixels: Tensor) -> Tensor:
    if folder is None:
        return torch.from_numpy(tower(pixels))
    path = folder / f"{name}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, tower(pixels).astype(np.float16))
    return torch.from_numpy(np.load(path)).float()


@torch.no_grad()
def choose_scale(
    model: CLIP, sets: Iterable[Cell], project: Callable[[Tensor], Tensor], echo=print
) -> tuple[float, dict[str, dict[str, float]]]:
    """The scale of least mean ECE, and accuracy and ECE of every set at it, in per cent.

    Args:
        model: Whose text tower it is.
        sets: Features, labels and sentences.
        project: From features to the space of texts.
        echo: Where progress goes.
    """
    sentences = Sentences()
    parts: dict[str, list[tuple[Tensor, np.ndarray]]] = {}
    for name, features, labels, texts in sets:
        images = F.normalize(project(features), dim=1)
        parts.setdefault(name, []).append((images @ sentences.encode(model, texts).T, labels))

    def errors(scale: float) -> dict[str, dict[str, float]]:
        table = {}
        for name, groups in parts.items():
            width = max(each.shape[1] for each, _ in groups)  # groups of unlike numbers of classes are one table
            chances = np.concatenate(
                [F.pad((scale * each).softmax(1), (0, width - each.shape[1])).double().numpy() for each, _ in groups]
            )
            labels = np.concatenate([each for _, each in groups])
            right = float((chances.argmax(1) == labels).mean())
            table[name] = {
                "accuracy": 100 * right,
                "ece": 100 * expected_calibration_error(chances, labels),
                "gap": 100 * (float(chances.max(1).mean()) - right),
            }
        return table

    scale = float(min(GRID, key=lambda each: np.mean([row["ece"] for row in errors(each).values()])))
    found = errors(scale)
    for name, row in found.items():
        echo(f"{name}: accuracy {row['accuracy']:.1f}, ECE {row['ece']:.1f}, gap {row['gap']:+.1f}")
    echo(f"scale {scale:.1f}: mean accuracy {_mean(found, 'accuracy'):.1f}, mean ECE {_mean(found, 'ece'):.1f}")
    return scale, found


def _mean(table: dict[str, dict[str, float]], what: str) -> float:
    return float(np.mean([row[what] for row in table.values()]))


@dataclass(frozen=True)
class Stamps:
    """Photographs of one group, by name."""

    group: str
    class_names: list[str]
    labels: np.ndarray
    pixels: Tensor


def read_stamps(folder: Path) -> list[Stamps]:
    """Groups of photographs on white, [n, 3, 160, 160] from 0 to 1; a class is a caption of at most three words."""
    home, groups = folder / "usr/share/tuxpaint/stamps", []
    for group in GROUPS:
        found = []
        for path in sorted((home / group).rglob("*.txt")):
            name = _name(path.read_text("utf-8", "replace").splitlines()[0])
            drawn = {"cartoon", "flags"} & set(path.parts)
            if name and not drawn and path.with_suffix(".png").is_file():
                found.append((name, _on_white(path.with_suffix(".png"))))
        names = sorted({name for name, _ in found})
        if len(names) >= _FEWEST:
            labels = np.array([names.index(name) for name, _ in found])
            groups.append(Stamps(group, names, labels, torch.stack([pixels for _, pixels in found])))
    return groups


def _name(caption: str) -> str:
    name = re.sub('[“”"]', "", caption).strip().rstrip(".!").lower()
    name = re.sub("^(a|an|the|some|two) ", "", name)
    return name if len(name.split()) <= 3 else ""


def _on_white(path: Path) -> Tensor:
    image = Image.open(path).convert("RGBA")
    side = max(image.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(image, ((side - image.width) // 2, (side - image.height) // 2))
    pixels = np.array(square.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
