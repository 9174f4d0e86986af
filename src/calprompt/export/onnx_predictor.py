"""An exported folder as the library uses it: `runtime.Model` with the library's records and errors, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import DamagedFileError, ImageError, NewerFormatError, SettingError
from calprompt.export.packages import require_packages
from calprompt.promises import Answer, DecisionRule, ImageWatch
from calprompt.promises.image_watch import NOT_WATCHED

if TYPE_CHECKING:
    from calprompt.export.runtime import Batch

NO_SCORES = (
    f"{NOT_WATCHED}: this folder has no scores of held-out images to compare them with. Export a model that has "
    "held-out images, with this version."
)


class OnnxPredictor:
    """Predicts with an exported model; needs onnxruntime and no torch.

    Args:
        folder: That `export_predictor` or `quantize_folder` wrote.
        threads: Of onnxruntime; as many as it likes, unless given.

    Attributes:
        class_names: In the order of the columns of logits and probabilities.
        labels: What the classes are called in data, and, as text, in answers.
        promises: What is promised of the answers.
        rule: When it answers.
        record: Everything in model.json.

    Raises:
        DamagedFileError: if a file is missing, damaged or of a newer version.
        SettingError: if there is no such folder, or onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int | None = None) -> None:
        require_packages(["onnxruntime"])
        from calprompt.export import runtime

        with library_errors():
            self._model = runtime.Model(Path(folder).expanduser(), threads=threads)
        self.class_names, self.labels = self._model.class_names, self._model.labels
        self.promises, self.record = self._model.promises, self._model.record
        self.rule = DecisionRule.from_dict(self._model.rule)

    def __repr__(self) -> str:
        return f"OnnxPredictor({str(self._model.folder)!r}, {len(self.class_names)} classes)"

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Calibrated probabilities [n, C] in float64.

        Args:
            images: Paths, bytes of image files, PIL images or uint8 arrays [height, width(, 3)]; one or many.

        Raises:
            ImageError: for an image that cannot be read.
        """
        with library_errors():
            return self._model.predict_proba(images)

    def answers(
        self,
        images: Any,
        *,
        coverage: float | None = None,
        per_class: bool = False,
        min_confidence: float | None = None,
    ) -> list[Answer]:
        """A class, "unsure" or "none of these" for each image.

        Args:
            images: As `predict_proba` takes them.
            coverage: Of prediction sets, such as 0.9; None: no sets.
            per_class: The coverage holds for each class by itself.
            min_confidence: Instead of the model's own threshold; no promise on errors stands behind it.

        Raises:
            SettingError: if there are no sets of this coverage.
            ImageError: for an image that cannot be read.
        """
        with library_errors():
            found = self._model.answers(images, coverage=coverage, per_class=per_class, min_confidence=min_confidence)
        fields = Answer.__dataclass_fields__
        return [Answer(**{name: getattr(each, name) for name in fields}) for each in found]

    def predict_set(self, images: Any, coverage: float, *, per_class: bool = False) -> list[tuple[str, ...]]:
        """The classes that each image may be, the most probable first.

        Args:
            images: As `predict_proba` takes them.
            coverage: How often the true class is in the set.
            per_class: That holds for each class by itself.
        """
        with library_errors():
            return self._model.predict_set(images, coverage, per_class=per_class)

    def image_watch(self, *, false_alarms: float = 0.01) -> ImageWatch:
        """Watches whether new images are like those the model was fitted on; give it the logits of `stream`'s batches.

        Args:
            false_alarms: Share of models that alarm although their images are alike, at most.

        Raises:
            SettingError: if the folder has no scores to compare with.
        """
        record = self.record.get("image_watch")
        if record is None:
            raise SettingError(NO_SCORES)
        return ImageWatch.from_record(record, false_alarms=false_alarms)

    def predict_levels(self, levels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Logits and calibrated probabilities, [n, C] each, of images that were decoded, resized and cropped elsewhere.

        Args:
            levels: 8-bit levels [n, size, size, 3], with the size of the model's input.
        """
        from calprompt.export import runtime

        _, logits, zero_shot = self._model.graphs(runtime.normalise(list(levels), self.record["preprocessing"]))
        return logits, runtime.softmax(runtime.calibrated_logits(self._model.steps, logits, zero_shot))

    def stream(self, images: Any, *, skip_unreadable: bool = False) -> Iterator[Batch]:
        """Batches with names, logits and probabilities, in constant memory however many images there are.

        Args:
            images: As `predict_proba` takes them; a generator is read as batches are taken.
            skip_unreadable: Go on past images that cannot be read, which the batch then names.
        """
        with library_errors():
            yield from self._model.stream(images, skip_unreadable=skip_unreadable)


@contextmanager
def library_errors() -> Iterator[None]:
    """The library's errors for those of the script."""
    from calprompt.export import runtime

    try:
        yield
    except runtime.ImageError as error:
        raise ImageError(error.reason, error.name) from error
    except runtime.NewerModelError as error:
        raise NewerFormatError(str(error)) from error
    except runtime.DamagedModelError as error:
        raise DamagedFileError(str(error)) from error
    except runtime.ModelError as error:
        raise SettingError(str(error)) from error
