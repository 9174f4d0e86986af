"""`fit --tuner auto` beside `fit --tuner kgcoop`, logistic regression, nearest neighbours and CoOp, on the same images.

    python experiments/learners.py measure            fills learners.csv; what is in it is not computed again
    python experiments/learners.py promises           do promises hold with each learner? fills learners_promises.csv
    python experiments/learners.py tables             prints the tables of docs/classifier.md

Twelve embedded datasets, ten classes of each (drawn once), as many training images of a class as the size says,
or all there are. Pictures of one drawing are a group for `fit`, as `--group-by` would make them: the test images show
other drawings. Nothing is chosen on test images.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.data.checks import UnreadableImages
from calprompt.data.dataset import Split
from calprompt.features.frozen import FeatureBank, frozen_features
from calprompt.features.store import FeatureStore
from calprompt.metrics import evaluate
from calprompt.pocket import sheet
from calprompt.runs.resources import Resources
from calprompt.text import plural
from classifier import HERE, NAMES, Table, draw, features, paths_of, read, simulate

CLASSES = 10
SIZES = (20, 5, 10, 50)
NEIGHBOURS = (1, 3, 5, 9, 15)
METHODS = {
    "kgcoop": "`fit --tuner kgcoop`",
    "auto": "`fit --tuner auto`",
    "auto_all": "the same, `--held-out 0`",
    "logistic_regression": "logistic regression",
    "logistic_regression_same": "the same, without what `auto` holds out",
    "neighbours": "nearest neighbours",
    "coop": "CoOp as published",
}
UNGROUPED = "auto_ungrouped"
FITS: dict[str, dict[str, Any]] = {
    "kgcoop": {"tuner": "kgcoop"},
    "auto": {"tuner": "auto"},
    "auto_all": {"tuner": "auto", "held_out": 0.0},
    UNGROUPED: {"tuner": "auto", "grouped": False, "held_out": 0.0},
}
Found = dict[tuple[str, str, str, str], dict[str, str]]  # rows by backbone, dataset, size and method
LEARNERS = ("linear-probe", "clap", "taskres", "clip-adapter", "tip-adapter", "tip-adapter-f", "kgcoop")


class Task:
    """Some classes of a dataset: images to learn from, and to test on."""

    def __init__(self, resources: Resources, backbone: str, name: str, size: int, seed: int) -> None:
        self.resources, self.spec, self.seed = resources, backbone, seed
        self.backbone = resources.backbone(backbone)
        dataset = calprompt.load_dataset(f"pocket_{name}")
        some = sorted(random.Random(1).sample(range(len(dataset.class_names)), min(CLASSES, len(dataset.class_names))))
        self.names = [dataset.class_names[label] for label in some]
        self.template = dataset.template or "a photo of a {}."
        place = {label: number for number, label in enumerate(some)}
        chosen = dataset.train.take(draw(dataset.train, seed, size))
        self.train = chosen.take([row for row, label in enumerate(chosen.labels) if label in place])
        self.test = dataset.test.take([row for row, label in enumerate(dataset.test.labels) if label in place])
        self.y, self.y_test = (np.array([place[label] for label in part.labels]) for part in (self.train, self.test))
        self.groups = drawings(name, self.train)

    def x(self, split: Split) -> np.ndarray:
        return features(self.resources, self.backbone, split).double().numpy()


def drawings(name: str, split: Split) -> list[str]:
    """The drawing that each picture shows: a class's pictures take its drawings in turn."""
    counts: dict[int, int] = {}
    for label, part, _ in sheet(name).record["drawings"]:
        counts[label] = counts.get(label, 0) + (part == "train")
    numbers = [int(Path(split.images.name(row)).stem) for row in range(len(split))]
    return [f"{label}/{number % counts[label]}" for label, number in zip(split.labels, numbers, strict=True)]


@dataclass(frozen=True, eq=False)
class Predicted:
    """Logits or log probabilities of the test images, from a method.

    Attributes:
        logits: [n, C].
        rows: The training images that it learned from.
        chosen: The learner, if one was chosen.
    """

    logits: np.ndarray
    rows: np.ndarray
    chosen: str = ""


