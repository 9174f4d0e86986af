"""Results of runs: one table of rows, what makes two runs the same method, where results are found, and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.results.collecting import results, rows_of
    from calprompt.results.methods import Method, methods_of
    from calprompt.results.sources import ReportSource, read_source
    from calprompt.results.table import Table, merge_tables, read_table

__all__ = [
    "Method",
    "ReportSource",
    "Table",
    "merge_tables",
    "methods_of",
    "read_source",
    "read_table",
    "results",
    "rows_of",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "collecting": ("results", "rows_of"),
        "methods": ("Method", "methods_of"),
        "sources": ("ReportSource", "read_source"),
        "table": ("Table", "merge_tables", "read_table"),
    },
)
