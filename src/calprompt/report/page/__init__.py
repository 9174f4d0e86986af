"""The report page: one HTML file of tables, figures and mistakes, with the data that it was made from inside.

document      what a report says, as plain data           build       a document from runs and tables of results
render        the document as HTML                        reading     the document, and what is shown, from HTML
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.report.page.build import build_report
    from calprompt.report.page.document import Report
    from calprompt.report.page.render import render_report, write_report
    from calprompt.report.page.settings import ReportSettings

__all__ = ["Report", "ReportSettings", "build_report", "render_report", "write_report"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "build": ("build_report",),
        "document": ("Report",),
        "render": ("render_report", "write_report"),
        "settings": ("ReportSettings",),
    },
)
