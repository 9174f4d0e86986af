"""The feature store: image features computed once and shared by every run."""

from calprompt.features.store.merging import Conflict, MergeReport, merge_store
from calprompt.features.store.spaces import FeatureStore, Space

__all__ = ["Conflict", "FeatureStore", "MergeReport", "Space", "merge_store"]
