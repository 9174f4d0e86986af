"""The layouts of the paper's tables: methods, grouped by tuner, or settings down; datasets or metrics across.

Two are of training itself: what it takes in time and memory, and the ratios of gradient norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from calprompt.errors import NotFoundError
from calprompt.paper.published import (
    AVERAGE,
    NO_TEST,
    OTHER_BACKBONE,
    OTHER_DATASETS,
    OTHER_MACHINE,
    VANILLA,
    ZERO_SHOT,
    backbone_label,
    dataset_label,
    method_label,
    method_of,
    metric_measure,
    same_backbone,
    variance_verdict,
    verdict,
)
from calprompt.paper.tables import COSTS, GRADIENTS, TableDefinition
from calprompt.paper.values import (
    PARTS,
    SHARED,
    Group,
    Judge,
    Place,
    Published,
    Values,
    average,
    only_context,
    paired_difference,
    variance_number,
)
from calprompt.report.table import DIFFERENCE, HARMONIC, PLAIN, Column, Number, Row, Table, TableOptions
from calprompt.results.methods import Cells, tell_apart, tuner_name
from calprompt.results.sources import ReportSource

MEASURES = (
    Column("seconds_step", "wall ms per step", PLAIN, digits=1, scale=1e3),
    Column("seconds_epoch", "wall s per epoch", PLAIN, digits=2),
    Column("cpu_seconds_train", "CPU s of training", PLAIN, digits=2),
    Column("peak_memory_train", "peak memory, MB", PLAIN, digits=0, scale=1e-6),
    Column("peak_device_memory", "peak GPU memory, GB", PLAIN, digits=2, scale=1e-9),
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
PROMPT_LEARNING = "prompt_learning"  # the tuner of the paper's medical table, which does not say it


def dataset_table(definition: TableDefinition, values: Values, split: str, options: TableOptions) -> Table:
    """Methods down, grouped by tuner; datasets across, and their average: the layout of the paper's Tables 1 to 3."""
    is_variance = definition.statistic == "variance"
    printed = Published.read(definition.published.get(split, ""), options.published)
    measures = [_measure(name, split, is_variance) for name in options.metrics or definition.metrics]
    splits = PARTS if split == HARMONIC else (split,)
    datasets = list(dict.fromkeys(place.dataset for place in values.rows if place.split in splits))
    if not datasets:
        found = ", ".join(sorted({place.split for place in values.rows})) or "none"
        what = "evaluations of runs on other data" if definition.transfers else "results"
        raise NotFoundError(f"there are no {what} on {split} classes (there are: {found})")
    theirs = dict.fromkeys(key[-1] for key in printed.numbers if key[-1] != AVERAGE)
    others = [name for name in theirs if name not in datasets]  # which only the paper has
    same_datasets = set(datasets) == set(theirs)  # whether the paper's average is over those of ours
    only_theirs = [*others, *([AVERAGE] if printed.numbers and not same_datasets else [])]

    def judge(number: Number, dataset: str) -> Judge:
        """What says whether a number agrees; nothing does for an average of variances."""
        if not is_variance:
            return verdict
        return variance_verdict if dataset != AVERAGE or number.value is None else lambda published, seeds: NO_TEST

    def beside(number: Number, group: Group, method: str, measure: Column, dataset: str) -> Number:
        metric = f"{measure.key}_variance" if is_variance else measure.key
        name, backbone = values.name(method), values.backbone(group)
        tuner = ZERO_SHOT if name == ZERO_SHOT else group[0]
        for other in dict.fromkeys(key[1] for key in printed.numbers):
            if not group[1] or same_backbone(group[1], other):
                judged = judge(number, dataset) if same_backbone(backbone, other) else only_context(OTHER_BACKBONE)
                return printed.beside(number, (split, other, tuner, name, metric, dataset), judged)
        return number

    def row(group: Group, method: str, measure: Column) -> Row:
        def by_seed(method: str) -> list[dict[int, float]]:
            return [values.shown(Place(group, method, name, split), measure) for name in datasets]

        own, name = by_seed(method), values.name(method)
        numbers = [variance_number(each) if is_variance else average([each]) for each in own]
        total = average(own)
        if is_variance:  # the mean of all of them, if there are all
            total = Number(average([{} if each.value is None else {0: each.value} for each in numbers]).value)
        cells = [
            beside(number, group, method, measure, dataset) for number, dataset in zip(numbers, datasets, strict=True)
        ]
        cells.append(beside(total, group, method, measure, AVERAGE) if same_datasets else total)
        if options.difference:
            is_comparable = name not in (VANILLA, ZERO_SHOT) and not is_variance
            cells.append(paired_difference(own, by_seed(values.plain(group, method))) if is_comparable else Number())
        cells += [beside(Number(), group, method, measure, dataset) for dataset in only_theirs]
        label = f"{method_label(name, group[0])}{method.removeprefix(name)}"
        title = tuner_name(group[0]) if group[0] else ""
        title = f"{title}, {backbone_label(group[1])}" if group[1] else title
        return Row((label, measure.label, *cells), group=title, measure=measure)

    groups = [*([SHARED] if any(place.group == SHARED for place in values.rows) else []), *values.groups]
    ours = [(tuner, backbone_label(backbone)) for tuner, backbone in groups]
    planned = ((key[2], key[1] if definition.by_backbone else "") for key in printed.numbers if key[2] != ZERO_SHOT)
    groups += [group for group in dict.fromkeys(planned) if group not in ours]  # which only the paper has
    rows = []
    for group in groups:
        of_tuner = {key[3] for key in printed.numbers if key[2] == (group[0] or ZERO_SHOT)}
        listed = values.listed([group], definition.methods, options.methods, of_tuner.__contains__)
        rows += [row(group, method, measure) for method in listed for measure in measures]
    most = max((len(number.seeds) for row in rows for number in row.numbers), default=0)
    for place, each in enumerate(rows):  # a mean of fewer seeds than others is marked
        cells = (
            cell._replace(lacking=most - len(cell.seeds)) if isinstance(cell, Number) and cell.seeds else cell
            for cell in each.cells
        )
        rows[place] = replace(each, cells=tuple(cells))
    columns = [Column("method", "method"), Column("metric", "")]
    columns += [*(Column(name, dataset_label(name), PLAIN) for name in datasets), Column(AVERAGE, "Avg", PLAIN)]
    columns += [Column("difference", "Avg - plain", DIFFERENCE, digits=2)] if options.difference else []
    columns += [Column(n, "Avg, paper" if n == AVERAGE else dataset_label(n), PLAIN) for n in only_theirs]
    if is_variance:
        what = f"variance over {most} seeds (n - 1)"
        notes = [f"{what}, in squared per cent; the average is that of the variances; - has no result"]
    else:
        plain = [measure.label for measure in measures if measure.scale == 1]
        unit = f"per cent, but for {' and '.join(plain)}" if plain else "per cent"
        notes = [f"{unit}; {f'mean of {most} seeds' if most > 1 else 'one seed'}; - has no result"]
    spread = options.spread and not is_variance
    notes += ["± standard deviation over seeds"] if spread and most > 1 else []
    if options.difference:
        notes.append(
            f"Avg - plain: paired difference to cross-entropy, mean over {len(datasets)} datasets "
            "[95 % interval with datasets as units]; * excludes 0"
        )
    if split == HARMONIC:
        notes.append("H: harmonic mean of base and novel accuracy; mean: of the errors on base and novel classes")
    title = definition.title.format(split=split)
    return Table(
        definition.name, title, "", tuple(columns), tuple(rows), notes=tuple(notes), split=split, spread=spread
    )