def fitted(task: Task, tuner: str, *, grouped: bool = True, held_out: float | None = None) -> Predicted:
    """By a `Classifier`."""
    model = calprompt.Classifier(
        task.spec, tuner=tuner, seed=task.seed, template=task.template, held_out=held_out, verbose=False
    )
    y, paths = [task.names[label] for label in task.y], paths_of(task.train)
    model.fit(paths, y, groups=task.groups if grouped else None, resources=task.resources)
    order = [list(model.classes_).index(name) for name in task.names]
    p = np.concatenate([batch.probabilities for batch in model.predictor_.stream(feature_rows(task))])[:, order]
    found = model.model_.predicted
    tuned = {name for name, fold in zip(found.names, found.fold.tolist(), strict=True) if fold >= 0}
    rows = np.array([row for row, path in enumerate(paths) if path in tuned])
    choice = model.model_.choice
    chosen = tuner if choice is None else choice.contenders[0].name
    return Predicted(np.log(np.clip(p, 1e-300, None)), rows, chosen)


def feature_rows(task: Task) -> calprompt.data.images.FeatureRows:
    """The test images as features, which are at hand."""
    from calprompt.data.images import FeatureRows

    return FeatureRows(features(task.resources, task.backbone, task.test))


def logistic_regression(task: Task, rows: np.ndarray) -> np.ndarray:
    """On unit image features of some training images; its strength by cross-validation of the likelihood."""
    from sklearn.linear_model import LogisticRegressionCV

    folds = min(4, int(np.bincount(task.y[rows]).min()))
    model = LogisticRegressionCV(
        Cs=np.logspace(-1, 4, 6),
        cv=folds,
        scoring="neg_log_loss",
        max_iter=300,
        use_legacy_attributes=False,
        l1_ratios=(0,),
    )
    return np.asarray(model.fit(task.x(task.train)[rows], task.y[rows]).predict_log_proba(task.x(task.test)))


def neighbours(task: Task) -> np.ndarray:
    """Shares of the nearest images, with one more vote spread over all classes; how many by leaving one out."""
    x, classes = task.x(task.train), np.eye(len(task.names))[task.y]

    def votes(similar: np.ndarray, k: int) -> np.ndarray:
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, :k]
        return np.log((classes[nearest].sum(axis=1) + 1 / len(task.names)) / (k + 1))

    own = x @ x.T - 9 * np.eye(len(x))
    rows = np.arange(len(x))
    k = max(NEIGHBOURS, key=lambda k: votes(own, k)[rows, task.y].mean())
    return votes(task.x(task.test) @ x.T, k)


def coop(task: Task) -> np.ndarray:
    """Sixteen random vectors, cross-entropy, rate 0.002, 50 epochs of batches of 32; images as they are tested."""
    tuner = calprompt.create_tuner("coop", task.backbone, task.names, context=16, seed=task.seed)
    found = frozen_features(task.backbone, task.train.images, unreadable=UnreadableImages(), store=task.resources.store)
    settings = calprompt.TrainingConfig(epochs=50, batch_size=32, lr=0.002, seed=task.seed)
    with task.backbone.limited_threads():
        data = FeatureBank(found, torch.from_numpy(task.y))
        calprompt.train(tuner, data, calprompt.Objective.parse("ce"), settings)
    return (
        calprompt.Predictor(tuner).logits(task.test.images, features(task.resources, task.backbone, task.test)).numpy()
    )


def predictions(task: Task, method: str, same: np.ndarray | None) -> Predicted:
    """The predictions of a method; `same` are the images that `fit --tuner auto` learned from."""
    every = np.arange(len(task.y))
    if method in FITS:
        return fitted(task, **FITS[method])
    if method == "logistic_regression_same":
        rows = fitted(task, "auto").rows if same is None else same
        return Predicted(logistic_regression(task, rows), rows)
    if method == "logistic_regression":
        return Predicted(logistic_regression(task, every), every)
    return Predicted({"neighbours": neighbours, "coop": coop}[method](task), every)


