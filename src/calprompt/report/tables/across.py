"""Tables with metrics across: methods on backbones and datasets, such as medical images; settings on base and novel."""

from __future__ import annotations

from collections.abc import Sequence

from calprompt.report.published import (
    AVERAGE,
    OTHER_BACKBONE,
    OTHER_DATASETS,
    published_table,
    row_means,
    same_backbone,
    verdict,
)
from calprompt.report.tables.definitions import TableDefinition, TableOptions
from calprompt.report.tables.names import (
    backbone_label,
    dataset_label,
    method_label,
    metric_measure,
)
from calprompt.report.tables.paper_table import Column, Line, Measure, Number, PaperTable
from calprompt.report.tables.values import (
    PARTS,
    SHARED,
    BySeed,
    Group,
    Place,
    Values,
    average,
    combined,
    mean_number,
    only_context,
    with_published,
)
from calprompt.results.names import tuner_name

PROMPT_LEARNING = "prompt_learning"  # the tuner of the paper's medical table, which does not say it


def backbone_table(definition: TableDefinition, values: Values, split: str, options: TableOptions) -> PaperTable:
    """Methods down; backbones, datasets and metrics across, and the average of all."""
    measures = [metric_measure(name) for name in options.metrics or definition.metrics]
    name = definition.published.get(split, "")
    published, means = (published_table(name), row_means(name)) if options.published else ({}, {})
    tuners = list(dict.fromkeys(group[0] for group in values.groups))
    backbones = list(dict.fromkeys(group[1] for group in values.groups))
    places = [(each, dataset) for each in backbones for dataset in _datasets(values, split, each)]
    known = {(label, dataset) for each, dataset in places for label in [backbone_label(each)]}
    theirs = dict.fromkeys((key[1], key[5]) for key in published if key[1] != AVERAGE)
    others = [pair for pair in theirs if pair not in known]
    columns = [
        Column((backbone_label(each), dataset_label(name), measure.label), "value", measure)
        for each, name in places
        for measure in measures
    ]
    columns += [Column(("Average", "all", measure.label), "average", measure) for measure in measures]
    columns += [Column((each, dataset_label(name), m.label), "value", m) for each, name in [*others] for m in measures]
    columns += [Column(("Average", "paper", m.label), "average", m) for m in measures if others]

    def line(tuner: str, method: str) -> Line:
        def by_seed(backbone: str, dataset: str, measure: Measure) -> BySeed:
            found = values.seeds(Place((tuner, backbone), method, dataset, split), measure.name)
            return {seed: measure.scale * value for seed, value in found.items()}

        def beside(number: Number, backbone: str, dataset: str, measure: Measure) -> Number:
            key = (split, backbone, PROMPT_LEARNING, values.names.get(method, method), measure.name, dataset)
            return with_published(number, published.get(key), row_mean=means.get(key))

        numbers = [
            beside(mean_number(by_seed(each, name, measure)), backbone_label(each), name, measure)
            for each, name in places
            for measure in measures
        ]
        for measure in measures:
            every = [by_seed(each, name, measure) for each, name in places]
            total = average([mean_number(each) for each in every], every)
            numbers.append(total if others else beside(total, AVERAGE, AVERAGE, measure))
        numbers += [beside(Number(), each, name, measure) for each, name in others for measure in measures]
        numbers += [beside(Number(), AVERAGE, AVERAGE, measure) for measure in measures if others]
        name = values.names.get(method, method)
        label = "cross-entropy" if name == definition.methods[0] else method_label(name)
        label += method.removeprefix(name)
        return Line(tuner_name(tuner) if len(tuners) > 1 else "", label, tuple(numbers))

    lines = [
        line(tuner, method)
        for tuner in tuners
        for method in _methods(definition, options, values, [(tuner, each) for each in backbones])
    ]
    notes = (
        f"{' and '.join(map(tuner_name, tuners))}; per cent; mean of {_seeds(lines)}; - has no result",
        *(["± standard deviation over seeds"] if options.spread else []),
    )
    return PaperTable(
        definition.name, split, definition.title, "method", tuple(columns), tuple(lines), notes, options.spread
    )


