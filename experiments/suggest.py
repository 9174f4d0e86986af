"""What `calprompt suggest` is worth: accuracy after 20, 50 and 100 labels, beside labels of pictures drawn at random.

    python experiments/suggest.py measure          fills suggest.csv; what is in it is not computed again
    python experiments/suggest.py tables           prints the table of docs/practitioners.md

Ten classes of each embedded dataset (drawn once, as in learners.py), the training pictures as a pool without labels,
the test pictures to count on. The model starts as zero-shot, suggests 20, learns from them, suggests 30 more, then 50.
It learns as `--tuner linear-probe` does, with strength 1, on stored features. `features` is the command (image
features), `answers` the page, which has the probabilities alone (their logarithms take the place of features). The
method was chosen among `PLAIN` on the datasets of `CHOSEN_ON`; the six of `REPORTED` played no part.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
from learners import Task

from calprompt.classifier.suggesting import _squared, entropy, suggest
from calprompt.features.store import FeatureStore
from calprompt.runs.resources import Resources
from calprompt.tuners.probes import solve_probe
from classifier import HERE, Table

REPORTED = ("clothes", "digits", "signs", "animals", "flags", "objects")
CHOSEN_ON = ("photos", "food", "faces", "icons", "sketch_nature", "sketch_things")
LABELS = (20, 50, 100)
SEEDS = (1, 2, 3)
Chooser = Callable[[np.ndarray, np.ndarray, int, np.ndarray, int], list[int]]


def at_random(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).permutation(len(x))[:n]]


def most_unsure(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    return [int(each) for each in np.argsort(-entropy(p), kind="stable")[:n]]


def farthest(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    """The least sure, then again and again the one that is farthest from all, weighted by how unsure it is."""
    weight = entropy(p)
    far = _squared(x, known).min(axis=1) if len(known) else np.ones(len(x))
    chosen: list[int] = []
    for _ in range(n):
        chosen.append(int((weight * far).argmax()))
        far = np.minimum(far, _squared(x, x[chosen[-1:]])[:, 0])
    return chosen


def by_features(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    return suggest(x, p, n, labelled=known if len(known) else None, seed=seed)


def by_clusters(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    return suggest(x, np.full_like(p, 1 / p.shape[1]), n, labelled=known if len(known) else None, seed=seed)


def without_labelled(x: np.ndarray, p: np.ndarray, n: int, known: np.ndarray, seed: int) -> list[int]:
    return suggest(x, p, n, seed=seed)


PLAIN: dict[str, Chooser] = {
    "random": at_random,
    "unsure": most_unsure,
    "farthest": farthest,
    "clusters": by_clusters,
    "without labelled": without_labelled,
    "features": by_features,
}
ANSWERS = "answers"


def curve(task: Task, method: str, seed: int) -> dict[int, float]:
    """Accuracy by number of labels; with 0, of the untuned model."""
    backbone = task.backbone
    x, test = task.x(task.train), task.x(task.test)
    with torch.no_grad():
        text = float(backbone.logit_scale) * backbone.zero_shot(task.names, task.template).double().cpu()
    weights = text
    found = {0: accuracy(test, weights, task.y_test)}
    labelled: list[int] = []
    for total in LABELS:
        rest = [place for place in range(len(x)) if place not in set(labelled)]
        logits = torch.from_numpy(x) @ weights.T
        logs = logits.log_softmax(dim=1).numpy()
        space = logs - logs.mean(axis=1, keepdims=True) if method == ANSWERS else x
        choose = by_features if method == ANSWERS else PLAIN[method]
        new = choose(space[rest], np.exp(logs[rest]), total - len(labelled), space[labelled], 1000 * seed + total)
        labelled += [rest[place] for place in new]
        share, residual = solve_probe(torch.from_numpy(x[labelled]), torch.from_numpy(task.y[labelled]), text, 1.0)
        weights = share * text + residual
        found[total] = accuracy(test, weights, task.y_test)
    return found


def accuracy(x: np.ndarray, weights: torch.Tensor, y: np.ndarray) -> float:
    return float(((torch.from_numpy(x) @ weights.T).argmax(dim=1).numpy() == y).mean())


def measure(names: list[str], methods: list[str]) -> None:
    table = Table(HERE / "suggest.csv", ("dataset", "method", "seed"))
    resources = Resources(store=FeatureStore())
    for name in names:
        task = Task(resources, "pocket-photo", name, 10_000, 1)
        for method in methods:
            for seed in SEEDS:
                if not table.has(dataset=name, method=method, seed=seed):
                    measured = {f"after_{labels}": share for labels, share in curve(task, method, seed).items()}
                    table.add(dataset=name, method=method, seed=seed, pool=len(task.train), **measured)


def tables() -> None:
    rows = Table(HERE / "suggest.csv", ()).rows
    for names, methods in ((REPORTED, ("random", "features", ANSWERS)), (CHOSEN_ON, (*PLAIN, ANSWERS))):
        print(f"| dataset | labels | {' | '.join(methods)} |\n|---|---|{'---|' * len(methods)}")
        for name in (*names, "all"):
            for labels in LABELS:
                cells = []
                for method in methods:
                    seeds = [
                        [
                            float(r[f"after_{labels}"])
                            for r in rows
                            if (r["dataset"], r["method"], r["seed"]) == (each, method, str(seed))
                        ]
                        for seed in SEEDS
                        for each in (names if name == "all" else (name,))
                    ]
                    values = [100 * value for each in seeds for value in each]
                    cells.append(f"{statistics.mean(values):.1f}" if values else "")
                print(f"| {name} | {labels} | {' | '.join(cells)} |")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "tables"))
    parser.add_argument("--datasets", nargs="+", default=[*CHOSEN_ON, *REPORTED])
    parser.add_argument("--methods", nargs="+", default=[*PLAIN, ANSWERS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "measure":
        measure(args.datasets, args.methods)
    else:
        tables()


if __name__ == "__main__":
    main()
