"""Evaluation of runs from their stored logits: every metric under every calibrator, without the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.evaluation.bootstrap import bootstrap_intervals
    from calprompt.evaluation.models import StoredModel, stored_models
    from calprompt.evaluation.output import tidy_rows, write_evaluations
    from calprompt.evaluation.predicting import fitted_calibrator, run_predictor
    from calprompt.evaluation.run_evaluation import Calibrated, Evaluation, Measured, evaluate_run
    from calprompt.evaluation.selection import Selection, select
    from calprompt.evaluation.settings import EvaluationSettings

__all__ = [
    "Calibrated",
    "Evaluation",
    "EvaluationSettings",
    "Measured",
    "Selection",
    "StoredModel",
    "bootstrap_intervals",
    "evaluate_run",
    "fitted_calibrator",
    "run_predictor",
    "select",
    "stored_models",
    "tidy_rows",
    "write_evaluations",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "bootstrap": ("bootstrap_intervals",),
        "output": ("tidy_rows", "write_evaluations"),
        "predicting": ("fitted_calibrator", "run_predictor"),
        "run_evaluation": ("Calibrated", "Evaluation", "Measured", "evaluate_run"),
        "selection": ("Selection", "select"),
        "settings": ("EvaluationSettings",),
        "models": ("StoredModel", "stored_models"),
    },
)