def setting_table(definition: TableDefinition, values: Values, options: TableOptions) -> PaperTable:
    """Settings of TCPT down; metrics on base and novel classes across, and the mean of both."""
    measures = [metric_measure(name) for name in options.metrics or definition.metrics]
    splits = (*PARTS, AVERAGE)
    name = definition.published[""]
    published, means = (published_table(name), row_means(name)) if options.published else ({}, {})
    columns = [
        Column((each.label, split if split in PARTS else "mean"), "value" if split in PARTS else "average", each)
        for each in measures
        for split in splits
    ]
    lines = []
    for group in values.groups:
        datasets = [name for name in values.datasets if any(p.dataset == name for p in values.rows if p.group == group)]
        rows = [row for place, seeds in values.rows.items() if place.group == group for row in seeds.values()]
        backbone = str(rows[0]["backbone"]) if rows else ""

        def number(
            method: str, measure: Measure, split: str, group: Group = group, datasets: Sequence[str] = tuple(datasets)
        ) -> Number:
            every = [_of_split(values, group, method, name, split, measure) for name in datasets]
            return average([mean_number(each) for each in every], every)

        def beside(
            found: Number,
            method: str,
            measure: Measure,
            split: str,
            backbone: str = backbone,
            datasets: Sequence[str] = tuple(datasets),
        ) -> Number:
            for key, value in published.items():
                if (key[0], key[3], key[4]) == (split, values.names.get(method, method), measure.name):
                    judge = verdict if set(key[5].split("+")) == set(datasets) else only_context(OTHER_DATASETS)
                    judge = judge if same_backbone(backbone, key[1]) else only_context(OTHER_BACKBONE)
                    return with_published(found, value, judge, row_mean=means.get(key))
            return found

        for method in _methods(definition, options, values, [group], planned=options.published):
            numbers = [beside(number(method, each, s), method, each, s) for each in measures for s in splits]
            name = values.names.get(method, method)
            label = f"{_setting(name)}{method.removeprefix(name)}"
            lines.append(Line(tuner_name(group[0]) if len(values.groups) > 1 else "", label, tuple(numbers)))
    tuners = " and ".join(tuner_name(group[0]) for group in values.groups)
    notes = (
        f"{tuners}; per cent; means over {', '.join(map(dataset_label, values.datasets))} and {_seeds(lines)}; "
        "- has no result on one of them",
        *(["± standard deviation over seeds"] if options.spread else []),
    )
    names = ", ".join(part.partition("=")[0].removesuffix("_mom") for part in definition.methods[0].split(";"))
    return PaperTable(definition.name, "", definition.title, names, tuple(columns), tuple(lines), notes, options.spread)


def _of_split(values: Values, group: Group, method: str, dataset: str, split: str, measure: Measure) -> BySeed:
    """Values by seed, in the unit of the table; the mean of base and novel, if the split is both."""
    if split in PARTS:
        found = values.seeds(Place(group, method, dataset, split), measure.name)
        return {seed: measure.scale * value for seed, value in found.items()}
    base, novel = (_of_split(values, group, method, dataset, part, measure) for part in PARTS)
    return {seed: combined("", base[seed], novel[seed]) for seed in base if seed in novel}


def _setting(method: str) -> str:
    """A setting as the paper writes it.

    >>> _setting("alpha=0.1;beta=0.01"), _setting("lambda_mom=5")
    ('(0.1, 0.01)', '5')
    """
    values = [part.partition("=")[2] for part in method.split(";")]
    return f"({', '.join(values)})" if len(values) > 1 else values[0]


def _datasets(values: Values, split: str, backbone: str) -> list[str]:
    found = (place.dataset for place in values.rows if place.split == split and place.group[1] == backbone)
    return list(dict.fromkeys(found))


def _methods(
    definition: TableDefinition,
    options: TableOptions,
    values: Values,
    groups: Sequence[Group],
    *,
    planned: bool = False,
) -> list[str]:
    """Those of the paper that the results have, then others."""
    groups = [group for group in groups if group != SHARED]
    if options.methods:
        return values.chosen(groups, options.methods)
    wanted = []
    for name in definition.methods:
        wanted += values.chosen(groups, [name]) or ([name] if planned else [])
    there = dict.fromkeys(method for group in groups for method in values.methods(group))
    names = {method: values.names[method] for method in there if method not in wanted}
    hidden = ("zero_shot", "temperature", "dac")
    return [*wanted, *(method for method, name in names.items() if "," not in name and name not in hidden)]


def _seeds(lines: Sequence[Line]) -> str:
    most = max((len(number.seeds) for line in lines for number in line.numbers), default=0)
    return f"{most} seeds" if most != 1 else "one seed"
