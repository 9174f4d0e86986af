"""How good `Classifier` with KgCoOp is on the pocket, beside other ways to use the same images; are its promises kept?

    python experiments/classifier.py compare          accuracy, ECE and NLL on the test images of 12 datasets
    python experiments/classifier.py none-of-these    the stated interval against classes that were never used
    python experiments/classifier.py promises         2,000 random divisions of the test logits of each dataset
    python experiments/classifier.py tables           prints the tables of docs/classifier.md

`compare` comes first: it keeps the test logits that `promises` divides. Each writes a CSV beside this file; what is in
it already is not computed again. Every method gets the same 20 training images of each class, drawn with the seed.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.calibrators import Temperature
from calprompt.clip.backbone import unit
from calprompt.data.checks import UnreadableImages
from calprompt.data.dataset import Split
from calprompt.features.frozen import frozen_features
from calprompt.features.store import FeatureStore
from calprompt.kernel import softmax
from calprompt.metrics import evaluate
from calprompt.metrics.selective import choose_start, guaranteed_threshold
from calprompt.promises.conformal import conformal_quantile, images_needed
from calprompt.runs.resources import Resources

HERE = Path(__file__).parent
NAMES = (  # few classes first
    *("photos", "clothes", "digits", "signs", "food", "animals", "faces", "sketch_nature", "icons", "flags"),
    *("sketch_things", "objects"),
)
EACH = 20  # images of a class
LOGITS = Path("build/classifier-logits")
TARGET, COVERAGE, LEVEL = 0.1, 0.9, 0.95
PER_CLASS = (2, 4, 8, 16, 50)
IN_ALL = (4, 16)
STRICT = 0.95  # the coverage at which 4 and 16 images in all are known to go wrong elsewhere


class Table:
    """A CSV file to which rows are added as they are measured."""

    def __init__(self, path: Path, keys: tuple[str, ...]) -> None:
        self.path, self.keys = path, keys
        self.rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []

    def has(self, **key: Any) -> bool:
        wanted = {name: str(value) for name, value in key.items()}
        return any(all(row[name] == value for name, value in wanted.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        shown = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in row.items()}
        self.rows.append(shown)
        with self.path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        print(" ".join(shown.values()), flush=True)


def draw(split: Split, seed: int, each: int = EACH) -> list[int]:
    """Indices of `each` images of every class."""
    rng = random.Random(seed)
    found = []
    for label in sorted(set(split.labels)):
        own = [index for index, other in enumerate(split.labels) if other == label]
        found += sorted(rng.sample(own, min(each, len(own))))
    return found


def paths_of(split: Split) -> list[str]:
    """Where the images of a split are."""
    return [str(Path(split.images.root) / name) for name in split.images.paths]  # type: ignore[attr-defined]


def features(resources: Resources, backbone: calprompt.Backbone, split: Split) -> torch.Tensor:
    """Unit features of the evaluation views."""
    found = frozen_features(backbone, split.images, unreadable=UnreadableImages(), store=resources.store)
    return unit(found[0])


def compare(seeds: range) -> None:
    """Methods on the same images of every dataset."""
    table = Table(HERE / "classifier.csv", ("dataset", "seed", "method"))
    resources = Resources(store=FeatureStore())
    backbone = resources.backbone("pocket")
    LOGITS.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name in NAMES:
            dataset = calprompt.load_dataset(f"pocket_{name}")
            chosen = dataset.train.take(draw(dataset.train, seed))
            labels = np.array(dataset.test.labels)
            for method in (zero_shot, logistic_regression, coop_as_published, fit_defaults):
                if table.has(dataset=name, seed=seed, method=method.__name__):
                    continue
                start = time.process_time()
                logits = method(resources, backbone, dataset, chosen, seed)
                measured = evaluate(logits, labels, from_logits=True)
                table.add(
                    dataset=name,
                    seed=seed,
                    method=method.__name__,
                    images=len(chosen),
                    classes=len(dataset.class_names),
                    **{key: float(measured[key]) for key in ("accuracy", "ece", "nll")},
                    cpu_seconds=round(time.process_time() - start, 1),
                )


def zero_shot(
    resources: Resources, backbone: calprompt.Backbone, dataset: calprompt.Dataset, chosen: Split, seed: int
) -> np.ndarray:
    """The untuned model."""
    text = backbone.zero_shot(dataset.class_names, dataset.template or "a photo of a {}.")
    return (backbone.logit_scale * features(resources, backbone, dataset.test) @ text.T).double().numpy()


def logistic_regression(
    resources: Resources, backbone: calprompt.Backbone, dataset: calprompt.Dataset, chosen: Split, seed: int
) -> np.ndarray:
    """On unit image features; its strength by 4-fold cross-validation of the likelihood."""
    from sklearn.linear_model import LogisticRegressionCV

    x, y = features(resources, backbone, chosen).double().numpy(), np.array(chosen.labels)
    model = LogisticRegressionCV(
        Cs=np.logspace(-1, 4, 6),
        cv=4,
        scoring="neg_log_loss",
        max_iter=300,
        use_legacy_attributes=False,
        l1_ratios=(0,),
    )
    model.fit(x, y)
    return np.asarray(model.predict_log_proba(features(resources, backbone, dataset.test).double().numpy()))


def coop_as_published(
    resources: Resources, backbone: calprompt.Backbone, dataset: calprompt.Dataset, chosen: Split, seed: int
) -> np.ndarray:
    """Sixteen random vectors, cross-entropy, rate 0.002, 50 epochs of batches of 32; eight crops taken in turn."""
    from calprompt.features.frozen import FeatureBank

    tuner = calprompt.create_tuner("coop", backbone, dataset.class_names, context=16, seed=seed)
    crops = backbone.view(crop=0.08)
    views = frozen_features(crops, chosen.images, 8, unreadable=UnreadableImages(), store=resources.store)
    settings = calprompt.TrainingConfig(epochs=50, batch_size=32, lr=0.002, seed=seed)
    with backbone.limited_threads():
        data = FeatureBank(views, torch.tensor(chosen.labels))
        calprompt.train(tuner, data, calprompt.Objective.parse("ce"), settings)
    return calprompt.Predictor(tuner).logits(dataset.test.images, features(resources, backbone, dataset.test)).numpy()


def fit_defaults(
    resources: Resources, backbone: calprompt.Backbone, dataset: calprompt.Dataset, chosen: Split, seed: int
) -> np.ndarray:
    """`Classifier` with KgCoOp: a part of the images is held out for promises."""
    y = [dataset.class_names[label] for label in chosen.labels]
    model = calprompt.Classifier("pocket", tuner="kgcoop", seed=seed, verbose=False, template=dataset.template)
    model.fit(paths_of(chosen), y, resources=resources)
    order = [list(model.classes_).index(name) for name in dataset.class_names]
    probabilities, logits = [], []
    for _, batch in model.stream(paths_of(dataset.test)):
        probabilities.append(batch.probabilities[:, order])
        logits.append(batch.logits.numpy()[:, order])
    np.savez_compressed(
        LOGITS / f"{dataset.name}-{seed}.npz", logits=np.concatenate(logits), labels=np.array(dataset.test.labels)
    )
    return np.log(np.clip(np.concatenate(probabilities), 1e-300, None))


def none_of_these(seeds: range) -> None:
    """Fit on half of the classes; the interval that is stated against the other half."""
    table = Table(HERE / "none_of_these.csv", ("dataset", "seed"))
    resources = Resources(store=FeatureStore())
    for seed in seeds:
        for name in NAMES:
            if table.has(dataset=name, seed=seed):
                continue
            dataset = calprompt.load_dataset(f"pocket_{name}")
            known = set(range(-(-len(dataset.class_names) // 2)))
            chosen = dataset.train.take(draw(dataset.train, seed))
            rows = [index for index, label in enumerate(chosen.labels) if label in known]
            split = chosen.take(rows)
            y = [dataset.class_names[label] for label in split.labels]
            model = calprompt.Classifier("pocket", tuner="kgcoop", seed=seed, verbose=False, template=dataset.template)
            model.fit(paths_of(split), y, resources=resources)
            rule = model.rule_.open_set
            assert rule is not None
            assert rule.false_accepts is not None
            kinds = np.array([label in known for label in dataset.test.labels])
            accepted = np.concatenate(
                [rule.accepts(batch.logits.numpy()) for _, batch in model.stream(paths_of(dataset.test))]
            )
            mean, low, high = rule.false_accepts
            truth = float(accepted[~kinds].mean())
            table.add(
                dataset=name,
                seed=seed,
                classes=len(known),
                stated=mean,
                low=low,
                high=high,
                truth=truth,
                covered=low <= truth <= high,
                stated_rejects=rule.false_rejects[0],
                rejects=float((~accepted[kinds]).mean()),
            )


def promises(seeds: range, trials: int = 2000) -> None:
    """Sets and thresholds from random divisions of the stored test logits."""
    table = Table(HERE / "promises.csv", ("dataset", "images", "kind"))
    for name in NAMES:
        stored = np.load(LOGITS / f"pocket_{name}-{seeds[0]}.npz")
        logits, labels = stored["logits"].astype(np.float64), stored["labels"]
        for kind, n in (*(("per class", n) for n in PER_CLASS), *(("in all", n) for n in IN_ALL)):
            if not table.has(dataset=name, kind=kind, images=n):
                measured = simulate(logits, labels, kind, n, trials)
                table.add(dataset=name, kind=kind, images=n, trials=trials, **measured)


def simulate(logits: np.ndarray, labels: np.ndarray, kind: str, n: int, trials: int) -> dict[str, float]:
    """Divide the images again and again: those to promise on, and the rest, which the sets have to cover.

    A fifth of each class is set aside first, for the temperature and for where the test of thresholds starts. The
    promise on errors is about the long run, so it is held against all images that those to promise on are drawn from.
    """
    rng = np.random.default_rng(n + (1000 if kind == "in all" else 0))
    shuffled = [rng.permutation(np.flatnonzero(labels == label)) for label in range(logits.shape[1])]
    aside = np.concatenate([own[: len(own) // 5] for own in shuffled])
    used = np.concatenate([own[len(own) // 5 :] for own in shuffled])
    temperature = Temperature().fit(torch.from_numpy(logits[aside]), torch.from_numpy(labels[aside])).temperature
    p = softmax(logits / float(temperature or 1.0))
    confidence, right = np.minimum(p.max(axis=1), 1), p.argmax(axis=1) == labels
    own = (1 - p)[np.arange(len(labels)), labels]
    everything = np.sort((1 - p[used]).reshape(-1))
    coverage = COVERAGE if kind == "per class" else STRICT
    classes = [used[labels[used] == label] for label in range(logits.shape[1])]
    covered, sizes, errors = [], [], []
    by_class: list[list[float]] = []
    starts: list[float] = []
    trivial = made = broken = 0
    for _ in range(trials):
        held, rest = divide_at_random(rng, classes, used, n, kind)
        quantile = conformal_quantile(own[held], coverage)
        inside = (own <= quantile) | right
        covered.append(float(inside[rest].mean()))
        sizes.append(np.searchsorted(everything, quantile, side="right") / len(used))
        trivial += not np.isfinite(quantile)
        if kind == "per class" and n >= images_needed(coverage) and len(by_class) < 500:
            by_class.append(class_coverage(own, right, labels, held, rest, coverage, logits.shape[1]))
        if not starts:  # as many images are promised on every time
            starts = [choose_start(confidence[aside], right[aside], TARGET, len(held))]
        found = guaranteed_threshold(confidence[held], right[held], TARGET, LEVEL, starts=starts)
        if found.threshold is not None:
            made += 1
            answered = confidence[used] >= found.threshold  # the long run: all images that these were drawn from
            errors.append(float((~right[used][answered]).mean()) if answered.any() else 0.0)
            broken += errors[-1] > TARGET
    return {
        "coverage_wanted": coverage,
        "coverage": float(np.mean(covered)),
        "coverage_error": float(np.std(covered) / np.sqrt(trials)),
        "mean_size": float(np.mean(sizes)),
        "all_classes": trivial / trials,
        "worst_class": float(np.mean(by_class, axis=0).min()) if by_class else float("nan"),
        "threshold_made": made / trials,
        "threshold_broken": broken / trials,
        "error_among_answered": float(np.mean(errors)) if errors else float("nan"),
    }


def class_coverage(
    own: np.ndarray,
    right: np.ndarray,
    labels: np.ndarray,
    held: np.ndarray,
    rest: np.ndarray,
    coverage: float,
    classes: int,
) -> list[float]:
    """How often the set has the truth, class by class, with a quantile of each class's own."""
    found = []
    for label in range(classes):
        quantile = conformal_quantile(own[held[labels[held] == label]], coverage)
        mine = rest[labels[rest] == label]
        found.append(float(((own[mine] <= quantile) | right[mine]).mean()))
    return found


