"""What experiments/pocket.csv says, as the Markdown tables of docs/pocket-results.md.

    python experiments/pocket_table.py                               all tables
    python experiments/pocket_table.py --settings tuned --tuner coop one tuner, dataset by dataset
    python experiments/pocket_table.py --write                       put those that the page has a place for into it

Tables are of the nine datasets near to what the model has seen; under "tuned_far" and "published_far" of icons, signs
and digits; under "tuned_all" and "published_all" of all twelve. A difference is that of two runs of a tuner, a dataset
and a seed, then averaged over seeds (and tuners, if several). The interval of the mean over datasets is Student's,
with datasets as the unit: what would happen on other datasets like these. A star says that it excludes 0; of twenty
true zeros one gets a star.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

TABLE = Path(__file__).with_name("pocket.csv")
PAGE = Path(__file__).parents[1] / "docs" / "pocket-results.md"
PLACE = re.compile(r"<!-- (?P<settings>\w+): (?P<title>[^>]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 11: 2.23, 12: 2.20}
TUNERS = ("coop", "cocoop", "maple", "kgcoop", "proda", "prograd", "promptsrc")
LOSSES = ("ce", "tcpt", "margin_only", "moments_only", "mbls", "zs_norm", "penalty")
SPLITS = ("base", "novel")
FAR = ("digits", "signs", "icons")
ZERO = "zero-shot"
VARIANTS = {
    "words": "starting from “a photo of a”",
    "sharp": "logit scale 50",
    "calibrated": "a calibrated logit scale",
    "few": "2 shots",
    "long": "50 epochs",
    "depth1": "text tower of 1 block, trained anew",
    "depth3": "3 blocks, trained anew",
    "depth6": "6 blocks",
    "depth12": "12 blocks",
}


@dataclass(frozen=True)
class Method:
    """What is compared with something else on the same tuner, dataset and seed."""

    loss: str
    calibrator: str = "none"

    def __str__(self) -> str:
        return self.loss if self.calibrator == "none" else f"{self.loss}, {self.calibrator}"


Key = tuple[str, str, int]  # tuner, dataset, seed
Results = dict[tuple[Method, str, str], dict[Key, float]]  # method, split, metric; in per cent but for nll


def read(group: str, table: Path = TABLE) -> Results:
    """All results of some settings: "tuned" on the near datasets, "tuned_far" on the far ones, "tuned_all" on both.

    "gap" is mean confidence minus accuracy, "on shots" accuracy on those.
    """
    settings, _, which = group.partition("_")
    wanted = {"": (False,), "far": (True,), "all": (False, True)}[which]
    found: Results = defaultdict(dict)
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["settings"] != settings or (row["dataset"] in FAR) not in wanted:
                continue
            method = Method(row["loss"] if row["model"] == "tuned" else ZERO, row["calibrator"])
            values = {name: 100 * float(row[name]) for name in ("accuracy", "ece", "ace", "mce", "mean_confidence")}
            values |= {"nll": float(row["nll"]), "gap": values["mean_confidence"] - values["accuracy"]}
            values["on shots"] = 100 * float(row["accuracy_on_shots"])
            for metric, value in values.items():
                found[method, row["split"], metric][row["tuner"], row["dataset"], int(row["seed"])] = value
    return found


def by_dataset(values: dict[Key, float], keys: Iterable[Key]) -> list[float]:
    """Means over tuners and seeds."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for key in keys:
        grouped[key[1]].append(values[key])
    return [mean(each) for _, each in sorted(grouped.items())]


def shared(found: Results, methods: Sequence[Method], tuners: Sequence[str]) -> list[Key]:
    """What all of the methods were run on."""
    keys = [found[method, "base", "accuracy"].keys() for method in methods]
    return sorted(key for key in set(keys[0]).intersection(*keys[1:]) if key[0] in tuners)


def level(found: Results, method: Method, split: str, metric: str, keys: list[Key]) -> str:
    """The mean over datasets."""
    return f"{mean(by_dataset(found[method, split, metric], keys)):.1f}"