def measure(backbones: list[str], sizes: list[int], seeds: int, methods: list[str]) -> None:
    """Methods on every dataset, the cells of the table by dataset first; then `fit` without groups."""
    table = Table(HERE / "learners.csv", ("backbone", "dataset", "size", "seed", "method"))
    resources = Resources(store=FeatureStore())
    for seed in range(1, seeds + 1):
        for size in sizes:
            for backbone in backbones:
                for name in NAMES:
                    measure_cell(table, resources, backbone, name, size, seed, methods)
    for name in NAMES if (backbones[0], sizes[0]) == ("pocket", SIZES[0]) and "auto_all" in methods else ():
        measure_cell(table, resources, backbones[0], name, sizes[0], 1, [UNGROUPED])


def measure_cell(
    table: Table, resources: Resources, backbone: str, name: str, size: int, seed: int, methods: list[str]
) -> None:
    """Some methods on one dataset."""
    key = {"backbone": backbone, "dataset": name, "size": size, "seed": seed}
    missing = [method for method in methods if not table.has(**key, method=method)]
    if not missing:
        return
    task = Task(resources, backbone, name, size, seed)
    for part in (task.train, task.test):
        task.x(part)  # into the store, so that times are of learning
    same = None
    for method in missing:
        if method == UNGROUPED and len(set(task.groups)) == len(task.groups):
            continue  # there are no groups
        start = time.process_time()
        found = predictions(task, method, same)
        seconds = time.process_time() - start
        same = found.rows if method == "auto" else same
        measured = evaluate(found.logits, task.y_test, from_logits=True)
        table.add(
            **key,
            method=method,
            images=len(found.rows),
            classes=len(task.names),
            **{each: float(measured[each]) for each in ("accuracy", "ece", "nll")},
            cpu_seconds=round(seconds, 1),
            chosen=found.chosen,
        )


def promises(trials: int = 500) -> None:
    """Each learner on clothes, 20 images of a class; promises from random divisions of its test logits."""
    table = Table(HERE / "learners_promises.csv", ("learner",))
    task = Task(Resources(store=FeatureStore()), "pocket", "clothes", 20, 1)
    for tuner in LEARNERS:
        if table.has(learner=tuner):
            continue
        model = calprompt.Classifier("pocket", tuner=tuner, template=task.template, held_out=0.0, verbose=False)
        model.fit(paths_of(task.train), [task.names[label] for label in task.y], resources=task.resources)
        order = [list(model.classes_).index(name) for name in task.names]
        batches = model.predictor_.stream(feature_rows(task))
        logits = np.concatenate([batch.logits.numpy() for batch in batches])[:, order].astype(np.float64)
        table.add(learner=tuner, trials=trials, **simulate(logits, task.y_test, "per class", 16, trials))


def tables() -> dict[str, str]:
    """The tables of docs/classifier.md, by name."""
    rows = [row for row in read("learners.csv") if row["seed"] == "1"]
    found = {(row["backbone"], row["dataset"], row["size"], row["method"]): row for row in rows}
    return {
        "by_dataset": by_dataset(found, "pocket", "auto_all"),
        "by_dataset_photo": by_dataset(found, "pocket-photo", "auto"),
        "by_size": by_size(),
        "within_a_point": within_a_point(),
        "groups": groups_table(found),
        "promises": promises_table(),
    }


def promises_table() -> str:
    """What became of promises with each learner."""
    lines = [
        "| learner | coverage of sets of 90 % | mean size | error promise made | and broken |",
        "|---|---|---|---|---|",
    ]
    for row in read("learners_promises.csv"):
        made, broken = (round(float(row[f"threshold_{what}"]) * int(row["trials"])) for what in ("made", "broken"))
        coverage, error = 100 * float(row["coverage"]), 200 * float(row["coverage_error"])
        lines.append(
            f"| {row['learner']} | {coverage:.2f} ± {error:.2f} % | {float(row['mean_size']):.2f} | {made} of "
            f"{row['trials']} | {broken} |"
        )
    return "\n".join(lines)


def cell(rows: list[dict[str, str]]) -> str:
    """Accuracy / ECE / NLL, the mean of some rows."""
    accuracy, ece, nll = (np.mean([float(row[name]) for row in rows]) for name in ("accuracy", "ece", "nll"))
    return f"{100 * accuracy:.1f} / {100 * ece:.1f} / {nll:.2f}"


