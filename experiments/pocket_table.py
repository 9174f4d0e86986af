"""What experiments/pocket.csv says, as the Markdown tables of docs/pocket-results.md and docs/pocket-tables.md.

    python experiments/pocket_table.py                               all tables
    python experiments/pocket_table.py --settings tuned --tuner coop one tuner, dataset by dataset
    python experiments/pocket_table.py --write                       put those that a page has a place for into it

Tables are of the nine datasets near to what the model has seen; under "tuned_far" and "published_far" of icons, signs
and digits; under "tuned_all" and "published_all" of all twelve; under "published_five" of the three that have five
classes a half. A star says that an interval excludes 0; of twenty true zeros one gets a star.
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


def levels(found: Results, metric: str) -> str:
    """Zero-shot, cross-entropy and TCPT of every tuner, on base and novel classes."""
    methods = [Method(ZERO), Method("ce"), Method("tcpt")]
    return means(found, {f"{split}, {method}": (method, split, metric) for split in SPLITS for method in methods})


def on_shots(found: Results) -> str:
    """Accuracy on the pictures learned from and on test pictures of the same classes, untuned and tuned."""
    methods, told = [Method(ZERO), Method("ce")], {"shots": "on shots", "base test": "accuracy"}
    return means(found, {f"{name}, {method}": (method, "base", told[name]) for name in told for method in methods})


def means(found: Results, wanted: dict[str, tuple[Method, str, str]]) -> str:
    """Means over datasets, a row a tuner; columns are methods, splits and metrics."""
    rows = []
    for tuner in TUNERS:
        keys = shared(found, [method for method, _, _ in wanted.values()], [tuner])
        if keys:
            rows.append([tuner, *(f"{level(found, *each, keys):.1f}" for each in wanted.values())])
    return markdown(["tuner", *wanted], rows)


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
            rows.append([name, str(len(keys)), *(str(Interval.of(by_dataset(values, keys))) for values in both)])
    return markdown(["tuner", "runs", "ce - zero-shot", "tcpt - zero-shot", "tcpt - ce"], rows)


def effects(
    found: Results, first: Method, second: Method, metrics: Sequence[str], tuners: Sequence[str] = TUNERS
) -> list[str]:
    """How many runs a difference has, and its interval for every metric and split; nothing if there is no run."""
    keys = shared(found, [first, second], tuners)
    found_of = [difference(found, first, second, split, name, keys) for name in metrics for split in SPLITS]
    return [str(len(keys)), *(str(each or "") for each in found_of)] if keys else []


def columns(metrics: Sequence[str]) -> list[str]:
    return [f"{metric}, {split}" for metric in metrics for split in SPLITS]


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

    losses, parts = ([(Method(loss), plain) for loss in some if loss != "ce"] for some in (LOSSES, PARTS))
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
        **{f"losses of {tuner}": of_all([*losses, *parts], metrics, [tuner]) for tuner in TUNERS},
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
    found = read(settings)
    methods = [Method(ZERO), *(Method(loss) for loss in LOSSES)]
    methods = [method for method in methods if shared(found, [method], [tuner])]
    rows = []
    for dataset in sorted({key[1] for key in shared(found, methods[:1], [tuner])}):
        for split in SPLITS:
            cells = []
            for method in methods:
                keys = [key for key in shared(found, [method], [tuner]) if key[1] == dataset]
                both = [f"{level(found, method, split, name, keys):.1f}" for name in ("accuracy", "ece") if keys]
                cells.append(" / ".join(both))
            rows.append([dataset, split, *cells])
    return markdown(["dataset", "half", *map(str, methods)], rows)


def filled(page: str) -> str:
    """The page with the table of every place it has, <!-- settings: title --> … <!-- end -->."""
    wanted = {place["settings"] for place in PLACE.finditer(page)}
    made = {}
    for name in wanted:
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
    chosen = parser.parse_args()
    if chosen.write:
        for page in PAGES:
            page.write_text(filled(page.read_text("utf-8")), "utf-8")
        return
    for settings in chosen.settings:
        if chosen.tuner:
            print(datasets(settings, chosen.tuner), end="\n\n")
            continue
        for title, table in tables(settings).items():
            print(f"{settings}: {title}\n\n{table}", end="\n\n")


if __name__ == "__main__":
    main()
