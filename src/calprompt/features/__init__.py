"""Image features: how they are computed, the store that keeps them on disk, and the banks that tuners train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.features.banks import FeatureBank, PixelBank
    from calprompt.features.extraction import frozen_features
    from calprompt.features.store import FeatureStore

EXTRACTION = 1  # raise it whenever a transform or `encoding` changes what comes out: features made before are not used

__all__ = ["EXTRACTION", "FeatureBank", "FeatureStore", "PixelBank", "frozen_features"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "banks": ("FeatureBank", "PixelBank"),
        "extraction": ("frozen_features",),
        "store": ("FeatureStore",),
    },
)
