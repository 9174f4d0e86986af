"""Seconds of training steps and of epochs, and what they took of the processor."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np


class Stopwatch:
    """Measures steps and epochs of a training by the clock, the reading of images included.

    >>> stopwatch = Stopwatch()
    >>> stopwatch.begin_epoch(); stopwatch.end_step(); stopwatch.end_epoch()
    >>> stopwatch.record()["steps"], sorted(stopwatch.record()["step_seconds"])
    (1, ['median', 'q10', 'q90'])
    """

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.epochs: list[float] = []
        self.cpu_seconds = 0.0
        self._cpu = time.process_time()
        self._epoch = self._step = time.perf_counter()

    def begin_epoch(self) -> None:
        """An epoch and its first step begin."""
        self._cpu = time.process_time()
        self._epoch = self._step = time.perf_counter()

    def end_step(self) -> None:
        """A step ends, and the next one begins."""
        now = time.perf_counter()
        self.steps.append(now - self._step)
        self._step = now

    def end_epoch(self) -> None:
        """An epoch ends; what is done until the next one begins, such as writing a checkpoint, does not count."""
        self.epochs.append(time.perf_counter() - self._epoch)
        self.cpu_seconds += time.process_time() - self._cpu

    def record(self) -> dict[str, object]:
        """How many steps and epochs were measured and what they took; nothing of what was measured never."""
        found: dict[str, object] = {"steps": len(self.steps), "epochs": len(self.epochs)}
        found["cpu_seconds"] = round(self.cpu_seconds, 3)
        for name, seconds in (("step_seconds", self.steps), ("epoch_seconds", self.epochs)):
            if seconds:
                found[name] = _spread(seconds)
        return found


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    shares = {"median": 0.5, "q10": 0.1, "q90": 0.9}
    return {name: float(f"{np.quantile(seconds, share):.6g}") for name, share in shares.items()}
