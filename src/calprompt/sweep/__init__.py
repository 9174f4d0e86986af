"""Sweeps: grids of runs, worked on by several processes into one folder, and the table of what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.executors import Executor, LocalExecutor, Outcome
    from calprompt.sweep.collecting import results
    from calprompt.sweep.driver import SweepState, run_sweep
    from calprompt.sweep.executors import Task
    from calprompt.sweep.expansion import Cell
    from calprompt.sweep.merging import merge_tables
    from calprompt.sweep.result_table import Table, read_table
    from calprompt.sweep.selecting import rows_of
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
    "Table",
    "Task",
    "merge_tables",
    "plan_sweep",
    "read_sweep",
    "read_table",
    "results",
    "rows_of",
    "run_sweep",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "collecting": ("results",),
        "driver": ("SweepState", "run_sweep"),
        "executors": ("Task",),
        "calprompt.executors": ("Executor", "LocalExecutor", "Outcome"),
        "expansion": ("Cell",),
        "merging": ("merge_tables",),
        "result_table": ("Table", "read_table"),
        "selecting": ("rows_of",),
        "sweep_file": ("Sweep", "read_sweep"),
        "sweep_plan": ("PlannedCell", "SweepPlan", "plan_sweep"),
    },
)