def divide_at_random(
    rng: np.random.Generator, classes: list[np.ndarray], used: np.ndarray, n: int, kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """Images to promise on, and the rest; of a class with few images, half."""
    if kind == "in all":
        order = rng.permutation(used)
        return order[:n], order[n:]
    shuffled = [rng.permutation(own) for own in classes]
    some = [min(n, len(own) // 2) for own in shuffled]
    held = np.concatenate([own[:k] for own, k in zip(shuffled, some, strict=True)])
    rest = np.concatenate([own[k:] for own, k in zip(shuffled, some, strict=True)])
    return held, rest


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of the CSV files."""
    with (HERE / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables() -> dict[str, str]:
    """The tables of docs/classifier.md, as Markdown."""
    return {"compare": compare_table(), "promises": promises_table(), "none of these": none_table()}


def compare_table() -> str:
    """Accuracy, ECE and NLL of every method on every dataset, and their means over datasets."""
    rows = read("classifier.csv")
    methods = ("zero_shot", "coop_as_published", "logistic_regression", "fit_defaults")
    found = {(row["dataset"], row["method"]): [float(row[name]) for name in ("accuracy", "ece", "nll")] for row in rows}
    classes = {row["dataset"]: row["classes"] for row in rows}

    def cell(accuracy: float, ece: float, nll: float) -> str:
        return f"{100 * accuracy:.1f} / {100 * ece:.1f} / {nll:.2f}"

    lines = [
        "| dataset | classes | zero-shot | CoOp as published | logistic regression | `fit` |",
        "|---|---|---|---|---|---|",
    ]
    for name, count in classes.items():
        lines.append(f"| {name} | {count} | " + " | ".join(cell(*found[name, each]) for each in methods) + " |")
    means = [np.mean([found[name, each] for name in classes], axis=0) for each in methods]
    return "\n".join([*lines, "| **mean** | | " + " | ".join(cell(*mean) for mean in means) + " |"])


def promises_table() -> str:
    """What became of the promises over all datasets, by how many images they rested on."""
    lines = [
        "| images | promised coverage | coverage, mean and least | all classes | error promise made | and broken |",
        "|---|---|---|---|---|---|",
    ]
    rows = read("promises.csv")
    for kind, n in dict.fromkeys((row["kind"], row["images"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["images"]) == (kind, n)]
        coverage = [float(row["coverage"]) for row in own]
        made, broken = (
            sum(float(row[name]) * int(row["trials"]) for row in own) for name in ("threshold_made", "threshold_broken")
        )
        trials = sum(int(row["trials"]) for row in own)
        full = np.mean([float(row["all_classes"]) for row in own])
        lines.append(
            f"| {n} {kind} | {100 * float(own[0]['coverage_wanted']):.0f} % | {100 * np.mean(coverage):.2f} %, "
            f"{100 * min(coverage):.2f} % | {100 * full:.0f} % | {made:.0f} of {trials:,} | {broken:.0f} |"
        )
    return "\n".join(lines)


def none_table() -> str:
    """The stated interval of false accepts against classes that were never used."""
    lines = ["| dataset | classes known | stated | interval | true | inside |", "|---|---|---|---|---|---|"]
    for row in read("none_of_these.csv"):
        stated, low, high, truth = (f"{100 * float(row[name]):.0f}" for name in ("stated", "low", "high", "truth"))
        inside = "yes" if row["covered"] == "True" else "no"
        lines.append(f"| {row['dataset']} | {row['classes']} | {stated} % | {low} to {high} % | {truth} % | {inside} |")
    return "\n".join(lines)


def parse() -> Iterator[argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "none-of-these", "promises", "tables"))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 1")
    yield parser.parse_args()


if __name__ == "__main__":
    for args in parse():
        if args.what == "tables":
            print("\n\n".join(tables().values()))
            break
        work = {"compare": compare, "none-of-these": none_of_these, "promises": promises}[args.what]
        work(range(1, args.seeds + 1))
