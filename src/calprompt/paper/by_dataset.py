"""Methods down, grouped by tuner; datasets across, and their average: the layout of the paper's Tables 1 to 3."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from calprompt.errors import NotFoundError
from calprompt.paper.names import VANILLA, ZERO_SHOT, backbone_label, dataset_label, method_label, metric_measure
from calprompt.paper.published import AVERAGE, NO_TEST, OTHER_BACKBONE, same_backbone, variance_verdict, verdict
from calprompt.paper.tables import TableDefinition
from calprompt.paper.values import (
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
from calprompt.results.methods import tuner_name


class DatasetTable:
    """The table of one split."""

    def __init__(self, definition: TableDefinition, values: Values, split: str, options: TableOptions) -> None:
        self.definition, self.values, self.split, self.options = definition, values, split, options
        self.is_variance = definition.statistic == "variance"
        self.printed = Published.read(definition.published.get(split, ""), options.published)
        self.measures = [self._measure(name) for name in options.metrics or definition.metrics]
        splits = ("base", "novel") if split == HARMONIC else (split,)
        self.datasets = list(dict.fromkeys(place.dataset for place in values.rows if place.split in splits))
        theirs = dict.fromkeys(key[-1] for key in self.printed.numbers if key[-1] != AVERAGE)
        self.others = [name for name in theirs if name not in self.datasets]  # which only the paper has
        self.same_datasets = set(self.datasets) == set(theirs)  # whether the paper's average is over those of ours

    def build(self) -> Table:
        """The table; raises `NotFoundError` if there are no results on its classes."""
        if not self.datasets:
            found = ", ".join(sorted({place.split for place in self.values.rows})) or "none"
            what = "evaluations of runs on other data" if self.definition.transfers else "results"
            raise NotFoundError(f"there are no {what} on {self.split} classes (there are: {found})")
        rows = [row for group in self.groups for row in self._group_rows(group)]
        most = max((len(number.seeds) for row in rows for number in row.numbers), default=0)
        for place, row in enumerate(rows):  # a mean of fewer seeds than others is marked
            cells = (
                each._replace(lacking=most - len(each.seeds)) if isinstance(each, Number) and each.seeds else each
                for each in row.cells
            )
            rows[place] = replace(row, cells=tuple(cells))
        title = self.definition.title.format(split=self.split)
        notes = tuple(self._notes(most))
        spread = self.options.spread and not self.is_variance
        return Table(
            self.definition.name, title, "", self._columns(), tuple(rows), notes=notes, split=self.split, spread=spread
        )

    @cached_property
    def groups(self) -> list[Group]:
        """Ours, zero-shot first; then those that only the paper has."""
        ours = [SHARED] if any(place.group == SHARED for place in self.values.rows) else []
        ours += self.values.groups
        theirs = dict.fromkeys(
            (key[2], key[1] if self.definition.by_backbone else "")
            for key in self.printed.numbers
            if key[2] != ZERO_SHOT
        )
        known = [(tuner, backbone_label(backbone)) for tuner, backbone in ours]
        return [*ours, *(group for group in theirs if group not in known)]

    def _columns(self) -> tuple[Column, ...]:
        columns = [Column("method", "method"), Column("metric", "")]
        columns += [Column(name, dataset_label(name), PLAIN) for name in self.datasets]
        columns.append(Column(AVERAGE, "Avg", PLAIN))
        if self.options.difference:
            columns.append(Column("difference", "Avg - plain", DIFFERENCE, digits=2))
        columns += [Column(name, dataset_label(name), PLAIN) for name in self.others]
        if self.printed.numbers and not self.same_datasets:
            columns.append(Column(AVERAGE, "Avg, paper", PLAIN))
        return tuple(columns)

    def _measure(self, name: str) -> Column:
        measure = metric_measure(name)
        if self.is_variance:
            return replace(measure, label=f"Var. {measure.label}", better="lower")
        if self.split == HARMONIC:
            return replace(measure, label=f"H {measure.label}" if name == "accuracy" else f"mean {measure.label}")
        return measure

    def _group_rows(self, group: Group) -> list[Row]:
        tuner, backbone = group
        name = tuner_name(tuner) if tuner else ""
        if backbone:
            name = f"{name}, {backbone_label(backbone)}"
        of_tuner = {key[3] for key in self.printed.numbers if key[2] == (tuner or ZERO_SHOT)}
        known, wanted = self.definition.methods, self.options.methods
        return [
            Row(
                (self._label(method, tuner), measure.label, *self._numbers(group, method, measure)),
                (),
                "",
                name,
                measure,
            )
            for method in self.values.listed([group], known, wanted, of_tuner.__contains__)
            for measure in self.measures
        ]

    def _label(self, method: str, tuner: str) -> str:
        name = self.values.name(method)
        return f"{method_label(name, tuner)}{method.removeprefix(name)}"

    def _numbers(self, group: Group, method: str, measure: Column) -> list[Number]:
        def by_seed(method: str) -> list[dict[int, float]]:
            places = (Place(group, method, name, self.split) for name in self.datasets)
            return [self.values.shown(place, measure) for place in places]

        def beside(number: Number, dataset: str) -> Number:
            return self._beside(number, group, method, measure, dataset)

        own = by_seed(method)
        numbers = [variance_number(each) if self.is_variance else average([each]) for each in own]
        total = average(own) if not self.is_variance else average_of_variances(numbers)
        row = [beside(number, name) for number, name in zip(numbers, self.datasets, strict=True)]
        row.append(beside(total, AVERAGE) if self.same_datasets else total)
        if self.options.difference:
            comparable = self.values.name(method) not in (VANILLA, ZERO_SHOT) and not self.is_variance
            plain = by_seed(self.values.plain(group, method))
            row.append(paired_difference(own, plain) if comparable else Number())
        row += [beside(Number(), name) for name in self.others]
        if self.printed.numbers and not self.same_datasets:
            row.append(beside(Number(), AVERAGE))
        return row

    def _beside(self, number: Number, group: Group, method: str, measure: Column, dataset: str) -> Number:
        metric = f"{measure.key}_variance" if self.is_variance else measure.key
        name, ours = self.values.name(method), self.values.backbone(group)
        tuner = ZERO_SHOT if name == ZERO_SHOT else group[0]
        for backbone in dict.fromkeys(key[1] for key in self.printed.numbers):
            if not group[1] or same_backbone(group[1], backbone):
                same = same_backbone(ours, backbone)
                judge = self._judge(number, dataset) if same else only_context(OTHER_BACKBONE)
                return self.printed.beside(number, (self.split, backbone, tuner, name, metric, dataset), judge)
        return number

    def _judge(self, number: Number, dataset: str) -> Judge:
        """What says whether a number agrees; nothing does for an average of variances."""
        if not self.is_variance:
            return verdict
        if dataset != AVERAGE or number.value is None:
            return variance_verdict
        return lambda published, seeds: NO_TEST

    def _notes(self, most: int) -> list[str]:
        if self.is_variance:
            what = f"variance over {most} seeds (n - 1)"
            notes = [f"{what}, in squared per cent; the average is that of the variances; - has no result"]
        else:
            plain = [measure.label for measure in self.measures if measure.scale == 1]
            unit = f"per cent, but for {' and '.join(plain)}" if plain else "per cent"
            notes = [f"{unit}; {f'mean of {most} seeds' if most > 1 else 'one seed'}; - has no result"]
        if self.options.spread and not self.is_variance and most > 1:
            notes.append("± standard deviation over seeds")
        if self.options.difference:
            notes.append(
                f"Avg - plain: paired difference to cross-entropy, mean over {len(self.datasets)} datasets "
                "[95 % interval with datasets as units]; * excludes 0"
            )
        if self.split == HARMONIC:
            notes.append("H: harmonic mean of base and novel accuracy; mean: of the errors on base and novel classes")
        return notes


def average_of_variances(numbers: list[Number]) -> Number:
    """The mean of all of them, if there are all."""
    return Number(average([{} if each.value is None else {0: each.value} for each in numbers]).value)
