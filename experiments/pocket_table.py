"""What experiments/pocket.csv says, as the Markdown tables of docs/pocket-results.md and docs/pocket-tables.md.

    python experiments/pocket_table.py                               all tables
    python experiments/pocket_table.py --settings tuned --tuner coop one tuner, dataset by dataset
    python experiments/pocket_table.py --write                       put those that a page has a place for into it

Tables are of the nine datasets near to what the model has seen; under "tuned_far" and "published_far" of icons, signs
and digits; under "tuned_all" and "published_all" of all twelve; under "published_five" of the three that have five
classes per half. A star marks an interval that excludes 0; of twenty true zeros one gets a star.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from pocket_numbers import (
    LOSSES,
    PARTS,
    SPLITS,
    TABLE,
    TUNERS,
    ZERO,
    Interval,
    Key,
    Method,
    Results,
    by_dataset,
    cases,
    difference,
    level,
    read,
    shared,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "pocket-results.md", DOCS / "pocket-tables.md")
PLACE = re.compile(r"<!-- (?P<settings>\w+): (?P<title>[^>]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
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


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def levels(results: Results, metric: str) -> str:
    """Zero-shot, cross-entropy and TCPT of every tuner, on base and novel classes."""
    methods = [Method(ZERO), Method("ce"), Method("tcpt")]
    return means(results, {f"{split}, {method}": (method, split, metric) for split in SPLITS for method in methods})


def on_shots(results: Results) -> str:
    """Accuracy on the pictures learned from and on test pictures of the same classes, untuned and tuned."""
    methods, metrics = [Method(ZERO), Method("ce")], {"shots": "on shots", "base test": "accuracy"}
    return means(
        results, {f"{name}, {method}": (method, "base", metrics[name]) for name in metrics for method in methods}
    )


def means(results: Results, cells: dict[str, tuple[Method, str, str]]) -> str:
    """Means over datasets, one row per tuner; columns are methods, splits and metrics."""
    rows = []
    for tuner in TUNERS:
        keys = shared(results, [method for method, _, _ in cells.values()], [tuner])
        if keys:
            rows.append([tuner, *(f"{level(results, *cell, keys):.1f}" for cell in cells.values())])
    return markdown(["tuner", *cells], rows)


def apart(results: Results) -> str:
    """How far tuning moves the gap of novel classes above that of base classes: the paper's dual miscalibration."""
    zero, losses, rows = Method(ZERO), ("ce", "tcpt"), []

    def between(method: Method, key: Key) -> float:
        return results[method, "novel", "gap"][key] - results[method, "base", "gap"][key]

    for name, tuners in (*((tuner, [tuner]) for tuner in TUNERS), ("all", TUNERS)):
        keys = shared(results, [zero, *map(Method, losses)], tuners)
        moved = [{key: between(Method(loss), key) - between(zero, key) for key in keys} for loss in losses]
        if keys:
            both = [*moved, {key: moved[1][key] - moved[0][key] for key in keys}]
            rows.append([name, str(len(keys)), *(str(Interval.of(by_dataset(values, keys))) for values in both)])
    return markdown(["tuner", "runs", "ce - zero-shot", "tcpt - zero-shot", "tcpt - ce"], rows)


def effects(
    results: Results, first: Method, second: Method, metrics: Sequence[str], tuners: Sequence[str] = TUNERS
) -> list[str]:
    """How many runs a difference has, and its interval for every metric and split; nothing if there is no run."""
    keys = shared(results, [first, second], tuners)
    intervals = [difference(results, first, second, split, name, keys) for name in metrics for split in SPLITS]
    return [str(len(keys)), *(str(interval or "") for interval in intervals)] if keys else []


def columns(metrics: Sequence[str]) -> list[str]:
    return [f"{metric}, {split}" for metric in metrics for split in SPLITS]


def by_zero_shot(results: Results) -> str:
    """ECE where zero-shot's own gap is small, middling or large."""
    rows = []
    for low, high in ((0, 3), (3, 8), (8, 100)):
        selected = [case for case in cases(results).values() if low <= abs(case[ZERO][0]) < high]
        if selected:
            nearer = sum(abs(case["tcpt"][0] - case[ZERO][0]) < abs(case["ce"][0] - case[ZERO][0]) for case in selected)
            label = f"{low} to {high}" if high < 100 else f"{low} and more"
            levels = [f"{mean(case[name][1] for case in selected):.1f}" for name in (ZERO, "ce", "tcpt")]
            rows.append([label, str(len(selected)), *levels, f"{nearer} of {len(selected)}"])
    head = ["zero-shot's gap, either way", "cases", "ECE zero-shot", "ce", "tcpt"]
    return markdown([*head, "tcpt's gap nearer to zero-shot's than ce's"], rows)


