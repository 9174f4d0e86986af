"""Do promises hold on folders with groups, tails of tiny classes, unequal classes, few images?

    python experiments/promised_folders.py simulate    made-up logits, 2,000 folders of each kind: 2 minutes
    python experiments/promised_folders.py fewer       the same, holding out fewer where fit does, 200 of each kind
    python experiments/promised_folders.py fit         `Classifier` on the pocket, from images to promises: 10 fits each
    python experiments/promised_folders.py never-miss  a class that must not be missed, 1,000 folders each: 3 minutes
    python experiments/promised_folders.py tables      prints the tables of docs/classifier.md

A folder is drawn, divided by `divide`, and promised on by `make_promises`; what it promises is held against many more
images, drawn as the folder's were: of a class with the share that it has of the folder's images, and of a new group as
large as that of one of the folder's images. Each writes a CSV beside this file; what is in it is not computed again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calprompt.kernel import softmax
from calprompt.promises import DecisionRule, Evidence, Promise, Requests, divide, doubtful_promise, make_promises
from calprompt.promises.requests import MADE

if TYPE_CHECKING:
    from calprompt.data.dataset import Split

HERE = Path(__file__).parent
REQUESTS = Requests(target_error=0.1, coverage=0.9)
ALLOWED = 0.05  # of promises that are 95 % sure may be broken
WORLD = 100_000  # images that a promise is held against


@dataclass(frozen=True)
class Folder:
    """A kind of folder.

    Attributes:
        name: In the table.
        groups: Sizes of the groups of each class.
        strength: How well each class is known: what its logit is raised by.
        alike: Standard deviation of what images of a group share; 0: they share nothing.
        by_size: What the strength changes by with each image that a group has.
        fooled: Share of the groups of each class that look like the next class; none if empty.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    strength: tuple[float, ...]
    alike: float = 0.0
    by_size: float = 0.0
    fooled: tuple[float, ...] = ()

    @property
    def slots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Class, group and size of the group of each image."""
        rows = [(label, size) for label, own in enumerate(self.groups) for size in own]
        label, size = (np.array(column) for column in zip(*rows, strict=True))
        return np.repeat(label, size), np.repeat(np.arange(len(rows)), size), np.repeat(size, size)

    def draw(self, labels: np.ndarray, groups: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Logits of images."""
        logits = rng.normal(size=(len(labels), len(self.groups)))
        shared = self.alike * rng.normal(size=groups.max() + 1)[groups]
        own = np.array(self.strength)[labels] + self.by_size * (sizes - 1) + shared
        seen = labels
        if self.fooled:
            fooled = rng.random(groups.max() + 1)[groups] < np.array(self.fooled)[labels]
            seen = np.where(fooled, (labels + 1) % len(self.groups), labels)
        logits[np.arange(len(labels)), seen] += own + rng.uniform(-1, 1, len(labels))
        return logits


def single(*counts: int) -> tuple[tuple[int, ...], ...]:
    """Classes of so many images, each a group by itself."""
    return tuple((1,) * count for count in counts)


FOLDERS = (
    Folder("10 classes of 20", single(*[20] * 10), (2.5,) * 10),
    Folder("10 classes of 20, 12 % look like another class", single(*[20] * 10), (7.0,) * 10, fooled=(0.12,) * 10),
    Folder("4 classes of 5", single(*[5] * 4), (1.5,) * 4),
    Folder("200, 50 and 10; the small ones hard", single(200, 50, 10), (2.5, 0.5, 0.0)),
    Folder("20 hard classes of 4, 20 easy ones of 5", single(*[4] * 20, *[5] * 20), (1.0,) * 20 + (6.0,) * 20),
    Folder("100 single, easy; 100 in 10 groups, hard", ((1,) * 100, (10,) * 10), (7.0, 6.0), 1.0, fooled=(0, 0.24)),
    Folder("100 single, easy; 240 in 80 groups, hard", ((1,) * 100, (3,) * 80), (7.0, 6.0), 1.0, fooled=(0, 0.17)),
    Folder("4 classes of 40 groups of 5", ((5,) * 40,) * 4, (6.0,) * 4, 1.0, fooled=(0.12,) * 4),
    Folder("groups of 1 to 6, the large ones hard", ((1, 2, 3, 6) * 12,) * 3, (5.0,) * 3, 0.5, -0.8),
    Folder("97 single images and a group of 3, four classes", ((1,) * 97 + (3,),) * 4, (1.5,) * 4, 0.5, -1.5),
    Folder("one class of 60, 30 of 2 that it cannot tell", single(60, *[2] * 30), (2.5, *[0.0] * 30)),
    Folder("one class of 60, 30 of 1 that it cannot tell", single(60, *[1] * 30), (2.5, *[0.0] * 30)),
    Folder("one class of 60, 30 of 3 that it cannot tell", single(60, *[3] * 30), (6.0, *[0.0] * 30)),
    Folder("10 classes of 40, 8 of 1 that it cannot tell", single(*[40] * 10, *[1] * 8), (2.5,) * 10 + (-3.0,) * 8),
)


