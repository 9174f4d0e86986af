"""Tables of training itself: what it takes in time and memory, and the ratios of gradient norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from calprompt.errors import NotFoundError
from calprompt.report.published import OTHER_BACKBONE, OTHER_MACHINE, published_table, same_backbone
from calprompt.report.tables.definitions import TableDefinition, TableOptions
from calprompt.report.tables.names import VANILLA, dataset_label, method_label, method_of
from calprompt.report.tables.paper_table import Column, Line, Measure, Number, PaperTable
from calprompt.report.tables.values import mean_number, only_context, with_published
from calprompt.results.methods import Cells, tell_apart
from calprompt.results.names import tuner_name
from calprompt.results.sources import ReportSource

COSTS = (
    Measure("seconds_step", "wall ms per step", "none", 1, 1e3),
    Measure("seconds_epoch", "wall s per epoch", "none", 2),
    Measure("cpu_seconds_train", "CPU s of training", "none", 2),
    Measure("peak_memory_train", "peak memory, MB", "none", 0, 1e-6),
    Measure("peak_device_memory", "peak GPU memory, GB", "none", 2, 1e-9),
)
PUBLISHED = {"seconds_epoch": "seconds_per_epoch", "peak_device_memory": "peak_gpu_gb"}
RATIOS = {
    "rho_margin": "margin: mean / variance",
    "rho_mom": "moments: mean / covariance",
    "rho_mom/margin": "moments / margin",
    "rho_margin/CE": "margin / cross-entropy",
    "rho_mom/CE": "moments / cross-entropy",
}
QUANTILES = ("median", "q10", "q90")


def cost_table(definition: TableDefinition, source: ReportSource, options: TableOptions) -> PaperTable:
    """Seconds and memory of training, a line per tuner and method."""
    cells: Cells[tuple[str, str, str, str]] = Cells()
    named = [(row, method_of(row)) for row in source.measured.rows if row.get("model") == "tuned"]
    named = [(row, name) for row, name in named if name in definition.methods]
    details = tell_apart(((row["tuner"], name), source.method(row), row) for row, name in named)
    with_times = [pair for pair in named if pair[0].get("seconds_step") is not None]
    for row, name in sorted(with_times or named, key=lambda pair: pair[0].get("diagnose_every") or 0):  # fastest first
        detail = details[(row["tuner"], name), source.method(row)]
        cells.add((str(row["tuner"]), name, detail, str(row["dataset"])), row, source.method(row))
    runs: dict[tuple[str, str, str], dict[tuple[str, int], Mapping[str, Any]]] = {}
    for (tuner, name, detail, dataset), seeds in cells.rows.items():
        runs.setdefault((tuner, name, detail), {}).update({(dataset, seed): row for seed, row in seeds.items()})
    every = [row for seeds in runs.values() for row in seeds.values()]
    measures = [each for each in COSTS if any(row.get(each.name) is not None for row in every)]
    if not measures:
        raise NotFoundError(
            f"{source.title} has no times; run folders have them, and tables that were written without --no-times"
        )
    published = published_table(definition.published[""]) if options.published else {}
    if published:
        measures += [each for each in COSTS if each.name in PUBLISHED and each not in measures]
    lines = []
    for tuner in dict.fromkeys(key[0] for key in runs):
        variants = {name: [each[2] for each in runs if each[:2] == (tuner, name)] for name in definition.methods}
        for method, detail in ((name, detail) for name, found in variants.items() for detail in found or [""]):
            there = runs.get((tuner, method, detail), {})
            numbers = []
            for measure in measures:
                found = {place: row.get(measure.name) for place, row in sorted(there.items())}
                known = {place: measure.scale * value for place, value in found.items() if value is not None}
                number = mean_number(dict(enumerate(known.values())))
                metric = PUBLISHED.get(measure.name, "")
                value = published.get(("base", "ViT-B/16", tuner, method, metric, "oxford_flowers"))
                numbers.append(with_published(number, value, only_context(OTHER_MACHINE)))
            label = (
                method_label(method, tuner) if method == VANILLA else f"{tuner_name(tuner)} + {method_label(method)}"
            )
            lines.append(Line(tuner_name(tuner), f"{label}{detail}", tuple(numbers)))
    datasets = ", ".join(dict.fromkeys(dataset_label(str(row["dataset"])) for row in every))
    processors = ", ".join(dict.fromkeys(str(row["processor"]) for row in every if row.get("processor")))
    most = max(len({seed for _, seed in places}) for places in runs.values())
    note = f"mean of {most} seeds on {datasets}; steps and epochs are medians of a run by the clock on the wall"
    notes = (f"{note}; {processors}" if processors else note, "- was not measured")
    columns = tuple(Column((each.label,), "value", each) for each in measures)
    return PaperTable(definition.name, "", definition.title, "method", columns, tuple(lines), notes, options.spread)


def gradient_table(definition: TableDefinition, source: ReportSource, options: TableOptions) -> PaperTable:
    """Median and quantiles of the ratios of gradient norms over all diagnosed steps of all runs."""
    import numpy as np

    diagnosed = {run.folder.name: steps for run in source.runs if (steps := run.steps())}
    if not diagnosed:
        raise NotFoundError(
            f"{source.title} has no folder of a run with diagnosed steps; train with steps diagnosed, such as "
            f"'calprompt sweep {definition.sweeps[-1]} --out runs/pocket', and give that folder"
        )
    published = published_table(definition.published[""]) if options.published else {}
    backbone = str(source.run_of[next(iter(diagnosed))].record["config"]["backbone"])
    lines = []
    for name, label in RATIOS.items():
        values = [step[name] for steps in diagnosed.values() for step in steps if name in step]
        if not values:
            continue
        shown = (median(values), *(float(np.quantile(values, share)) for share in (0.1, 0.9)))
        numbers, metric = [], name.replace("/", "_over_").lower()
        for value, which in zip(shown, QUANTILES, strict=True):
            theirs = published.get(("base", "ViT-B/16", "maple", "tcpt", f"{metric}_{which}", ""))
            number = Number(value, (value,))
            word = OTHER_BACKBONE if not same_backbone(backbone, "ViT-B/16") else "dataset not said"
            numbers.append(with_published(number, theirs, only_context(word)))
        lines.append(Line("", label, tuple(numbers)))
    measure = Measure("ratio", "ratio", "none", 2)
    columns = tuple(Column((which,), "value", measure) for which in ("median", "10 %", "90 %"))
    notes = (_steps_note(source, diagnosed),)
    return PaperTable(definition.name, "", definition.title, "ratio", columns, tuple(lines), notes)


def _steps_note(source: ReportSource, diagnosed: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """How many steps of what."""
    steps = sum(map(len, diagnosed.values()))
    configs = [source.run_of[name].record for name in diagnosed]
    tuners = ", ".join(dict.fromkeys(tuner_name(str(each["config"]["tuner"])) for each in configs))
    datasets = ", ".join(dict.fromkeys(dataset_label(str(each["data"]["name"])) for each in configs))
    return f"{tuners} with TCPT, {steps} steps of {len(diagnosed)} runs on {datasets}"
