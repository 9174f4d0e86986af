"""Executors: groups of tasks, done by processes of this machine or of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.executors.local import LocalExecutor
    from calprompt.executors.protocol import BUSY, FAILED, FINISHED, Executor, Outcome, Task, Work, WorkerResources
    from calprompt.executors.ray import RayExecutor

__all__ = [
    "BUSY",
    "FAILED",
    "FINISHED",
    "Executor",
    "LocalExecutor",
    "Outcome",
    "RayExecutor",
    "Task",
    "Work",
    "WorkerResources",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "local": ("LocalExecutor",),
        "protocol": ("BUSY", "FAILED", "FINISHED", "Executor", "Outcome", "Task", "Work", "WorkerResources"),
        "ray": ("RayExecutor",),
    },
)
