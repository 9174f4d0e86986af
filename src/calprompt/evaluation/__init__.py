"""Evaluation of runs from their stored logits: every metric under every calibrator, without the model."""

from calprompt.evaluation.bootstrap import bootstrap_intervals
from calprompt.evaluation.evaluate import Calibrated, Evaluation, Measured, evaluate_run
from calprompt.evaluation.output import check_output, tidy_rows, write_evaluations
from calprompt.evaluation.selection import Selection, select
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.evaluation.stored_run import StoredModel, stored_models

__all__ = [
    "Calibrated",
    "Evaluation",
    "EvaluationSettings",
    "Measured",
    "Selection",
    "StoredModel",
    "bootstrap_intervals",
    "check_output",
    "evaluate_run",
    "select",
    "stored_models",
    "tidy_rows",
    "write_evaluations",
]
