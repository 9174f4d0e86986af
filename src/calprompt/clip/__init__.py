"""Frozen CLIP models and their encoders under prompts: the only room that knows open_clip."""

from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.load import load_backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.clip.prompts import PromptLayout, TextPrompts, VisualPrompts

__all__ = ["Backbone", "Preprocessing", "PromptLayout", "TextPrompts", "VisualPrompts", "load_backbone", "unit"]
