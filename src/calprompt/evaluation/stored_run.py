"""The stored logits of a run as records that calibrators take: the tuned model and the untuned one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from calprompt.calibrators import Stored
from calprompt.errors import CalpromptError
from calprompt.results import LOGITS, Run
from calprompt.tensor_files import read_tensor_file

TUNED, ZERO_SHOT = "tuned", "zero-shot"
PARTS = ("base", "novel", "all")


@dataclass(frozen=True)
class StoredModel:
    """What one model gave on the images of a run.

    val      of the classes that were trained on; None if the run has no validation images
    tests    base and novel, or all
    missing  test splits the model has no logits of, and why
    """

    name: str
    val: Stored | None
    tests: dict[str, Stored]
    missing: dict[str, str] = field(default_factory=dict)


def stored_models(run: Run) -> dict[str, StoredModel]:
    """The tuned and the zero-shot model of a run, from its logits file."""
    path = run.folder / LOGITS
    if not path.is_file():
        raise CalpromptError(f"{run.folder} has no {LOGITS}: the run is {run.status}")
    tensors, about = read_tensor_file(path)
    try:
        return {name: _model(name, tensors, float(about["logit_scale"]), run) for name in (TUNED, ZERO_SHOT)}
    except KeyError as error:
        raise CalpromptError(f"{path} does not hold {error}: it is damaged or not of a run") from error
    except CalpromptError as error:
        raise CalpromptError(f"{path} is damaged: {error}") from error


def _model(name: str, tensors: Mapping[str, Tensor], logit_scale: float, run: Run) -> StoredModel:
    logits, text = ("logits", "text") if name == TUNED else ("zero_shot_logits", "frozen_text")
    base = "all" if "all/labels" in tensors else "base"

    def record(split: str, part: str) -> Stored:
        return Stored(
            tensors[f"{split}/{logits}"],
            tensors[f"{split}/labels"],
            text=tensors[f"{part}/{text}"],
            frozen_text=tensors[f"{part}/frozen_text"],
            base_text=tensors[f"{base}/{text}"],
            base_frozen_text=tensors[f"{base}/frozen_text"],
            zero_shot_logits=tensors[f"{split}/zero_shot_logits"],
            logit_scale=logit_scale,
        )

    tests, missing = {}, {}
    for part in (part for part in PARTS if part == base or f"{part}/labels" in tensors):
        if part == "novel" and f"{part}/{logits}" not in tensors:
            reason = run.metrics.get(part, {}).get("not_applicable")
            missing[part] = reason or "the run has no logits of its prompts on novel classes"
        else:
            tests[part] = record(part, part)
    return StoredModel(name, record("val", base) if "val/labels" in tensors else None, tests, missing)