def difference(found: Results, first: Method, second: Method, split: str, metric: str, keys: list[Key]) -> str:
    """The mean paired difference over datasets, with its interval; nothing if a method has no meaning there."""
    ours, theirs = found[first, split, metric], found[second, split, metric]
    if not all(key in ours for key in keys):
        return ""
    return interval(by_dataset({key: ours[key] - theirs[key] for key in keys}, keys))


def interval(values: Sequence[float]) -> str:
    """The mean of one value a dataset, with its interval."""
    if len(values) < 2:
        return f"{values[0]:+.2f}"
    half = STUDENT[len(values)] * stdev(values) / math.sqrt(len(values))
    star = "*" if abs(mean(values)) > half else ""
    return f"{mean(values):+.2f}{star} [{mean(values) - half:+.2f}, {mean(values) + half:+.2f}]"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def levels(found: Results, metric: str) -> str:
    """Zero-shot, cross-entropy and TCPT of every tuner, on base and novel classes."""
    methods = [Method(ZERO), Method("ce"), Method("tcpt")]
    rows = []
    for tuner in TUNERS:
        keys = shared(found, methods, [tuner])
        if keys:
            rows.append([tuner] + [level(found, method, split, metric, keys) for split in SPLITS for method in methods])
    return markdown(["tuner", *(f"{split}, {method}" for split in SPLITS for method in methods)], rows)


def on_shots(found: Results) -> str:
    """Accuracy on the pictures learned from and on test pictures of the same classes, untuned and tuned."""
    methods, metrics = [Method(ZERO), Method("ce")], ("on shots", "accuracy")
    rows = []
    for tuner in TUNERS:
        keys = shared(found, methods, [tuner])
        if keys:
            rows.append([tuner] + [level(found, method, "base", name, keys) for name in metrics for method in methods])
    return markdown(["tuner", *(f"{told}, {each}" for told in ("shots", "base test") for each in methods)], rows)


def apart(found: Results) -> str:
    """How far tuning moves the gap of novel classes above that of base classes: the paper's dual miscalibration."""
    zero, losses, rows = Method(ZERO), ("ce", "tcpt"), []

    def between(method: Method, key: Key) -> float:
        return found[method, "novel", "gap"][key] - found[method, "base", "gap"][key]

    for name, tuners in (*((tuner, [tuner]) for tuner in TUNERS), ("all", TUNERS)):
        keys = shared(found, [zero, *map(Method, losses)], tuners)
        moved = [{key: between(Method(loss), key) - between(zero, key) for key in keys} for loss in losses]
        if keys:
            both = [*moved, {key: moved[1][key] - moved[0][key] for key in keys}]
            rows.append([name, str(len(keys)), *(interval(by_dataset(values, keys)) for values in both)])
    return markdown(["tuner", "runs", "ce - zero-shot", "tcpt - zero-shot", "tcpt - ce"], rows)


def effects(
    found: Results, first: Method, second: Method, metrics: Sequence[str], tuners: Sequence[str] = TUNERS
) -> list[str]:
    """How many runs a difference has, and its interval for every metric and split; nothing if there is no run."""
    keys = shared(found, [first, second], tuners)
    cells = [difference(found, first, second, split, name, keys) for name in metrics for split in SPLITS if keys]
    return [str(len(keys)), *cells] if keys else []


def columns(metrics: Sequence[str]) -> list[str]:
    return [f"{metric}, {split}" for metric in metrics for split in SPLITS]


def cases(found: Results) -> dict[tuple[str, str, str], dict[str, tuple[float, float]]]:
    """For every tuner, dataset and half, gap and ECE of zero-shot, cross-entropy and TCPT: means over seeds."""
    methods = [Method(ZERO), Method("ce"), Method("tcpt")]
    held: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
    for key in shared(found, methods, TUNERS):
        for split in SPLITS:
            held[key[0], key[1], split].append(key)
    return {
        case: {
            str(method): (
                mean(found[method, case[2], "gap"][key] for key in keys),
                mean(found[method, case[2], "ece"][key] for key in keys),
            )
            for method in methods
        }
        for case, keys in held.items()
    }