def _measure(name: str, split: str, is_variance: bool) -> Column:
    measure = metric_measure(name)
    if is_variance:
        return replace(measure, label=f"Var. {measure.label}", better="lower")
    if split == HARMONIC:
        return replace(measure, label=f"H {measure.label}" if name == "accuracy" else f"mean {measure.label}")
    return measure


def backbone_table(definition: TableDefinition, values: Values, split: str, options: TableOptions) -> Table:
    """Methods down; backbones, datasets and metrics across, and the average of all."""
    measures = [metric_measure(name) for name in options.metrics or definition.metrics]
    printed = Published.read(definition.published.get(split, ""), options.published)
    tuners, backbones = (list(dict.fromkeys(group[i] for group in values.groups)) for i in (0, 1))
    known = dict.fromkeys(
        (each, place.dataset)
        for each in backbones
        for place in values.rows
        if (place.split, place.group[1]) == (split, each)
    )
    ours = [(backbone_label(each), dataset) for each, dataset in known]
    theirs = dict.fromkeys((key[1], key[5]) for key in printed.numbers if key[1] != AVERAGE)
    others = [pair for pair in theirs if pair not in ours]
    heads = [(label, dataset_label(name)) for label, name in ours]
    heads += [("Average", "all"), *((each, dataset_label(name)) for each, name in others)]
    heads += [("Average", "paper")] if others else []
    columns = [Column("method", "method"), *(replace(measure, above=head) for head in heads for measure in measures)]

    def row(tuner: str, method: str) -> Row:
        places = [Place((tuner, each), method, dataset, split) for each, dataset in known]
        everything = (AVERAGE, AVERAGE)
        spots: list[tuple[list[Place], tuple[str, str] | None]]
        spots = [([place], pair) for place, pair in zip(places, ours, strict=True)]  # a mean, and what the paper has
        spots += [(places, None if others else everything), *(([], pair) for pair in others)]
        spots += [([], everything)] if others else []
        numbers, name = [], values.name(method)
        for of, pair in spots:
            for measure in measures:
                number = values.number(of, measure)
                if pair is not None:
                    number = printed.beside(number, (split, pair[0], PROMPT_LEARNING, name, measure.key, pair[1]))
                numbers.append(number)
        label = "cross-entropy" if name == definition.methods[0] else method_label(name)
        group = tuner_name(tuner) if len(tuners) > 1 else ""
        return Row((f"{label}{method.removeprefix(name)}", *numbers), group=group)

    rows = []
    for tuner in tuners:
        groups = [(tuner, each) for each in backbones]
        rows += [row(tuner, method) for method in values.listed(groups, definition.methods, options.methods)]
    note = f"{' and '.join(map(tuner_name, tuners))}; per cent; mean of {_seeds(rows)}; - has no result"
    return _table(definition, columns, rows, [note], options.spread, split)


