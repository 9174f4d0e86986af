"""Frozen CLIP models and their encoders under prompts: the only room that knows open_clip.

open_clip takes seconds to import, and is imported when a backbone is loaded.
"""
