"""From a name and results to the tables of the paper."""

from __future__ import annotations

from collections.abc import Iterable

from calprompt.registry import unknown
from calprompt.report.tables.across import backbone_table, setting_table
from calprompt.report.tables.by_dataset import dataset_table
from calprompt.report.tables.definitions import TableOptions, table_definition
from calprompt.report.tables.paper_table import PaperTable
from calprompt.report.tables.training import cost_table, gradient_table
from calprompt.report.tables.values import collect
from calprompt.results.sources import ReportSource


def make_tables(name: str, source: ReportSource, options: TableOptions | None = None) -> list[PaperTable]:
    """The tables of a name, one per split.

    Args:
        name: Of the table, such as main; see `calprompt table --help`.
        source: Results: `read_source(places, usual=table_definition(name).sweeps)`.
        options: What is different from the paper's table.

    Returns:
        Tables as data, for `to_markdown`, `to_latex`, `to_csv` and `to_terminal`.

    Raises:
        CalpromptError: if there is no such table, or the results have nothing of it.

    >>> from calprompt.results.sources import read_source
    >>> source = read_source("experiments/paper.csv.xz", "paper/pocket-lambda")
    >>> [(table.name, len(table.lines)) for table in make_tables("lambda", source)]
    [('lambda', 5)]
    """
    definition, options = table_definition(name), options or TableOptions()
    if definition.layout in ("costs", "gradients"):
        _check_methods(options.methods, definition.methods)
    if definition.layout == "costs":
        return [cost_table(definition, source, options)]
    if definition.layout == "gradients":
        return [gradient_table(definition, source, options)]
    values = collect(
        source,
        transfers=definition.transfers,
        by_backbone=definition.by_backbone,
        method=definition.method,
    )
    _check_methods(options.methods, {place.method for place in values.rows})
    if definition.layout == "by_setting":
        return [setting_table(definition, values, options)]
    layout = backbone_table if definition.layout == "by_backbone" else dataset_table
    return [layout(definition, values, split, options) for split in options.splits or definition.splits]


def _check_methods(wanted: Iterable[str], there: Iterable[str]) -> None:
    """Raise for a method that the results do not have."""
    there = list(there)
    for name in wanted:
        if name not in there:
            raise unknown("method", name, there)