@dataclass(frozen=True, eq=False)
class Truth:
    """What promises of a model are held against.

    Attributes:
        images: Many images.
    """

    images: Evidence

    def covered(self, rule: DecisionRule, promise: Promise, names: list[str]) -> float:
        """How often sets have the truth, for the images that the promise is about."""
        rows = np.arange(len(self.images))
        inside = rule.sets[0].sets(self.images.logits)[rows, self.images.labels]
        left_out = [] if promise.whole else [names.index(name) for name in promise.excluded]
        return float(inside[~np.isin(self.images.labels, left_out)].mean())

    def error(self, rule: DecisionRule) -> float:
        """How many of its answers are wrong."""
        answered = rule.answered(self.images.logits, self.images.probabilities)
        wrong = rule.chosen(self.images.probabilities) != self.images.labels
        return float(wrong[answered].mean()) if answered.any() else 0.0


class KnownScores(Truth):
    """The same for many models with the same logits: everything is sorted once."""

    def __init__(self, images: Evidence) -> None:
        super().__init__(images)
        self.sorted: dict[Any, np.ndarray] = {}
        order = np.argsort(-images.confidence)
        self.confidence, self.errors = -images.confidence[order], np.cumsum(~images.correct[order])

    def covered(self, rule: DecisionRule, promise: Promise, names: list[str]) -> float:
        sets = rule.sets[0]
        key = sets.temperature, promise.whole, promise.excluded
        if key not in self.sorted:
            left_out = [] if promise.whole else [names.index(name) for name in promise.excluded]
            rows = np.flatnonzero(~np.isin(self.images.labels, left_out))
            own = sets.scores(self.images.logits[rows])[np.arange(len(rows)), self.images.labels[rows]]
            self.sorted[key] = np.sort(np.where(self.images.correct[rows], -np.inf, own))
        return float(np.searchsorted(self.sorted[key], sets.quantiles[0], side="right") / len(self.sorted[key]))

    def error(self, rule: DecisionRule) -> float:
        answered = int(np.searchsorted(self.confidence, -(rule.min_confidence or 0.0), side="right"))
        return float(self.errors[answered - 1] / answered) if answered else 0.0


class Tally:
    """What many fits on folders of one kind promised, and whether they kept it."""

    def __init__(self) -> None:
        self.coverage: list[float] = []
        self.whole = self.fits = self.made = self.broken = self.sure = self.kept = 0

    def count(self, rule: DecisionRule, promises: tuple[Promise, ...], truth: Truth, names: list[str]) -> None:
        """Add a fit."""
        self.fits += 1
        for promise in promises:
            if promise.status != MADE:
                continue
            if promise.kind == "sets":
                self.coverage.append(truth.covered(rule, promise, names))
                self.whole += promise.whole
            else:
                self.made += 1
                self.broken += truth.error(rule) > REQUESTS.allowed("error")

    def count_sure(self, rule: DecisionRule, promise: Promise, truth: Truth, names: list[str]) -> None:
        """Add a fit whose sets are for this very model."""
        if promise.status == MADE:
            self.sure += 1
            self.kept += truth.covered(rule, promise, names) >= REQUESTS.coverage

    def row(self) -> dict[str, Any]:
        """As a row of the table."""
        made = len(self.coverage)
        return {
            "fits": self.fits,
            "sets_made": made,
            "sets_whole": self.whole,
            "coverage": float(np.mean(self.coverage)) if made else float("nan"),
            "coverage_error": float(np.std(self.coverage) / np.sqrt(made)) if made else float("nan"),
            "error_made": self.made,
            "error_broken": self.broken,
            "sure_made": self.sure,
            "sure_kept": self.kept,
        }


