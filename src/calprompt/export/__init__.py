"""Models that run elsewhere: a folder with an ONNX file and one script, for onnxruntime, numpy and Pillow.

    export_predictor(predictor, "folder", rule=rule)      writes the folder
    OnnxPredictor("folder").predict_proba("cat.jpg")      runs it from here, without torch
    python folder/predict.py cat.jpg                      runs it anywhere, without calprompt

Importing this package takes neither torch nor onnxruntime. The packages that exporting needs beside those of calprompt
itself are its extra `onnx`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from calprompt.errors import SettingError

EXPORTING = ("onnx", "onnxruntime", "onnxscript")
NOISY = ("", "onnxscript", "onnx_ir", "torch.onnx")  # "" is where onnxruntime's quantisation logs to


def require_packages(names: Sequence[str] = EXPORTING) -> None:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise SettingError(
            f"exported models need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed: pip install 'calprompt[onnx]'"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, what they log below an error, and warn of, is not shown."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
