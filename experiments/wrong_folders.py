"""A folder with 5 % wrong labels and 20 copies: what does `data inspect` find, and what is it worth to `fit`?

    python experiments/wrong_folders.py measure    fills wrong_folders.csv; what is in it is not computed again
    python experiments/wrong_folders.py tables     prints the table of docs/data.md

Ten classes of an embedded dataset, up to 40 images of each; 5 % of the labels are replaced by another class. Of 20
images a copy is added to the class: half of them cropped by 3 to 6 % on each side and saved as JPEG, half only saved as
JPEG. `fit --tuner linear-probe --held-out 0` learns from the folder as it is; with all findings followed (what is
called mislabelled relabelled, copies left out); and as somebody would who looked at what was found (wrong labels put
right, right ones kept). Tested on the test images of these classes.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from learners import Task, feature_rows
from PIL import Image

import calprompt
from calprompt.data.labelled import labelled_images
from calprompt.features.store import FeatureStore
from calprompt.inspection.inspect import COPY, LABEL, TWO_CLASSES, inspect_images
from calprompt.metrics import evaluate
from calprompt.runs.resources import Resources
from classifier import HERE, Table, paths_of, read

DATASETS = ("photos", "clothes", "digits", "signs", "food", "faces")
EACH, WRONG, COPIES = 40, 0.05, 20
BACKBONE = "pocket-photo"


class Spoiled:
    """A folder on disk, and what is wrong with it."""

    def __init__(self, task: Task, place: Path) -> None:
        rng = np.random.default_rng(task.seed)
        n, classes = len(task.y), len(task.names)
        self.flipped = set(rng.permutation(n)[: round(WRONG * n)].tolist())
        labels = task.y.copy()
        for row in self.flipped:
            labels[row] = (task.y[row] + rng.integers(1, classes)) % classes
        self.truth: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        for row, path in enumerate(paths_of(task.train)):
            name = f"{task.names[labels[row]]}/{row:04}.png"
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as opened:
                opened.convert("RGB").save(place / name)
            self.truth[name] = task.names[task.y[row]]
        for number, row in enumerate(rng.permutation(n)[:COPIES].tolist()):
            original = f"{task.names[labels[row]]}/{row:04}.png"
            name = f"{task.names[labels[row]]}/{row:04}-copy.jpg"
            with Image.open(place / original) as opened:
                image = opened.convert("RGB")
            if number % 2:
                left, top, right, bottom = np.rint(rng.uniform(0.03, 0.06, 4) * np.tile(image.size, 2)).tolist()
                image = image.crop((left, top, image.width - right, image.height - bottom))
            stream = io.BytesIO()
            image.save(stream, "JPEG", quality=80)
            (place / name).write_bytes(stream.getvalue())
            self.truth[name], self.copies[name] = self.truth[original], original

    def label(self, name: str) -> str:
        return name.split("/")[0]


def fit(task: Task, place: Path, labels: dict[str, str]) -> tuple[float, float]:
    """Accuracy and ECE on the test images, learned from some files with these labels."""
    model = calprompt.Classifier(
        BACKBONE, tuner="linear-probe", template=task.template, held_out=0.0, seed=task.seed, verbose=False
    )
    model.fit([str(place / name) for name in labels], list(labels.values()), resources=task.resources)
    order = [list(model.classes_).index(name) for name in task.names]
    p = np.concatenate([batch.probabilities for batch in model.predictor_.stream(feature_rows(task))])[:, order]
    measured = evaluate(np.log(np.clip(p, 1e-300, None)), task.y_test, from_logits=True)
    return float(measured["accuracy"]), float(measured["ece"])


def measure(seeds: int) -> None:
    """Spoil folders, inspect them, and fit."""
    table = Table(HERE / "wrong_folders.csv", ("dataset", "seed"))
    resources = Resources(store=FeatureStore())
    for seed in range(1, seeds + 1):
        for dataset in DATASETS:
            if table.has(dataset=dataset, seed=seed):
                continue
            task = Task(resources, BACKBONE, dataset, EACH, seed)
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                spoiled = Spoiled(task, place)
                found = inspect_images(labelled_images(place), task.backbone, store=resources.store).findings
                called = {each.file: each.looks_like for each in found if each.problem == LABEL}
                wrong = {name for name, truth in spoiled.truth.items() if truth != spoiled.label(name)}
                pairs = {each.file: each.looks_like for each in found if each.problem == COPY}
                partners = {*spoiled.copies, *spoiled.copies.values()}
                in_two = sum(each.problem == TWO_CLASSES for each in found)
                as_it_is = {name: spoiled.label(name) for name in spoiled.truth}
                kept = {name: label for name, label in as_it_is.items() if name not in pairs}
                followed = {name: called.get(name, label) for name, label in kept.items()}
                looked = {name: spoiled.truth[name] if name in called else label for name, label in kept.items()}
                results = {"before": as_it_is, "followed": followed, "looked": looked}
                row = {name: fit(task, place, labels) for name, labels in results.items()}
            table.add(
                dataset=dataset,
                seed=seed,
                images=len(spoiled.truth),
                wrong=len(wrong),
                called=len(called),
                called_right=len(wrong & called.keys()),
                copies=len(spoiled.copies),
                copies_found=sum(name in partners for name in pairs),
                copies_called=len(pairs),
                in_two_classes=in_two,
                **{f"accuracy_{name}": accuracy for name, (accuracy, _) in row.items()},
                **{f"ece_{name}": ece for name, (_, ece) in row.items()},
            )


def tables() -> str:
    """Means over the seeds of each dataset."""
    rows = read("wrong_folders.csv")
    lines = [
        "| dataset | folders | wrong labels found | right ones called wrong | copies found | others called copies "
        "| before | all findings followed | looked at |",
        "|" + "---|" * 9,
    ]
    for name in (*dict.fromkeys(row["dataset"] for row in rows), "all"):
        own = [row for row in rows if name in (row["dataset"], "all")]

        def total(field: str, own: list[dict[str, str]] = own) -> int:
            return sum(int(row[field]) for row in own)

        def mean(field: str, own: list[dict[str, str]] = own) -> float:
            return 100 * float(np.mean([float(row[field]) for row in own]))

        cells = [
            f"{mean(f'accuracy_{each}'):.1f} / {mean(f'ece_{each}'):.1f}" for each in ("before", "followed", "looked")
        ]
        lines.append(
            f"| {name} | {len(own)} | {total('called_right')} of {total('wrong')} | "
            f"{total('called') - total('called_right')} | {total('copies_found')} of {total('copies')} | "
            f"{total('copies_called') - total('copies_found')} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "tables"))
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 1")
    args = parser.parse_args()
    if args.what == "tables":
        print(tables())
    else:
        measure(args.seeds)