def by_zero_shot(found: Results) -> str:
    """ECE where zero-shot's own gap is small, middling or large."""
    rows = []
    for low, high in ((0, 3), (3, 8), (8, 100)):
        here = [case for case in cases(found).values() if low <= abs(case[ZERO][0]) < high]
        if here:
            nearer = sum(abs(case["tcpt"][0] - case[ZERO][0]) < abs(case["ce"][0] - case[ZERO][0]) for case in here)
            told = f"{low} to {high}" if high < 100 else f"{low} and more"
            levels = [f"{mean(case[name][1] for case in here):.1f}" for name in (ZERO, "ce", "tcpt")]
            rows.append([told, str(len(here)), *levels, f"{nearer} of {len(here)}"])
    head = ["zero-shot's gap, either way", "cases", "ECE zero-shot", "ce", "tcpt"]
    return markdown([*head, "tcpt's gap nearer to zero-shot's than ce's"], rows)


def draw(path: Path) -> None:
    """Gaps after tuning against zero-shot's, a point a case."""
    from matplotlib.figure import Figure

    from calprompt.report.reliability import save_figure

    figure = Figure(figsize=(8.4, 8.0), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    told = {"published": "published settings", "tuned": "settings for this model"}
    for row, settings in zip(grid, told, strict=True):
        shown = cases(read(f"{settings}_all"))
        for axes, name, title in zip(row, ("ce", "tcpt"), ("cross-entropy", "TCPT"), strict=True):
            axes.axhline(0, color="0.6", linewidth=0.8)
            axes.axline((0, 0), slope=1, linestyle="--", color="0.3", linewidth=1, label="as zero-shot")
            for split, colour, marker in (("base", "tab:blue", "o"), ("novel", "tab:orange", "^")):
                points = [(case[ZERO][0], case[name][0]) for (*_, of), case in shown.items() if of == split]
                axes.scatter(*zip(*points, strict=True), s=18, alpha=0.75, color=colour, marker=marker, label=split)
            axes.set_title(f"{title}, {told[settings]}", fontsize=11)
            axes.set_xlim(-13, 28)
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
        row[0].set_ylabel("after tuning")
    for axes in grid[1]:
        axes.set_xlabel("zero-shot: confidence minus accuracy, %")
    grid[0, 1].legend(loc="upper left", frameon=False)
    save_figure(figure, path)


def tables(settings: str, table: Path = TABLE) -> dict[str, str]:
    """All tables of the page about some settings, by what they are about."""
    found = read(settings, table)
    plain, metrics = Method("ce"), ("accuracy", "ece", "nll")
    calibrators = sorted({method.calibrator for method, _, _ in found} - {"none"})

    def by_tuner(first: Method, second: Method, over: Sequence[str]) -> str:
        rows = {tuner: effects(found, first, second, over, [tuner]) for tuner in TUNERS}
        return markdown(["tuner", "runs", *columns(over)], [[name, *row] for name, row in rows.items() if row])

    def of_all(pairs: Iterable[tuple[Method, Method]], over: Sequence[str], tuners: Sequence[str] = TUNERS) -> str:
        rows = []
        for first, second in pairs:
            run = {key[0] for key in shared(found, [first, second], tuners)}
            who = "all" if run == set(TUNERS) else ", ".join(tuner for tuner in TUNERS if tuner in run)
            if run:
                rows.append([f"{first} - {second}", who, *effects(found, first, second, over, tuners)])
        return markdown(["", "tuners", "runs", *columns(over)], rows)

    losses = [(Method(loss), plain) for loss in LOSSES if loss != "ce"]
    return {
        "levels of accuracy": levels(found, "accuracy"),
        "levels of ece": levels(found, "ece"),
        "levels of gap": levels(found, "gap"),
        "ce - zero-shot": by_tuner(plain, Method(ZERO), ("accuracy", "ece", "gap")),
        "on shots": on_shots(found),
        "halves apart": apart(found),
        "by zero-shot": by_zero_shot(found),
        "tcpt - ce": by_tuner(Method("tcpt"), plain, metrics),
        "losses": of_all(losses, metrics),
        **{f"losses of {tuner}": of_all(losses, metrics, [tuner]) for tuner in TUNERS},
        "calibrators": of_all(
            ((Method(loss, name), Method(loss)) for loss in ("ce", "tcpt") for name in calibrators), ("ece", "nll")
        ),
    }


def variants(which: str = "", table: Path = TABLE) -> dict[str, str]:
    """CoOp under settings that differ in one thing, each on the datasets and seeds that it was run on.

    which  "" for the near datasets, "_far" for the far ones
    """
    pairs = {"ce - zero-shot": (Method("ce"), Method(ZERO)), "tcpt - ce": (Method("tcpt"), Method("ce"))}
    metrics, rows = ("accuracy", "ece", "gap"), defaultdict(list)
    plain, told = read(f"tuned{which}", table), set()
    for settings, about in VARIANTS.items():
        found = read(f"{settings}{which}", table)
        keys = frozenset(shared(found, [Method("ce"), Method("tcpt")], ["coop"]))
        same: Results = defaultdict(dict)
        same.update({name: {key: held[key] for key in held if key in keys} for name, held in plain.items()})
        seeds = sorted({key[2] for key in keys})
        where = f"{len({key[1] for key in keys})} datasets, seed {', '.join(map(str, seeds))}"
        for title, (first, second) in pairs.items():
            for name, results in ((f"as above, {where}", same), (about, found)):
                row = effects(results, first, second, metrics, ["coop"])
                if row and (title, keys, name) not in told:
                    rows[title].append([name, *row])
                    told.add((title, keys, name))
    return {title: markdown(["", "runs", *columns(metrics)], rows[title]) for title in pairs}


def datasets(settings: str, tuner: str) -> str:
    """Accuracy / ECE of every dataset and loss, means over seeds."""
    found = read(settings)
    methods = [Method(ZERO), *(Method(loss) for loss in LOSSES)]
    methods = [method for method in methods if shared(found, [method], [tuner])]
    rows = []
    for dataset in sorted({key[1] for key in shared(found, methods[:1], [tuner])}):
        for split in SPLITS:
            cells = []
            for method in methods:
                keys = [key for key in shared(found, [method], [tuner]) if key[1] == dataset]
                both = [level(found, method, split, name, keys) for name in ("accuracy", "ece") if keys]
                cells.append(" / ".join(both))
            rows.append([dataset, split, *cells])
    return markdown(["dataset", "half", *map(str, methods)], rows)


def filled(page: str) -> str:
    """The page with the table of every place it has, <!-- settings: title --> … <!-- end -->."""
    wanted = {place["settings"] for place in PLACE.finditer(page)}
    made = {}
    for name in wanted:
        variant = name.startswith("variants")
        made[name] = variants(name.removeprefix("variants")) if variant else tables(name)

    def fill(place: re.Match[str]) -> str:
        table = made[place["settings"]][place["title"]]
        return f"<!-- {place['settings']}: {place['title']} -->\n\n{table}\n\n<!-- end -->"

    return PLACE.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["tuned", "tuned_far", "published", "published_far"])
    parser.add_argument("--tuner", choices=TUNERS, help="this one dataset by dataset")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    chosen = parser.parse_args()
    if chosen.write:
        PAGE.write_text(filled(PAGE.read_text()))
        draw(PAGE.with_name("pocket-gaps.png"))
        return
    for settings in chosen.settings:
        if chosen.tuner:
            print(datasets(settings, chosen.tuner), end="\n\n")
            continue
        for title, table in tables(settings).items():
            print(f"{settings}: {title}\n\n{table}", end="\n\n")


if __name__ == "__main__":
    main()
