"""A run and its folder: settings, plan, training, evaluation, and what is left on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.runs.config import RunConfig, Target
    from calprompt.runs.execute import run
    from calprompt.runs.folder import Run, Transfer, load_run
    from calprompt.runs.planning import RunPlan, plan
    from calprompt.runs.preparation import Prepared, prepare
    from calprompt.runs.recipes import build_config, read_recipe
    from calprompt.runs.resources import Resources
    from calprompt.runs.restoring import Restored, restore
    from calprompt.runs.transfer import evaluate_on

__all__ = [
    "Prepared",
    "Resources",
    "Restored",
    "Run",
    "RunConfig",
    "RunPlan",
    "Target",
    "Transfer",
    "build_config",
    "evaluate_on",
    "load_run",
    "plan",
    "prepare",
    "read_recipe",
    "restore",
    "run",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "config": ("RunConfig", "Target"),
        "execute": ("run",),
        "folder": ("Run", "Transfer", "load_run"),
        "planning": ("RunPlan", "plan"),
        "preparation": ("Prepared", "prepare"),
        "recipes": ("build_config", "read_recipe"),
        "resources": ("Resources",),
        "restoring": ("Restored", "restore"),
        "transfer": ("evaluate_on",),
    },
)