def by_dataset(found: Found, backbone: str, chosen_by: str) -> str:
    """Every dataset with 20 images of a class, and the methods that were measured on all of them."""
    size = str(SIZES[0])
    methods = [each for each in METHODS if all((backbone, name, size, each) in found for name in NAMES)]
    lines = ["| dataset | " + " | ".join(METHODS[each] for each in methods) + " | chosen |"]
    lines.append("|" + "---|" * (len(methods) + 2))
    for name in NAMES:
        cells = " | ".join(cell([found[backbone, name, size, method]]) for method in methods)
        row = found[backbone, name, size, chosen_by]
        lines.append(f"| {name} | {cells} | {row['chosen']}, from {row['images']} images |")
    means = (cell([found[backbone, name, size, method] for name in NAMES]) for method in methods)
    return "\n".join([*lines, "| **mean** | " + " | ".join(means) + " | |"])


def complete(backbone: str, size: str, method: str, every: Sequence[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """The rows of each draw of classes and images in which a method was measured on all datasets."""
    draws: dict[str, list[dict[str, str]]] = {}
    for row in every:
        if (row["backbone"], row["size"], row["method"]) == (backbone, size, method):
            draws.setdefault(row["seed"], []).append(row)
    return {
        seed: sorted(rows, key=lambda row: row["dataset"]) for seed, rows in draws.items() if len(rows) == len(NAMES)
    }


def by_size() -> str:
    """Means over datasets and draws, and the mean time; of methods that were not measured on all datasets, nothing."""
    every = read("learners.csv")
    lines = ["| backbone | images of a class | draws | " + " | ".join(METHODS.values()) + " |"]
    lines.append("|" + "---|" * (len(METHODS) + 3))
    for backbone, size in sorted({(row["backbone"], int(row["size"])) for row in every}):
        draws = len(complete(backbone, str(size), "auto", every))
        cells = []
        for method in METHODS:
            found = complete(backbone, str(size), method, every)
            own = [row for rows in found.values() for row in rows]
            mean = f"{cell(own)}, {np.mean([float(row['cpu_seconds']) for row in own]):.0f} s" if own else ""
            cells.append(mean + (f" ({plural(len(found), 'draw')})" if own and len(found) < draws else ""))
        if draws:
            lines.append(f"| {backbone} | {'all' if size == max(SIZES) else size} | {draws} | {' | '.join(cells)} |")
    return "\n".join(lines)


def within_a_point() -> str:
    """On how many of the datasets `auto` is within one point of the most accurate method, draw by draw."""
    every = read("learners.csv")
    lines = [
        "| images of a class | draw | within a point | with `--held-out 0` | ECE | relative to logistic regression |",
        "|---|---|---|---|---|---|",
    ]
    for size in sorted(SIZES):
        found = {method: complete("pocket-photo", str(size), method, every) for method in METHODS}
        for seed in sorted(found["auto"]):
            accuracy = {
                name: np.array([float(row["accuracy"]) for row in draws[seed]])
                for name, draws in found.items()
                if seed in draws
            }
            best = np.max(list(accuracy.values()), axis=0)
            near, near_all = (int((best - accuracy[name] <= 0.01).sum()) for name in ("auto", "auto_all"))
            ece, theirs = (
                np.mean([float(row["ece"]) for row in found[name][seed]]) for name in ("auto", "logistic_regression")
            )
            words = "all" if size == max(SIZES) else size
            lines.append(
                f"| {words} | {seed} | {near} of 12 | {near_all} of 12 | {100 * ece:.1f} | {ece / theirs:.2f} |"
            )
    return "\n".join(lines)


def groups_table(found: Found) -> str:
    """What it costs not to say which pictures show one drawing."""
    lines = ["| dataset | drawings said | chosen | not said | chosen |", "|---|---|---|---|---|"]
    for name in NAMES:
        keys = [("pocket", name, str(SIZES[0]), method) for method in ("auto_all", UNGROUPED)]
        if all(key in found for key in keys):
            cells = (f"{cell([found[key]])} | {found[key]['chosen']}" for key in keys)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "promises", "tables"))
    parser.add_argument("--backbones", nargs="+", default=["pocket", "pocket-photo"])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 1")
    args = parser.parse_args()
    if args.what == "tables":
        print("\n\n".join(tables().values()))
    elif args.what == "promises":
        promises()
    else:
        measure(args.backbones, args.sizes, args.seeds, args.methods)
