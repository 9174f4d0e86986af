"""A run and its folder: settings, fingerprint, training, evaluation, and what is left on disk."""

from calprompt.results import Run, Transfer, load_run
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.prepare import prepare
from calprompt.runs.restore import Restored, restore
from calprompt.runs.transfer import Target, evaluate_on

__all__ = [
    "Restored",
    "Run",
    "RunConfig",
    "Target",
    "Transfer",
    "evaluate_on",
    "load_run",
    "prepare",
    "restore",
    "run",
]