def setting_table(definition: TableDefinition, values: Values, options: TableOptions) -> Table:
    """Settings of TCPT down; metrics on base and novel classes across, and the mean of both."""
    measures = [metric_measure(name) for name in options.metrics or definition.metrics]
    splits = (*PARTS, AVERAGE)
    printed = Published.read(definition.published[""], options.published)
    rows = []
    for group in values.groups:
        there = {place.dataset for place in values.rows if place.group == group}
        datasets = [name for name in values.datasets if name in there]
        backbone = values.backbone(group)
        for method in values.listed([group], definition.methods, options.methods, lambda name: options.published):
            name = values.name(method)
            numbers = []
            for measure, split in ((measure, split) for measure in measures for split in splits):
                number = values.number([Place(group, method, dataset, split) for dataset in datasets], measure)
                for key in printed.numbers:
                    if (key[0], key[3], key[4]) == (split, name, measure.key):
                        judge = verdict if set(key[5].split("+")) == set(datasets) else only_context(OTHER_DATASETS)
                        judge = judge if same_backbone(backbone, key[1]) else only_context(OTHER_BACKBONE)
                        number = printed.beside(number, key, judge)
                        break
                numbers.append(number)
            label = f"{_setting(name)}{method.removeprefix(name)}"
            rows.append(Row((label, *numbers), group=tuner_name(group[0]) if len(values.groups) > 1 else ""))
    tuners = " and ".join(tuner_name(group[0]) for group in values.groups)
    note = f"{tuners}; per cent; means over {', '.join(map(dataset_label, values.datasets))} and {_seeds(rows)}"
    names = ", ".join(part.partition("=")[0].removesuffix("_mom") for part in definition.methods[0].split(";"))
    columns = [Column("setting", names)]
    columns += [replace(m, above=(m.label,), label=s if s in PARTS else "mean") for m in measures for s in splits]
    return _table(definition, columns, rows, [f"{note}; - has no result on one of them"], options.spread)


def _setting(method: str) -> str:
    """A setting as the paper writes it.

    >>> _setting("alpha=0.1;beta=0.01"), _setting("lambda_mom=5")
    ('(0.1, 0.01)', '5')
    """
    values = [part.partition("=")[2] for part in method.split(";")]
    return f"({', '.join(values)})" if len(values) > 1 else values[0]


def _seeds(rows: Sequence[Row]) -> str:
    most = max((len(number.seeds) for row in rows for number in row.numbers), default=0)
    return f"{most} seeds" if most != 1 else "one seed"


