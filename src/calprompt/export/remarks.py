"""Remarks of the exporters, which are for those who write them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

NOISY = ("", "onnxscript", "onnx_ir", "torch.onnx")  # "" is where onnxruntime's quantisation logs to


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
