"""Paired results as Markdown tables, and pages that have places for them.

A star marks an interval over datasets that excludes 0; of twenty true zeros one gets a star.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean

from paired import SPLITS, ZERO, Key, Method, Number, PairedResults, by_dataset

from calprompt.registry import unknown

PLACE = re.compile(r"<!-- (?P<group>\w+): (?P<title>[^>]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
UNTUNED, PLAIN, TCPT = Method(ZERO), Method("ce"), Method("tcpt")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(markdown(["tuner", "ECE"], [["coop", "3.1"]]))
    | tuner | ECE |
    | --- | --- |
    | coop | 3.1 |
    """
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def fill_page(page: str, table: Callable[[str, str], str]) -> str:
    """A page with a table in each of its places, <!-- group: title --> … <!-- end -->.

    Args:
        page: Its text.
        table: The table of a group and a title.
    """

    def fill(place: re.Match[str]) -> str:
        group, title = place["group"], place["title"]
        return f"<!-- {group}: {title} -->\n\n{table(group, title)}\n\n<!-- end -->"

    return PLACE.sub(fill, page)


def named_table(results: PairedResults, title: str, losses: Sequence[str], parts: Sequence[str] = ()) -> str:
    """A table by what it is about, such as "levels of ece", "tcpt - ce", "halves apart" or "losses of coop".

    Args:
        results: What it is made of.
        title: What it is about.
        losses: Those that are compared with cross-entropy.
        parts: Further ones that the tables of a single tuner have.

    Raises:
        UnknownNameError: if there is no such table.
    """
    kind, _, what = title.partition(" of ")
    metrics = ("accuracy", "ece", "nll")
    if kind == "levels":
        return level_table(results, what)
    if kind == "losses" and what:
        return pair_table(results, [(Method(loss), PLAIN) for loss in (*losses, *parts)], metrics, [what])
    calibrators = sorted({method.calibrator for method, _, _ in results.values} - {"none"})
    calibrated = [(Method(loss, name), Method(loss)) for loss in ("ce", "tcpt") for name in calibrators]
    known: dict[str, Callable[[], str]] = {
        "ce - zero-shot": lambda: tuner_table(results, PLAIN, UNTUNED, ("accuracy", "ece", "gap")),
        "tcpt - ce": lambda: tuner_table(results, TCPT, PLAIN, metrics),
        "on shots": lambda: shots_table(results),
        "halves apart": lambda: halves_table(results),
        "by zero-shot": lambda: zero_shot_table(results),
        "losses": lambda: pair_table(results, [(Method(loss), PLAIN) for loss in losses], metrics),
        "calibrators": lambda: pair_table(results, calibrated, ("ece", "nll")),
    }
    if title not in known:
        raise unknown("table", title, [*known, "levels of METRIC", "losses of TUNER"])
    return known[title]()


def mean_table(results: PairedResults, columns: Mapping[str, tuple[Method, str, str]]) -> str:
    """Means over datasets, a row per tuner; columns are methods, splits and metrics."""
    rows = []
    for tuner in results.tuners:
        keys = results.shared([method for method, _, _ in columns.values()], [tuner])
        if keys:
            rows.append([tuner, *(f"{results.level(*column, keys):.1f}" for column in columns.values())])
    return markdown(["tuner", *columns], rows)


def level_table(results: PairedResults, metric: str) -> str:
    """Zero-shot, cross-entropy and TCPT of every tuner, on base and novel classes."""
    methods = (UNTUNED, PLAIN, TCPT)
    return mean_table(results, {f"{split}, {each}": (each, split, metric) for split in SPLITS for each in methods})


def shots_table(results: PairedResults) -> str:
    """Accuracy on the images learned from and on test images of the same classes, untuned and tuned."""
    metrics = {"shots": "on shots", "base test": "accuracy"}
    columns = {f"{name}, {each}": (each, SPLITS[0], metrics[name]) for name in metrics for each in (UNTUNED, PLAIN)}
    return mean_table(results, columns)