def tables(settings: str, table: Path = TABLE) -> dict[str, str]:
    """All tables of the page about some settings, by what they are about."""
    results = read(settings, table)
    plain, metrics = Method("ce"), ("accuracy", "ece", "nll")
    calibrators = sorted({method.calibrator for method, _, _ in results} - {"none"})

    def by_tuner(first: Method, second: Method, over: Sequence[str]) -> str:
        rows = {tuner: effects(results, first, second, over, [tuner]) for tuner in TUNERS}
        return markdown(["tuner", "runs", *columns(over)], [[name, *row] for name, row in rows.items() if row])

    def of_all(pairs: Iterable[tuple[Method, Method]], over: Sequence[str], tuners: Sequence[str] = TUNERS) -> str:
        rows = []
        for first, second in pairs:
            run = {key[0] for key in shared(results, [first, second], tuners)}
            who = "all" if run == set(TUNERS) else ", ".join(tuner for tuner in TUNERS if tuner in run)
            if run:
                rows.append([f"{first} - {second}", who, *effects(results, first, second, over, tuners)])
        return markdown(["", "tuners", "runs", *columns(over)], rows)

    losses, parts = ([(Method(loss), plain) for loss in some if loss != "ce"] for some in (LOSSES, PARTS))
    return {
        "levels of accuracy": levels(results, "accuracy"),
        "levels of ece": levels(results, "ece"),
        "levels of gap": levels(results, "gap"),
        "ce - zero-shot": by_tuner(plain, Method(ZERO), ("accuracy", "ece", "gap")),
        "on shots": on_shots(results),
        "halves apart": apart(results),
        "by zero-shot": by_zero_shot(results),
        "tcpt - ce": by_tuner(Method("tcpt"), plain, metrics),
        "losses": of_all(losses, metrics),
        **{f"losses of {tuner}": of_all([*losses, *parts], metrics, [tuner]) for tuner in TUNERS},
        "calibrators": of_all(
            ((Method(loss, name), Method(loss)) for loss in ("ce", "tcpt") for name in calibrators), ("ece", "nll")
        ),
    }


def variants(which: str = "", table: Path = TABLE) -> dict[str, str]:
    """CoOp under settings that differ in one thing, each on the datasets and seeds that it was run on.

    Args:
        which: "" for the near datasets, "_far" for the far ones.
        table: The CSV file.
    """
    pairs = {"ce - zero-shot": (Method("ce"), Method(ZERO)), "tcpt - ce": (Method("tcpt"), Method("ce"))}
    metrics, rows = ("accuracy", "ece", "gap"), defaultdict(list)
    plain, shown = read(f"tuned{which}", table), set()
    for settings, label in VARIANTS.items():
        results = read(f"{settings}{which}", table)
        keys = frozenset(shared(results, [Method("ce"), Method("tcpt")], ["coop"]))
        same: Results = defaultdict(dict)
        same.update({name: {key: values[key] for key in values if key in keys} for name, values in plain.items()})
        seeds = sorted({key[2] for key in keys})
        where = f"{len({key[1] for key in keys})} datasets, seed {', '.join(map(str, seeds))}"
        for title, (first, second) in pairs.items():
            for name, compared in ((f"as above, {where}", same), (label, results)):
                row = effects(compared, first, second, metrics, ["coop"])
                if row and (title, keys, name) not in shown:
                    rows[title].append([name, *row])
                    shown.add((title, keys, name))
    return {title: markdown(["", "runs", *columns(metrics)], rows[title]) for title in pairs}


def crops(table: Path = TABLE) -> dict[str, str]:
    """CoOp with the published settings, a new crop of every shot in every epoch, against eight taken in turn."""
    metrics, rows = ("accuracy", "ece", "gap"), []
    new = read("fresh_all", table)
    both: Results = defaultdict(dict)
    for (method, split, metric), values in new.items():
        both[replace(method, loss=f"{method.loss}, new"), split, metric] = values
    for (method, split, metric), values in read("published_all", table).items():
        same = new.get((method, split, metric), {})
        both[method, split, metric] = {key: value for key, value in values.items() if key in same}
    for first, second in (("ce, new", "ce"), ("tcpt, new", "tcpt"), ("tcpt, new", "ce, new"), ("tcpt", "ce")):
        row = effects(both, Method(first), Method(second), metrics, ["coop"])
        if row:
            rows.append([f"{first} - {second}", *row])
    return {"new crops": markdown(["", "runs", *columns(metrics)], rows)}


def datasets(settings: str, tuner: str) -> str:
    """Accuracy / ECE of every dataset and loss, means over seeds."""
    results = read(settings)
    methods = [Method(ZERO), *(Method(loss) for loss in LOSSES)]
    methods = [method for method in methods if shared(results, [method], [tuner])]
    rows = []
    for dataset in sorted({key[1] for key in shared(results, methods[:1], [tuner])}):
        for split in SPLITS:
            cells = []
            for method in methods:
                keys = [key for key in shared(results, [method], [tuner]) if key[1] == dataset]
                both = [f"{level(results, method, split, name, keys):.1f}" for name in ("accuracy", "ece") if keys]
                cells.append(" / ".join(both))
            rows.append([dataset, split, *cells])
    return markdown(["dataset", "half", *map(str, methods)], rows)


def filled(page: str) -> str:
    """The page with the table of every place it has, <!-- settings: title --> … <!-- end -->."""
    names = {place["settings"] for place in PLACE.finditer(page)}
    made = {}
    for name in names:
        if name == "crops":
            made[name] = crops()
        elif name.startswith("variants"):
            made[name] = variants(name.removeprefix("variants"))
        else:
            made[name] = tables(name)

    def fill(place: re.Match[str]) -> str:
        table = made[place["settings"]][place["title"]]
        return f"<!-- {place['settings']}: {place['title']} -->\n\n{table}\n\n<!-- end -->"

    return PLACE.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["tuned", "tuned_far", "published", "published_far"])
    parser.add_argument("--tuner", choices=TUNERS, help="this one dataset by dataset")
    parser.add_argument("--write", action="store_true", help="into the pages")
    args = parser.parse_args()
    if args.write:
        for page in PAGES:
            page.write_text(filled(page.read_text("utf-8")), "utf-8")
        return
    for settings in args.settings:
        if args.tuner:
            print(datasets(settings, args.tuner), end="\n\n")
            continue
        for title, table in tables(settings).items():
            print(f"{settings}: {title}\n\n{table}", end="\n\n")


if __name__ == "__main__":
    main()