def simulate(folder: Folder, repetitions: int, world: int = WORLD, *, fewer: bool = True) -> dict[str, Any]:
    """Draw folders of a kind, promise on each, and count what is kept; with `fewer`, hold out fewer where fit does."""
    rng = np.random.default_rng(len(folder.name))
    labels, groups, sizes = folder.slots
    names = [f"class {number}" for number in range(len(folder.groups))]
    slots = rng.integers(0, len(labels), world)
    future = folder.draw(labels[slots], np.arange(world), sizes[slots], rng)
    truth = KnownScores(Evidence.of(future, softmax(future), labels[slots]))
    tally = Tally()
    sure = Requests(coverage=REQUESTS.coverage, coverage_level=1 - ALLOWED)
    for seed in range(repetitions):
        logits = folder.draw(labels, groups, sizes, rng)
        found = divide(labels.tolist(), names, REQUESTS, groups=groups.tolist(), most_tuned=64, seed=seed)

        def evidence(rows: tuple[int, ...], logits: Any = logits) -> Evidence:
            own = np.array(rows, dtype=np.int64)
            return Evidence.of(logits[own], softmax(logits[own]), labels[own])

        pilot, held = evidence(found.tune), evidence(found.promise)
        rule, made = make_promises(sure, pilot, held, unseen=found.unseen)
        tally.count_sure(rule, made[0], truth, names)
        if fewer and found.smaller is not None:
            why = doubtful_promise(REQUESTS, pilot, len(held), found.unseen, len(labels), DecisionRule())
            found = found if why is None else replace(found.smaller, refusals=(why, *found.smaller.refusals))
            pilot, held = evidence(found.tune), evidence(found.promise)
        rule, made = make_promises(REQUESTS, pilot, held, refusals=found.refusals, unseen=found.unseen)
        tally.count(rule, made, truth, names)
    return tally.row()


GUARDED = (  # folders whose last class must not be missed, and the share of it that may be
    (Folder("400 and 300, single", single(400, 300), (3.0, 3.0)), 0.05),
    (Folder("400 and 300, 4 % of the last look like the first", single(400, 300), (6.0, 6.0), fooled=(0, 0.04)), 0.05),
    (Folder("600 and 900, single; 1 %", single(600, 900), (5.0, 5.0)), 0.01),
    (Folder("300 single, 200 groups of 3", ((1,) * 300, (3,) * 200), (4.0, 4.0), 1.0), 0.05),
    (Folder("groups of 1 to 6, the large ones hard", ((1, 2, 3, 6) * 60,) * 3, (5.0,) * 3, 0.5, -0.8), 0.1),
    (Folder("400 and 100, single", single(400, 100), (3.0, 3.0)), 0.05),
)


def simulate_guard(folder: Folder, share: float, repetitions: int) -> dict[str, Any]:
    """Promise never to miss the last class of a folder, beside an error rate, and count what is kept."""
    rng = np.random.default_rng(len(folder.name))
    labels, groups, sizes = folder.slots
    names = [f"class {number}" for number in range(len(folder.groups))]
    slots = rng.integers(0, len(labels), WORLD)
    future = folder.draw(labels[slots], np.arange(WORLD), sizes[slots], rng)
    world = Evidence.of(future, softmax(future), labels[slots])
    own = np.sort(world.probabilities[world.labels == len(names) - 1, -1])
    requests = Requests(target_error=REQUESTS.target_error, never_miss=((names[-1], share),))
    row = {"fits": repetitions, "share": share, "made": 0, "broken": 0, "error_made": 0, "error_broken": 0}
    missed, unsure = [], []
    for seed in range(repetitions):
        logits = folder.draw(labels, groups, sizes, rng)
        found = divide(labels.tolist(), names, requests, groups=groups.tolist(), most_tuned=64, seed=seed)
        pilot, held, guard = (
            Evidence.of(logits[rows], softmax(logits[rows]), labels[rows])
            for rows in (np.array(part, dtype=np.int64) for part in (found.tune, found.promise, found.guard))
        )
        rule, promises = make_promises(
            requests,
            pilot,
            held,
            refusals=found.refusals,
            unseen=found.unseen,
            class_names=names,
            guard=guard,
            unguarded=found.unguarded,
        )
        for promise in promises:
            if promise.status != MADE:
                continue
            if promise.kind == "error":
                row["error_made"] += 1
                row["error_broken"] += Truth(world).error(rule) > REQUESTS.allowed("error")
            else:
                row["made"] += 1
                missed.append(float(np.searchsorted(own, rule.guards[0].threshold) / len(own)))
                row["broken"] += missed[-1] > share
                some = world.probabilities[:10_000]
                unsure.append(float(((rule.guarded(some) >= 0) & (rule.chosen(some) != len(names) - 1)).mean()))
    return {**row, "missed": float(np.mean(missed or [np.nan])), "unsure": float(np.mean(unsure or [np.nan]))}


