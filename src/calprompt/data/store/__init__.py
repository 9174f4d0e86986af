"""The feature store: image features computed once and shared by every run."""

from calprompt.data.store.spaces import FeatureStore, Space

__all__ = ["FeatureStore", "Space"]
