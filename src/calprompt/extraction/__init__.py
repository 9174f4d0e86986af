"""Features of whole datasets under several backbones, computed ahead of the runs that use them, by many workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.extraction.driver import ExtractionState, extract
    from calprompt.extraction.plan import ExtractionPlan, ExtractionSettings, Portion, plan_extraction

__all__ = ["ExtractionPlan", "ExtractionSettings", "ExtractionState", "Portion", "extract", "plan_extraction"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "driver": ("ExtractionState", "extract"),
        "plan": ("ExtractionPlan", "ExtractionSettings", "Portion", "plan_extraction"),
    },
)
