"""calprompt: prompt tuning of CLIP with confidences that can be trusted, on base and on novel classes."""

__version__ = "0.1.0"
