"""The feature store: image features computed once and shared by every run."""

from calprompt.features.store.spaces import FeatureStore, Space

__all__ = ["FeatureStore", "Space"]
