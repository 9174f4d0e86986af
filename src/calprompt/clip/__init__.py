"""Frozen CLIP models and their encoders under prompts: the only room that knows open_clip.

open_clip takes seconds to import, and is imported when a backbone is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.clip.backbone import Backbone, unit
    from calprompt.clip.identity import BackboneIdentity, identify_backbone
    from calprompt.clip.load import load_backbone
    from calprompt.clip.preprocessing import Preprocessing
    from calprompt.clip.prompts import PromptLayout, TextPrompts, VisualPrompts

__all__ = [
    "Backbone",
    "BackboneIdentity",
    "Preprocessing",
    "PromptLayout",
    "TextPrompts",
    "VisualPrompts",
    "identify_backbone",
    "load_backbone",
    "unit",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "backbone": ("Backbone", "unit"),
        "identity": ("BackboneIdentity", "identify_backbone"),
        "load": ("load_backbone",),
        "preprocessing": ("Preprocessing",),
        "prompts": ("PromptLayout", "TextPrompts", "VisualPrompts"),
    },
)
