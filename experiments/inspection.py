"""How many wrong labels does `calprompt data inspect` find, and how many right ones does it doubt?

    python experiments/inspection.py measure    labels flipped on six embedded datasets, three seeds: 3 minutes
    python experiments/inspection.py tables     prints the tables of docs/data.md

5 or 10 % of the labels are replaced by another class, drawn uniformly. N is how many were flipped; the images are
ranked by the margin, and of the first N so many are flipped ones; at random 5 or 10 % of them would be. What is called
mislabelled is a cut of that ranking. With no label flipped, everything that is called so is a false alarm, unless the
dataset itself is wrong there.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import mean

import numpy as np

from calprompt.inspection.measurements import Floats, Ints, out_of_fold, suspects

HERE = Path(__file__).parent
FILE = HERE / "inspection.csv"
DATASETS = ("photos", "clothes", "digits", "signs", "food", "animals")
BACKBONES = ("pocket-photo", "pocket")
RATES = (0.0, 0.05, 0.1)
SEEDS = (1, 2, 3)
CLASSES = 30  # of a dataset that has more, the first ones
FIELDS = (
    "backbone",
    "dataset",
    "images",
    "classes",
    "rate",
    "seed",
    "flipped",
    "among_first",
    "called",
    "called_right",
)


def features_of(backbone: str, dataset: str) -> tuple[Floats, Ints]:
    """Unit features and labels of the images to train and validate on."""
    from calprompt.clip.load import load_backbone
    from calprompt.data.checks import UnreadableImages
    from calprompt.data.labelled import labelled_images
    from calprompt.features.frozen import frozen_features
    from calprompt.features.store import FeatureStore

    data = labelled_images(f"pocket_{dataset}", upright=True)
    part = data.train.take([i for i, label in enumerate(data.train.labels) if label < CLASSES])
    loaded = load_backbone(backbone)
    rows = frozen_features(loaded, part.images, unreadable=UnreadableImages(), store=FeatureStore())[0].double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.array(part.labels)


def measure_one(features: Floats, truth: Ints, rate: float, seed: int) -> dict[str, int]:
    """Flip labels and look for them."""
    rng = np.random.default_rng(seed)
    classes = int(truth.max()) + 1
    flipped = rng.permutation(len(truth))[: round(rate * len(truth))]
    labels = truth.copy()
    labels[flipped] = (truth[flipped] + rng.integers(1, classes, len(flipped))) % classes
    p = out_of_fold(features, labels, classes, seed=seed)
    own = p[np.arange(len(p)), labels]
    other = np.where(np.arange(classes) == labels[:, None], -1.0, p).max(axis=1)
    first = np.argsort(own - other, kind="stable")[: len(flipped)]
    called = [each.index for each in suspects(p, labels)]
    return {
        "images": len(truth),
        "classes": classes,
        "flipped": len(flipped),
        "among_first": int(np.isin(first, flipped).sum()),
        "called": len(called),
        "called_right": int(np.isin(called, flipped).sum()),
    }


def measure() -> None:
    """Write the file."""
    with FILE.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for backbone in BACKBONES:
            for dataset in DATASETS:
                features, truth = features_of(backbone, dataset)
                for rate in RATES:
                    for seed in SEEDS:
                        found = measure_one(features, truth, rate, seed)
                        table.writerow({"backbone": backbone, "dataset": dataset, "rate": rate, "seed": seed, **found})
                        file.flush()
                print(backbone, dataset, flush=True)


def tables() -> str:
    """The tables of the documentation, from the file."""
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "| features | dataset (images) | 5 %: among the first N | called | of these wrong | 10 %: among the first N "
        "| called | of these wrong | clean: called |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def share(some: list[dict[str, str]], part: str, whole: str) -> str:
        total = sum(int(row[whole]) for row in some)
        return f"{100 * sum(int(row[part]) for row in some) / total:.0f} %" if total else "-"

    for backbone in BACKBONES:
        for dataset in (*DATASETS, "all"):
            own = [row for row in rows if row["backbone"] == backbone and dataset in (row["dataset"], "all")]
            cells = [backbone, "all" if dataset == "all" else f"{dataset} ({own[0]['images']})"]
            for rate in ("0.05", "0.1"):
                some = [row for row in own if row["rate"] == rate]
                cells += [share(some, "among_first", "flipped"), f"{mean(int(row['called']) for row in some):.0f}"]
                cells.append(share(some, "called_right", "called"))
            clean = [row for row in own if row["rate"] == "0.0"]
            cells.append(f"{100 * sum(int(r['called']) for r in clean) / sum(int(r['images']) for r in clean):.1f} %")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "tables"))
    if parser.parse_args().what == "measure":
        measure()
    else:
        print(tables(), end="")
