"""What a run stored of its predictions: logits, from which every metric and figure is made without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from calprompt.errors import CalpromptError
from calprompt.evaluation.models import StoredModel, stored_models
from calprompt.evaluation.settings import NONE, create_calibrator
from calprompt.metrics import Predictions, predictions
from calprompt.runs.folder import LOGITS, Run, read_run_tensors


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run whose logits are here; they are read once, when they are asked for.

    Attributes:
        run: Its folder as it was read.
    """

    run: Run

    @cached_property
    def models(self) -> Mapping[str, StoredModel]:
        """The tuned and the zero-shot one."""
        return stored_models(self.run)

    @cached_property
    def names(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Class names and image names by split, also of other data that the run was evaluated on."""
        classes: dict[str, list[str]] = {}
        images: dict[str, list[str]] = {}
        places = {"": (self.run.folder, self.run.record)}
        places |= {f"{each.name}/": (each.folder, each.record) for each in self.run.transfers}
        for prefix, (folder, record) in places.items():
            _, metadata = read_run_tensors(folder, LOGITS, record)
            classes |= {f"{prefix}{split}": names for split, names in metadata["class_names"].items()}
            images |= {f"{prefix}{split}": names for split, names in metadata.get("image_names", {}).items()}
        return classes, images

    def sample(self, model: str, split: str, calibrator: str = NONE) -> Predictions:
        """What was predicted, under a calibrator fitted on the run's validation images."""
        stored, fitted = self.models[model], create_calibrator(calibrator)
        if fitted.learns:
            if stored.val is None:
                raise CalpromptError(f"{self.run.folder} has no validation images to fit {calibrator} on")
            fitted.fit(stored.val)
        record = stored.tests[split]
        return predictions(fitted(record), record.given("labels"), from_logits=True)
