"""The paper's tables from results: as data, and as text for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.report.tables.definitions import TABLES, TableDefinition, table_definition
    from calprompt.report.tables.making import make_tables
    from calprompt.report.tables.options import TableOptions
    from calprompt.report.tables.paper_table import Column, Line, Measure, Number, PaperTable
    from calprompt.report.tables.renderings import to_csv, to_latex, to_markdown
    from calprompt.report.tables.terminal import print_table

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
        "definitions": ("TABLES", "TableDefinition", "table_definition"),
        "making": ("make_tables",),
        "options": ("TableOptions",),
        "paper_table": ("Column", "Line", "Measure", "Number", "PaperTable"),
        "renderings": ("to_csv", "to_latex", "to_markdown"),
        "terminal": ("print_table",),
    },
)