def halves_table(results: PairedResults) -> str:
    """How far tuning moves the gap of novel classes above that of base classes: the paper's dual miscalibration."""

    def between(method: Method, key: Key) -> float:
        return results.get(method, "novel", "gap")[key] - results.get(method, "base", "gap")[key]

    rows = []
    for name, tuners in (*((tuner, [tuner]) for tuner in results.tuners), ("all", list(results.tuners))):
        keys = results.shared([UNTUNED, PLAIN, TCPT], tuners)
        moved = [{key: between(method, key) - between(UNTUNED, key) for key in keys} for method in (PLAIN, TCPT)]
        if keys:
            both = [*moved, {key: moved[1][key] - moved[0][key] for key in keys}]
            rows.append([name, str(len(keys)), *(str(Number.over(by_dataset(values, keys))) for values in both)])
    return markdown(["tuner", "runs", "ce - zero-shot", "tcpt - zero-shot", "tcpt - ce"], rows)


def zero_shot_table(results: PairedResults) -> str:
    """ECE where zero-shot's own gap is small, middling or large."""
    rows = []
    for low, high in ((0, 3), (3, 8), (8, 100)):
        every = results.cases([UNTUNED, PLAIN, TCPT]).values()
        selected = [case for case in every if low <= abs(case[UNTUNED][0]) < high]
        if selected:
            gaps = [[case[method][0] for method in (UNTUNED, PLAIN, TCPT)] for case in selected]
            nearer = sum(abs(tcpt - zero) < abs(plain - zero) for zero, plain, tcpt in gaps)
            levels = [f"{mean(case[method][1] for case in selected):.1f}" for method in (UNTUNED, PLAIN, TCPT)]
            label = f"{low} to {high}" if high < 100 else f"{low} and more"
            rows.append([label, str(len(selected)), *levels, f"{nearer} of {len(selected)}"])
    head = ["zero-shot's gap, either way", "cases", "ECE zero-shot", "ce", "tcpt"]
    return markdown([*head, "tcpt's gap nearer to zero-shot's than ce's"], rows)


def effect_row(
    results: PairedResults,
    first: Method,
    second: Method,
    metrics: Sequence[str],
    tuners: Sequence[str] | None = None,
) -> list[str]:
    """How many runs a difference has, and its interval for every metric and split; nothing if there is no run."""
    keys = results.shared([first, second], tuners)
    found = [results.difference(first, second, split, name, keys) for name in metrics for split in SPLITS]
    return [str(len(keys)), *(str(interval or "") for interval in found)] if keys else []


def effect_columns(metrics: Sequence[str]) -> list[str]:
    """The headings of `effect_row`."""
    return ["runs", *(f"{metric}, {split}" for metric in metrics for split in SPLITS)]


def tuner_table(results: PairedResults, first: Method, second: Method, metrics: Sequence[str]) -> str:
    """A difference, tuner by tuner."""
    rows = {tuner: effect_row(results, first, second, metrics, [tuner]) for tuner in results.tuners}
    return markdown(["tuner", *effect_columns(metrics)], [[name, *row] for name, row in rows.items() if row])


def pair_table(
    results: PairedResults,
    pairs: Iterable[tuple[Method, Method]],
    metrics: Sequence[str],
    tuners: Sequence[str] | None = None,
) -> str:
    """Differences of several pairs, over all tuners that were run with both."""
    rows = []
    for first, second in pairs:
        run = {key[0] for key in results.shared([first, second], tuners)}
        who = "all" if run == set(results.tuners) else ", ".join(name for name in results.tuners if name in run)
        if run:
            rows.append([f"{first} - {second}", who, *effect_row(results, first, second, metrics, tuners)])
    return markdown(["", "tuners", *effect_columns(metrics)], rows)


def dataset_table(results: PairedResults, methods: Sequence[Method], tuner: str) -> str:
    """Accuracy / ECE of a tuner on every dataset, means over seeds."""
    run = [method for method in methods if results.shared([method], [tuner])]
    rows = []
    for dataset in sorted({key[1] for method in run for key in results.shared([method], [tuner])}):
        for split in SPLITS:
            cells = []
            for method in run:
                keys = [key for key in results.shared([method], [tuner]) if key[1] == dataset]
                both = [f"{results.level(method, split, name, keys):.1f}" for name in ("accuracy", "ece") if keys]
                cells.append(" / ".join(both))
            rows.append([dataset, split, *cells])
    return markdown(["dataset", "half", *map(str, run)], rows)
