"""The paper's tables from results: as data, and as text for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.report.tables.definitions import TABLES, TableDefinition, TableOptions, table_definition
    from calprompt.report.tables.making import make_tables
    from calprompt.report.tables.paper_table import Column, Line, Measure, Number, PaperTable
    from calprompt.report.tables.renderings import print_table, to_csv, to_latex, to_markdown

__all__ = [
    "TABLES",
    "Column",
    "Line",
    "Measure",
    "Number",
    "PaperTable",
    "TableDefinition",
    "TableOptions",
    "make_tables",
    "print_table",
    "table_definition",
    "to_csv",
    "to_latex",
    "to_markdown",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "definitions": ("TABLES", "TableDefinition", "TableOptions", "table_definition"),
        "making": ("make_tables",),
        "paper_table": ("Column", "Line", "Measure", "Number", "PaperTable"),
        "renderings": ("print_table", "to_csv", "to_latex", "to_markdown"),
    },
)
