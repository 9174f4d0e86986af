"""Sweeps: grids of runs, worked on by several processes into one folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.executors import Executor, LocalExecutor, Outcome
    from calprompt.sweep.driver import SweepState, run_sweep
    from calprompt.sweep.executors import Task
    from calprompt.sweep.expansion import Cell
    from calprompt.sweep.sweep_file import Sweep, read_sweep
    from calprompt.sweep.sweep_plan import PlannedCell, SweepPlan, plan_sweep

__all__ = [
    "Cell",
    "Executor",
    "LocalExecutor",
    "Outcome",
    "PlannedCell",
    "Sweep",
    "SweepPlan",
    "SweepState",
    "Task",
    "plan_sweep",
    "read_sweep",
    "run_sweep",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "driver": ("SweepState", "run_sweep"),
        "executors": ("Task",),
        "calprompt.executors": ("Executor", "LocalExecutor", "Outcome"),
        "expansion": ("Cell",),
        "sweep_file": ("Sweep", "read_sweep"),
        "sweep_plan": ("PlannedCell", "SweepPlan", "plan_sweep"),
    },
)
