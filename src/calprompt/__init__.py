"""calprompt: prompt tuning of CLIP with confidences that can be trusted, on base and on novel classes.

    backbone = calprompt.load_backbone("pocket")                      a frozen CLIP
    tuner = calprompt.create_tuner("coop", backbone, ["cat", "dog"])  prompts to learn
    run = calprompt.run(calprompt.RunConfig("pocket", "photos/"))     trained and evaluated into a folder
    calprompt.Predictor.from_run(run.folder).predict("cat.jpg")       calibrated probabilities
    calprompt.Classifier("pocket").fit("photos/").answer("cat.jpg")   all of it, for practitioners

Names are imported when they are first used: importing the package takes milliseconds and no torch.
"""

# ruff: noqa: F401 (the names are those of `__all__`, which is made of the imports)

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier
    from calprompt.clip.backbone import Backbone
    from calprompt.clip.load import load_backbone
    from calprompt.data.dataset import Dataset
    from calprompt.data.load import load_dataset
    from calprompt.errors import (
        BackboneError,
        BusyError,
        CalpromptError,
        DamagedFileError,
        DataError,
        ImageError,
        NewerFormatError,
        NonFiniteLossError,
        NotFoundError,
        SettingError,
        UnknownNameError,
    )
    from calprompt.evaluation.run_evaluation import evaluate_run
    from calprompt.evaluation.settings import EvaluationSettings
    from calprompt.features.store import FeatureStore
    from calprompt.losses import Objective, mean_variance_margin, text_moment_matching
    from calprompt.metrics import (
        accuracy,
        adaptive_calibration_error,
        evaluate,
        expected_calibration_error,
        maximum_calibration_error,
        negative_log_likelihood,
        reliability_table,
        weighted_maximum_calibration_error,
    )
    from calprompt.predictor import Prediction, Predictor
    from calprompt.promises import Answer
    from calprompt.runs.config import RunConfig
    from calprompt.runs.execute import run
    from calprompt.runs.folder import Run, load_run
    from calprompt.runs.planning import plan
    from calprompt.runs.resources import Resources
    from calprompt.serve.client import Client
    from calprompt.training import train
    from calprompt.training_config import TrainingConfig
    from calprompt.tuners import Tuner, create_tuner


def _homes() -> dict[str, str]:
    """The module of each name above, as the imports for type checkers say; nothing of them is run."""
    body = ast.parse(Path(__file__).read_text(encoding="utf-8")).body
    block = next(node for node in body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


_HOMES = _homes()
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*_HOMES, *globals()})