DATASETS = {  # images of a class, and in how many copies with another crop and light
    "clothes: 10 classes of 20": ("pocket_clothes", [(20, 1)] * 10),
    "flags: 10 classes of 24 single images, 10 of 24 groups of 3": ("pocket_flags", [(24, 1)] * 10 + [(24, 3)] * 10),
    "food: 6 classes of 30, 20 of 1 to 3": ("pocket_food", [(30, 1)] * 6 + [(1, 1), (2, 1), (3, 1), (3, 1)] * 5),
}


def fit(repetitions: int, table: Any) -> None:
    """`Classifier` on images of the pocket, again and again on other images; the others are what it is held against."""
    import calprompt
    from calprompt.features.store import FeatureStore
    from calprompt.runs.resources import Resources

    resources = Resources(store=FeatureStore())
    for name, (dataset_name, counts) in DATASETS.items():
        if table.has(folder=name):
            continue
        dataset = calprompt.load_dataset(dataset_name)
        classes = [str(each) for each in dataset.class_names[: len(counts)]]
        with tempfile.TemporaryDirectory() as place:
            pool = list(images_of(dataset.train, counts, Path(place))) + list(
                images_of(dataset.test, counts, Path(place))
            )
            tally, features = Tally(), dict[str, Any]()
            for seed in range(repetitions):
                count_fit(tally, resources, pool, counts, classes, dataset.template, features, seed)
        table.add(folder=name, **tally.row())


