"""Backbones from tensors in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from calprompt.clip.backbone import Backbone
from calprompt.clip.load import assemble, configured
from calprompt.clip.weights import State, convert


def clip_from_state_dict(
    state: State,
    *,
    layout: str,
    config: Mapping[str, Any] | None = None,
    name: str = "state dict",
    dtype: torch.dtype = torch.float32,
) -> Backbone:
    """A frozen CLIP; `layout="openai"` says that these are OpenAI's weights, and others need a `config`."""
    state = convert(state, layout)
    architecture, preprocessing = configured(state, layout, config, None)
    return assemble(architecture, state, layout, preprocessing, name, "cpu", dtype)
