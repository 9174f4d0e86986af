"""The tables of the paper by name: `tables.yaml` says what stands in each, and what it calls methods and metrics.

A table is drawn by one of the layouts:

    by_dataset    methods down, grouped by tuner; datasets across, and their average     Tables 1, 2, 3 and most others
    by_backbone   methods down; backbones, datasets and metrics across                   medical images
    by_setting    settings down; metrics across, on base and novel classes               alpha and beta, lambda
    costs         methods down; seconds and memory across                                time
    gradients     ratios of gradient norms down; quantiles across                        gradient norms
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import yaml

from calprompt.paper.published import VANILLA, method_of
from calprompt.registry import unknown
from calprompt.report.table import Table, TableOptions

if TYPE_CHECKING:
    from calprompt.results.sources import ReportSource

Layout = Literal["by_dataset", "by_backbone", "by_setting", "costs", "gradients"]
COSTS, GRADIENTS = "costs", "gradients"  # layouts of training itself


@dataclass(frozen=True)
class TableDefinition:
    """A table of the paper."""

    name: str  # of the table and of its sweep
    title: str  # what it shows
    layout: Layout = "by_dataset"  # how it is drawn
    methods: tuple[str, ...] = (VANILLA, "zs_norm", "penalty", "tcpt")  # in the order of the paper
    metrics: tuple[str, ...] = ("accuracy", "ece")  # in the order of the paper
    splits: tuple[str, ...] = ("base", "novel")  # a table each
    published: Mapping[str, str] = field(default_factory=dict)  # split -> name of the table in the published numbers
    statistic: Literal["mean", "variance"] = "mean"  # mean over seeds, or their variance
    by_backbone: bool = False  # whether backbones are kept apart
    transfers: bool = False  # whether it is of other data than those that runs were tested on at first
    mixed: tuple[str, ...] = ()  # the sweep in which every method has settings of its own, if there is one
    renamed: Mapping[str, str] = field(default_factory=dict)  # methods that this table calls otherwise
    # settings of TCPT that are methods, such as alpha=0.1;beta=0.01, with those that it has by itself; and a pattern of
    # losses, which has a group for each
    weights: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""

    def method(self, row: Mapping[str, Any]) -> str | None:
        """The method of a row; rows without one are not part of the table."""
        name = method_of(row)
        if not self.weights:
            return self.renamed.get(name, name)
        if row.get("model") == "zero-shot" or row.get("calibrator") not in (None, "none"):
            return None
        found = re.fullmatch(self.pattern, str(row.get("loss")))
        if name != "tcpt" and found is None:
            return None
        values = self.weights.values() if found is None or name == "tcpt" else found.groups()
        return ";".join(f"{weight}={float(value):g}" for weight, value in zip(self.weights, values, strict=True))

    @property
    def sweeps(self) -> list[str]:
        """Its sweep in all forms: with the settings of the paper, the released ones, both mixed, and on the pocket."""
        forms = (self.name, f"{self.name}-released", *self.mixed, f"pocket-{self.name}")
        return [f"paper/{name}" for name in forms]

    def make(self, source: ReportSource, options: TableOptions | None = None) -> list[Table]:
        """The tables of a source; see `make_tables`."""
        return make_tables(self.name, source, options)


def _definition(name: str, given: Mapping[str, Any]) -> TableDefinition:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return TableDefinition(name, **fields)


_CONTENT = yaml.safe_load((files("calprompt.paper") / "tables.yaml").read_text(encoding="utf-8"))
TABLES = {name: _definition(name, given) for name, given in _CONTENT.items()}


def table_definition(name: str) -> TableDefinition:
    """The table of a name.

    >>> table_definition("main").sweeps
    ['paper/main', 'paper/main-released', 'paper/main-mixed', 'paper/pocket-main']
    """
    if name not in TABLES:
        raise unknown("table", name, list(TABLES))
    return TABLES[name]


def make_tables(name: str, source: ReportSource, options: TableOptions | None = None) -> list[Table]:
    """The tables of a name, one per split.

    Args:
        name: Name of the table, such as main; see `calprompt table --help`.
        source: Results: `read_source(places, usual=table_definition(name).sweeps)`.
        options: Changes to the paper's table.

    Returns:
        Tables as data, for the writers of `calprompt.report.writers`.

    Raises:
        CalpromptError: if there is no such table, or the results have nothing of it.

    >>> from calprompt.results.sources import read_source
    >>> source = read_source("experiments/paper.csv.xz", "paper/pocket-lambda")
    >>> [(table.key, len(table.rows)) for table in make_tables("lambda", source)]
    [('lambda', 5)]
    """
    from calprompt.paper.layouts import backbone_table, cost_table, dataset_table, gradient_table, setting_table
    from calprompt.paper.values import collect

    definition, options = table_definition(name), options or TableOptions()
    if definition.layout in (COSTS, GRADIENTS):
        _check_methods(options.methods, definition.methods)
        return [(cost_table if definition.layout == COSTS else gradient_table)(definition, source, options)]
    values = collect(
        source, transfers=definition.transfers, by_backbone=definition.by_backbone, method=definition.method
    )
    _check_methods(options.methods, {place.method for place in values.rows})
    if definition.layout == "by_setting":
        return [setting_table(definition, values, options)]
    splits = options.splits or definition.splits
    layout = backbone_table if definition.layout == "by_backbone" else dataset_table
    return [layout(definition, values, split, options) for split in splits]


def _check_methods(wanted: Iterable[str], there: Iterable[str]) -> None:
    """Raise for a method that the results do not have."""
    there = list(there)
    for name in wanted:
        if name not in there:
            raise unknown("method", name, there)
