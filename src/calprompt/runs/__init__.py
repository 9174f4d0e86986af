"""A run and its folder: settings, fingerprint, training, evaluation, and what is left on disk."""

from calprompt.results import Run, load_run
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.prepare import prepare

__all__ = ["Run", "RunConfig", "load_run", "prepare", "run"]