def images_of(split: Split, counts: list[tuple[int, int]], place: Path) -> Iterator[tuple[int, list[str]]]:
    """Label and files of each image: itself, or itself with so many crops of it in another light."""
    from PIL import Image, ImageEnhance

    for index, label in enumerate(split.labels):
        if label >= len(counts):
            continue
        source = Path(split.images.root) / split.images.paths[index]  # type: ignore[attr-defined]
        files = [str(source)]
        rng = np.random.default_rng(index)
        for copy in range(1, counts[label][1]):
            with Image.open(source) as opened:
                picture = opened.convert("RGB")
            width, height = picture.size
            left, top = rng.integers(0, width // 5 + 1), rng.integers(0, height // 5 + 1)
            crop = picture.crop((left, top, left + width * 4 // 5, top + height * 4 // 5)).resize(picture.size)
            path = place / f"{source.parent.name}-{source.stem}-{copy}.png"
            ImageEnhance.Brightness(crop).enhance(rng.uniform(0.7, 1.3)).save(path)
            files.append(str(path))
        yield label, files


def count_fit(
    tally: Tally,
    resources: Any,
    pool: list[tuple[int, list[str]]],
    counts: list[tuple[int, int]],
    classes: list[str],
    template: str | None,
    features: dict[str, Any],
    seed: int,
) -> None:
    """Fit on a draw of the images, and hold the promises against the rest."""
    import torch

    import calprompt
    from calprompt.classifier.fitted_model import temperature_of

    rng = np.random.default_rng(seed)
    chosen, rest = [], []
    for label, (count, _) in enumerate(counts):
        own = rng.permutation([number for number, (other, _) in enumerate(pool) if other == label]).tolist()
        chosen += own[:count]
        rest += [own[count:]]
    paths = [(path, classes[pool[number][0]], number) for number in chosen for path in pool[number][1]]
    model = calprompt.Classifier(
        "pocket", tuner="kgcoop", epochs=5, folds=2, seed=seed, verbose=False, template=template
    )
    X, y, groups = zip(*paths, strict=True)
    model.fit(list(X), list(y), groups=list(groups), resources=resources)
    share = np.array([count * copies for count, copies in counts], dtype=float)
    per_class = np.maximum(1, np.round(600 * share / share.sum())).astype(int)
    test = [(number, label) for label, own in enumerate(rest) for number in own[: per_class[label]]]
    files = [str(rng.choice(pool[number][1])) for number, _ in test]
    place = [list(model.classes_).index(name) for name in classes]
    new = [path for path in dict.fromkeys(files) if path not in features]
    features.update(zip(new, (row for _, batch in model.stream(new) for row in batch.features), strict=True))
    logits = model.predictor_.logits(None, torch.stack([features[path] for path in files])).double().numpy()
    probabilities = softmax(logits / temperature_of(model.model_.calibrator))
    evidence = Evidence.of(logits, probabilities, [place[label] for _, label in test])
    tally.count(model.rule_, model.promises_, Truth(evidence), [str(each) for each in model.classes_])


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of the CSV files."""
    import csv

    with (HERE / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables() -> dict[str, str]:
    """The tables of docs/classifier.md."""
    head = (
        "| folder | sets promised | coverage | error promised | and broken | sets for this model | and kept |\n"
        "|---|---|---|---|---|---|---|"
    )
    lines = [head]
    for row in read("promised_folders.csv"):
        lines.append(f"| {row['folder']} | {_sets(row)} | {_errors(row)} | {_sure(row)} |")
    fewer = ["| folder | sets promised | coverage | error promised | and broken |\n|---|---|---|---|---|"]
    for row in read("promised_folders_fewer.csv"):
        fewer.append(f"| {row['folder']} | {_sets(row)} | {_errors(row)} |")
    fitted = ["| folder | fits | sets promised | coverage | error promised | and broken |\n|---|---|---|---|---|---|"]
    for row in read("promised_fits.csv"):
        fitted.append(f"| {row['folder']} | {row['fits']} | {_sets(row)} | {_errors(row)} |")
    guarded = [
        "| folder | may be missed | promised | and broken | missed on average | unsure because of it | error promised "
        "| and broken |\n|---|---|---|---|---|---|---|---|"
    ]
    for row in read("never_miss.csv"):
        made, fits = int(row["made"]), int(row["fits"])
        cells = f"{100 * made / fits:.3g} % | {100 * int(row['broken']) / fits:.3g} %" if made else "refused | "
        cells += f" | {100 * float(row['missed']):.2f} % | {100 * float(row['unsure']):.1f} %" if made else " | | "
        guarded.append(f"| {row['folder']} | {100 * float(row['share']):.3g} % | {cells} | {_errors(row)} |")
    return {
        "folders": "\n".join(lines),
        "fewer": "\n".join(fewer),
        "fits": "\n".join(fitted),
        "never_miss": "\n".join(guarded),
    }


def _sets(row: dict[str, str]) -> str:
    if not int(row["sets_made"]):
        return "refused | "
    which = "" if int(row["sets_whole"]) else ", for the other classes"
    share = int(row["sets_made"]) / int(row["fits"])
    coverage, spread = 100 * float(row["coverage"]), 200 * float(row["coverage_error"])
    return f"{100 * share:.3g} %{which} | {coverage:.2f} ± {spread:.2f} %"


def _errors(row: dict[str, str]) -> str:
    made, fits = int(row["error_made"]), int(row["fits"])
    return f"{100 * made / fits:.3g} % | {100 * int(row['error_broken']) / fits:.3g} %" if made else "refused | "


def _sure(row: dict[str, str]) -> str:
    made, fits = int(row["sure_made"]), int(row["fits"])
    return f"{100 * made / fits:.3g} % | {100 * int(row['sure_kept']) / made:.4g} %" if made else "refused | "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulate", "fewer", "fit", "never-miss", "tables"))
    parser.add_argument("--repetitions", type=int, help="folders of each kind (default: 2000, and 10 fits)")
    args = parser.parse_args()
    if args.what == "tables":
        print("\n\n".join(tables().values()))
        return
    from classifier import Table

    if args.what == "fit":
        fit(args.repetitions or 10, Table(HERE / "promised_fits.csv", ("folder",)))
        return
    if args.what == "never-miss":
        table = Table(HERE / "never_miss.csv", ("folder",))
        for folder, share in GUARDED:
            if not table.has(folder=folder.name):
                table.add(folder=folder.name, **simulate_guard(folder, share, args.repetitions or 1000))
        return
    fewer = args.what == "fewer"
    table = Table(HERE / f"promised_folders{'_fewer' if fewer else ''}.csv", ("folder",))
    for folder in FOLDERS:
        if not table.has(folder=folder.name):
            repetitions = args.repetitions or (200 if fewer else 2000)
            table.add(folder=folder.name, **simulate(folder, repetitions, fewer=fewer))


if __name__ == "__main__":
    main()
