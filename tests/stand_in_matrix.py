"""Everything that computes, on the device of `stand_in` and on the CPU: `python stand_in_matrix.py`, for the tests.

It prints a JSON object: from what was tried to how far the two are apart, or to the error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import samples
import stand_in
from calprompt import Classifier, Predictor, Resources, RunConfig, TrainingConfig, evaluate_run, run, training, tuners
from calprompt.classifier import settings as fit_settings
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.runs import config
from calprompt.runs.config import Target
from calprompt.runs.transfer import evaluate_on
from calprompt.sweep.driver import Task, work
from calprompt.sweep.expansion import Cell

DEVICES = ("cpu", stand_in.NAME)
BROKEN = """
import torch
from calprompt.tuners import tuners
from calprompt.tuners.coop import CoOp

@tuners.register("from-the-host")
class FromTheHost(CoOp):
    def text_features(self, image=None):
        return super().text_features(image) + torch.zeros(len(self.class_names), 1)

@tuners.register("waits")
class Waits(CoOp):
    def terms(self, outputs):
        return {"own": outputs.logits.mean() * outputs.logits.max().item()}
"""


def settings(name: str, device: str, **more: Any) -> dict[str, Any]:
    """Settings of a short run of a tuner."""
    learns = name in ("from-the-host", "waits") or tuners.get(name).learns
    given = {"tuner": name, "loss": "tcpt" if learns else "ce", "shots": 2, "views": 1, "device": device}
    return {"backbone": str(samples.backbone()), "data": str(samples.pictures()), **given, **more}


def trained(out: Path, shared: Resources, name: str, device: str, **more: Any) -> Any:
    """A finished run."""
    train = TrainingConfig(epochs=2, batch_size=2)
    return run(RunConfig(**settings(name, device, **more), training=train), out / device, resources=shared)


def main() -> None:
    samples.backbone(), samples.pictures()
    stand_in.register()
    out = Path(tempfile.mkdtemp())
    for module in (config, fit_settings):
        module.check_device = lambda device: None  # type: ignore[attr-defined]
    shared = {device: Resources() for device in DEVICES}
    waited: dict[str, int] = {}
    step, tuner_of_step = training.training_step, ""

    def counted(*args: Any, **kwargs: Any) -> Any:
        before = stand_in.waits
        done = step(*args, **kwargs)
        waited[tuner_of_step] = waited.get(tuner_of_step, 0) + stand_in.waits - before
        return done

    training.training_step = counted
    found: dict[str, Any] = {}

    def compare(what: str, values: Callable[[str], Any]) -> None:
        try:
            cpu, other = (np.asarray(values(device), dtype=np.float64) for device in DEVICES)
            found[what] = float(np.abs(cpu - other).max())
        except Exception as error:
            found[what] = f"{type(error).__name__}: {error}"

    def run_values(name: str, device: str, **more: Any) -> list[float]:
        metrics = trained(out, shared[device], name, device, **more).metrics
        return [metrics[part]["mean_confidence"] for part in ("base", "novel") if "mean_confidence" in metrics[part]]

    for name in tuners.available():
        tuner_of_step = name
        compare(f"run {name}", partial(run_values, name))
    for dtype in ("float16", "bfloat16"):
        for name in ("coop", "maple"):
            compare(f"run {name} {dtype}", partial(run_values, name, dtype=dtype))
    extension = out / "broken.py"
    extension.write_text(BROKEN, encoding="utf-8")
    for name in ("from-the-host", "waits"):
        tuner_of_step = name
        compare(f"run {name}", partial(run_values, name, imports=(str(extension),)))

    pictures = sorted(map(str, samples.pictures().glob("ant/*.png")))
    runs = {device: trained(out, shared[device], "coop", device) for device in DEVICES}
    moved = {device: partial(Predictor.from_run, runs["cpu"].folder, device=device) for device in DEVICES}
    compare("predict", lambda device: Predictor.from_run(runs[device].folder).predict_proba(pictures))
    compare("predict, trained on the CPU", lambda device: moved[device]().predict_proba(pictures))
    levels = np.zeros((3, samples.SIZE, samples.SIZE, 3), dtype=np.uint8)
    compare("predict pixels, as a server does", lambda device: moved[device]().predict_pixels(levels).probabilities)

    def evaluated(device: str) -> list[float]:
        asked = EvaluationSettings(calibrators=("temperature", "dac"), bootstrap=0)
        models = evaluate_run(runs[device].folder, asked).calibrated
        return [measured.value for model in models for part in model.values.values() for measured in part.values()]

    compare("evaluate", evaluated)
    target = Target(str(samples.pictures()), name="again")
    transferred = lambda device: evaluate_on(runs[device].folder, target, resources=shared[device])  # noqa: E731
    compare("transfer", lambda device: transferred(device).metrics["base"]["mean_confidence"])

    def swept(device: str) -> float:
        cell = Cell({**settings("kgcoop", device), "epochs": 1})
        outcome = work(Task(cell, str(out / f"sweep-{device}"), calibrators=("temperature",), store=False))
        assert outcome.is_finished, outcome.reason
        return float(json.loads((outcome.folder / "metrics.json").read_text())["base"]["mean_confidence"])  # type: ignore[operator]

    compare("sweep worker", swept)

    def fitted(device: str) -> list[float]:
        model = Classifier(str(samples.backbone()), device=device, tuner="coop", epochs=1, verbose=False)
        model.fit(str(samples.pictures()), resources=shared[device])
        return [model.predict_proba(pictures).max(), *(each.probability for each in model.answer(pictures))]

    compare("fit and answer", fitted)
    sys.stdout.write(json.dumps({"gaps": found, "waits": waited}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without torch's threads for the device, which do not end by themselves


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main()
