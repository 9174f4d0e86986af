"""Methods down, grouped by tuner; datasets across, and their average: the layout of the paper's Tables 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from calprompt.errors import NotFoundError
from calprompt.paper.names import (
    VANILLA,
    ZERO_SHOT,
    backbone_label,
    dataset_label,
    method_label,
    metric_measure,
)
from calprompt.paper.published import (
    AVERAGE,
    NO_TEST,
    OTHER_BACKBONE,
    Key,
    published_table,
    row_means,
    same_backbone,
    variance_verdict,
    verdict,
)
from calprompt.paper.tables import TableDefinition
from calprompt.paper.values import (
    SHARED,
    BySeed,
    Group,
    Judge,
    Place,
    Values,
    average,
    mean_number,
    only_context,
    paired_difference,
    variance_number,
    with_published,
)
from calprompt.report.table import DIFFERENCE, HARMONIC, PLAIN, Cell, Column, Number, Row, Table, TableOptions
from calprompt.results.methods import tuner_name


def dataset_table(definition: TableDefinition, values: Values, split: str, options: TableOptions) -> Table:
    """The table of one split."""
    return _DatasetTable(definition, values, split, options).build()


class _DatasetTable:
    def __init__(self, definition: TableDefinition, values: Values, split: str, options: TableOptions) -> None:
        self.definition, self.values, self.split, self.options = definition, values, split, options
        self.measures = [self._measure(name) for name in options.metrics or definition.metrics]

    def build(self) -> Table:
        if not self.datasets:
            found = ", ".join(sorted({place.split for place in self.values.rows})) or "none"
            what = "evaluations of runs on other data" if self.definition.transfers else "results"
            raise NotFoundError(f"there are no {what} on {self.split} classes (there are: {found})")
        rows = [row for group in self.groups for row in self._group_rows(group)]
        most = max((len(number.seeds) for row in rows for number in row.numbers), default=0)
        return Table(
            self.definition.name,
            self.definition.title.format(split=self.split),
            "",
            tuple(self._columns()),
            tuple(replace(row, cells=tuple(_lacking(each, most) for each in row.cells)) for row in rows),
            notes=tuple(self._notes(most)),
            split=self.split,
            spread=self.options.spread and self.definition.statistic == "mean",
        )

    @cached_property
    def published(self) -> Mapping[Key, float]:
        """What the paper has in this table; nothing unless it was asked for."""
        return published_table(self.definition.published.get(self.split, "")) if self.options.published else {}

    @cached_property
    def row_means(self) -> Mapping[Key, float]:
        """The means behind the printed averages."""
        return row_means(self.definition.published.get(self.split, ""))

    @cached_property
    def datasets(self) -> list[str]:
        splits = ("base", "novel") if self.split == HARMONIC else (self.split,)
        return list(dict.fromkeys(place.dataset for place in self.values.rows if place.split in splits))

    @cached_property
    def others(self) -> list[str]:
        """Datasets that only the paper has."""
        found = dict.fromkeys(key[-1] for key in self.published if key[-1] != AVERAGE)
        return [name for name in found if name not in self.datasets]

    @property
    def same_datasets(self) -> bool:
        """Whether the paper's average is over the same datasets as ours."""
        return set(self.datasets) == {key[-1] for key in self.published} - {AVERAGE}

    @cached_property
    def groups(self) -> list[Group]:
        """Ours, zero-shot first; then those that only the paper has."""
        ours = [SHARED] if any(place.group == SHARED for place in self.values.rows) else []
        ours += self.values.groups
        theirs = dict.fromkeys(
            (key[2], key[1] if self.definition.by_backbone else "") for key in self.published if key[2] != ZERO_SHOT
        )
        known = [(tuner, backbone_label(backbone)) for tuner, backbone in ours]
        return [*ours, *(group for group in theirs if group not in known)]

    def _columns(self) -> list[Column]:
        columns = [Column("method", "method"), Column("metric", "")]
        columns += [Column(name, dataset_label(name), PLAIN) for name in self.datasets]
        columns.append(Column(AVERAGE, "Avg", PLAIN))
        if self.options.difference:
            columns.append(Column("difference", "Avg - plain", DIFFERENCE, digits=2))
        columns += [Column(name, dataset_label(name), PLAIN) for name in self.others]
        if self.published and not self.same_datasets:
            columns.append(Column(AVERAGE, "Avg, paper", PLAIN))
        return columns

    def _measure(self, name: str) -> Column:
        measure = metric_measure(name)
        if self.definition.statistic == "variance":
            return replace(measure, label=f"Var. {measure.label}", better="lower")
        if self.split == HARMONIC:
            return replace(measure, label=f"H {measure.label}" if name == "accuracy" else f"mean {measure.label}")
        return measure

    def _methods(self, group: Group) -> list[str]:
        """Of a group: those of the paper in its order, then other losses; of the paper only if there is a result or
        published numbers are wanted."""
        if self.options.methods:
            return self.values.chosen([group], self.options.methods)
        tuner = group[0] or ZERO_SHOT
        wanted = []
        for name in self.definition.methods:
            found = self.values.chosen([group], [name])
            wanted += found or ([name] if self._is_published(tuner, name) else [])
        names = {method: self.values.names[method] for method in self.values.methods(group) if method not in wanted}
        extra = [method for method, name in names.items() if "," not in name and name not in _CALIBRATED]
        return [*wanted, *(each for each in extra if names[each] != ZERO_SHOT or ZERO_SHOT in self.definition.methods)]

    def _is_published(self, tuner: str, method: str) -> bool:
        return any(key[2] == tuner and key[3] == method for key in self.published)

    def _group_rows(self, group: Group) -> list[Row]:
        tuner, backbone = group
        name = tuner_name(tuner) if tuner else ""
        if backbone:
            name = f"{name}, {backbone_label(backbone)}"
        return [
            Row(
                (self._label(method, tuner), measure.label, *self._numbers(group, method, measure)),
                group=name,
                measure=measure,
            )
            for method in self._methods(group)
            for measure in self.measures
        ]

    def _label(self, method: str, tuner: str) -> str:
        name = self.values.name(method)
        return f"{method_label(name, tuner)}{method.removeprefix(name)}"

    def _numbers(self, group: Group, method: str, measure: Column) -> tuple[Number, ...]:
        by_seed = [self._by_seed(group, method, name, measure) for name in self.datasets]
        is_variance = self.definition.statistic == "variance"
        numbers = [variance_number(each) if is_variance else mean_number(each) for each in by_seed]
        total = average(numbers, by_seed)
        if is_variance:
            total = Number(total.value)
        row = [self._beside(n, group, method, measure, d) for n, d in zip(numbers, self.datasets, strict=True)]
        row.append(self._beside(total, group, method, measure, AVERAGE) if self.same_datasets else total)
        if self.options.difference:
            other = self.values.plain(group, method)
            plain = [self._by_seed(group, other, name, measure) for name in self.datasets]
            comparable = self.values.name(method) not in (VANILLA, ZERO_SHOT) and not is_variance
            row.append(paired_difference(by_seed, plain) if comparable else Number())
        row += [self._beside(Number(), group, method, measure, name) for name in self.others]
        if self.published and not self.same_datasets:
            row.append(self._beside(Number(), group, method, measure, AVERAGE))
        return tuple(row)

    def _by_seed(self, group: Group, method: str, dataset: str, measure: Column) -> BySeed:
        return self.values.shown(Place(group, method, dataset, self.split), measure)

    def _beside(self, number: Number, group: Group, method: str, measure: Column, dataset: str) -> Number:
        if not self.published:
            return number
        metric = f"{measure.key}_variance" if self.definition.statistic == "variance" else measure.key
        name = self.values.name(method)
        tuner = ZERO_SHOT if name == ZERO_SHOT else group[0]
        ours = self.values.backbone(group)
        for backbone in dict.fromkeys(key[1] for key in self.published):
            if group[1] and not same_backbone(group[1], backbone):
                continue
            key = (self.split, backbone, tuner, name, metric, dataset)
            same = same_backbone(ours, backbone)
            judge = self._judge(number, dataset) if same else only_context(OTHER_BACKBONE)
            return with_published(number, self.published.get(key), judge, row_mean=self.row_means.get(key))
        return number

    def _judge(self, number: Number, dataset: str) -> Judge:
        """What says whether a number agrees; nothing does for an average of variances."""
        if self.definition.statistic != "variance":
            return verdict
        if dataset != AVERAGE or number.value is None:
            return variance_verdict
        return lambda published, seeds: NO_TEST

    def _notes(self, most: int) -> list[str]:
        variance = self.definition.statistic == "variance"
        what = f"variance over {most} seeds (n - 1)" if variance else f"mean of {most} seeds"
        plain = [measure.label for measure in self.measures if measure.scale == 1]
        unit = f"per cent, but for {' and '.join(plain)}" if plain else "per cent"
        notes = [f"{unit}; {what if most > 1 else 'one seed'}; - has no result"]
        if variance:
            notes = [f"{what}, in squared per cent; the average is that of the variances; - has no result"]
        if self.options.spread and not variance and most > 1:
            notes.append("± standard deviation over seeds")
        if self.options.difference:
            notes.append(
                f"Avg - plain: paired difference to cross-entropy, mean over {len(self.datasets)} datasets "
                "[95 % interval with datasets as units]; * excludes 0"
            )
        if self.split == HARMONIC:
            notes.append("H: harmonic mean of base and novel accuracy; mean: of the errors on base and novel classes")
        return notes


_CALIBRATED = {"temperature", "dac"}


def _lacking(cell: Cell, most: int) -> Cell:
    """A mean of fewer seeds than others is marked."""
    if isinstance(cell, Number) and 0 < len(cell.seeds) < most:
        return cell._replace(lacking=most - len(cell.seeds))
    return cell
