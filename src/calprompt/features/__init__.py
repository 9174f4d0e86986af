"""Image features: how they are computed, the store that keeps them on disk, and the banks that tuners train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.features.banks import FeatureBank, PixelBank
    from calprompt.features.extraction import frozen_features
    from calprompt.features.merging import Conflict, MergeReport, merge_store
    from calprompt.features.store import FeatureStore

EXTRACTION = 1  # raise it when a change alters the features: those that are stored are then not used any more

__all__ = [
    "EXTRACTION",
    "Conflict",
    "FeatureBank",
    "FeatureStore",
    "MergeReport",
    "PixelBank",
    "frozen_features",
    "merge_store",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "banks": ("FeatureBank", "PixelBank"),
        "extraction": ("frozen_features",),
        "merging": ("Conflict", "MergeReport", "merge_store"),
        "store": ("FeatureStore",),
    },
)