def cost_table(definition: TableDefinition, source: ReportSource, options: TableOptions) -> Table:
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
    measures = [each for each in MEASURES if any(row.get(each.key) is not None for row in every)]
    if not measures:
        raise NotFoundError(
            f"{source.title} has no times; run folders have them, and tables that were written without --no-times"
        )
    printed = Published.read(definition.published[""], options.published)
    if printed.numbers:
        measures += [each for each in MEASURES if each.key in PUBLISHED and each not in measures]
    rows = []
    for tuner in dict.fromkeys(key[0] for key in runs):
        variants = {name: [each[2] for each in runs if each[:2] == (tuner, name)] for name in definition.methods}
        for method, detail in ((name, detail) for name, found in variants.items() for detail in found or [""]):
            there = runs.get((tuner, method, detail), {})
            numbers = []
            for measure in measures:
                found = {place: row.get(measure.key) for place, row in sorted(there.items())}
                known = {place: measure.scale * value for place, value in found.items() if value is not None}
                number = average([dict(enumerate(known.values()))])
                key = ("base", "ViT-B/16", tuner, method, PUBLISHED.get(measure.key, ""), "oxford_flowers")
                numbers.append(printed.beside(number, key, only_context(OTHER_MACHINE)))
            label = (
                method_label(method, tuner) if method == VANILLA else f"{tuner_name(tuner)} + {method_label(method)}"
            )
            rows.append(Row((f"{label}{detail}", *numbers), group=tuner_name(tuner)))
    datasets = ", ".join(dict.fromkeys(dataset_label(str(row["dataset"])) for row in every))
    processors = ", ".join(dict.fromkeys(str(row["processor"]) for row in every if row.get("processor")))
    most = max(len({seed for _, seed in places}) for places in runs.values())
    note = f"mean of {most} seeds on {datasets}; steps and epochs are medians of a run by the clock on the wall"
    notes = (f"{note}; {processors}" if processors else note, "- was not measured")
    return _table(definition, [Column("method", "method"), *measures], rows, notes, options.spread)


def gradient_table(definition: TableDefinition, source: ReportSource, options: TableOptions) -> Table:
    """Median and quantiles of the ratios of gradient norms over all diagnosed steps of all runs."""
    import numpy as np

    diagnosed = {run.folder.name: steps for run in source.runs if (steps := run.steps())}
    if not diagnosed:
        raise NotFoundError(
            f"{source.title} has no folder of a run with diagnosed steps; train with steps diagnosed, such as "
            f"'calprompt sweep {definition.sweeps[-1]} --out runs/pocket', and give that folder"
        )
    printed = Published.read(definition.published[""], options.published)
    backbone = str(source.run_of[next(iter(diagnosed))].record["config"]["backbone"])
    rows = []
    for name, label in RATIOS.items():
        values = [step[name] for steps in diagnosed.values() for step in steps if name in step]
        if not values:
            continue
        shown = (median(values), *(float(np.quantile(values, share)) for share in (0.1, 0.9)))
        numbers, metric = [], name.replace("/", "_over_").lower()
        for value, which in zip(shown, QUANTILES, strict=True):
            word = "dataset not said" if same_backbone(backbone, "ViT-B/16") else OTHER_BACKBONE
            key = ("base", "ViT-B/16", "maple", "tcpt", f"{metric}_{which}", "")
            numbers.append(printed.beside(Number(value, seeds=(value,)), key, only_context(word)))
        rows.append(Row((label, *numbers)))
    columns = [Column("name", "ratio")]
    columns += [Column("ratio", which, PLAIN, digits=2) for which in ("median", "10 %", "90 %")]
    return _table(definition, columns, rows, [_steps_note(source, diagnosed)])


def _steps_note(source: ReportSource, diagnosed: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """How many steps of what."""
    steps = sum(map(len, diagnosed.values()))
    configs = [source.run_of[name].record for name in diagnosed]
    tuners = ", ".join(dict.fromkeys(tuner_name(str(each["config"]["tuner"])) for each in configs))
    datasets = ", ".join(dict.fromkeys(dataset_label(str(each["data"]["name"])) for each in configs))
    return f"{tuners} with TCPT, {steps} steps of {len(diagnosed)} runs on {datasets}"


def _table(
    definition: TableDefinition,
    columns: Sequence[Column],
    rows: Sequence[Row],
    notes: Sequence[str],
    spread: bool = False,
    split: str = "",
) -> Table:
    name, title = definition.name, definition.title
    if spread and definition.layout not in (COSTS, GRADIENTS):
        notes = [*notes, "± standard deviation over seeds"]
    return Table(name, title, "", tuple(columns), tuple(rows), notes=tuple(notes), split=split, spread=spread)
