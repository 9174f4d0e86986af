"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, compared on the package's own model and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.demo.comparison import Demo, run_demo
    from calprompt.demo.settings import DemoSettings

__all__ = ["Demo", "DemoSettings", "run_demo"]

__getattr__, __dir__ = lazy_exports(__name__, {"comparison": ("Demo", "run_demo"), "settings": ("DemoSettings",)})
