"""An exported folder as the library uses it: `runtime.Model`, and what the script has no need of. Needs no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import SettingError
from calprompt.export import require_packages
from calprompt.kernel import calibrated_logits, softmax
from calprompt.promises import ImageWatch
from calprompt.promises.image_watch import NOT_WATCHED

require_packages(["onnxruntime"])

from calprompt.export.runtime import Model, normalise  # noqa: E402, says what is not installed first

NO_SCORES = (
    f"{NOT_WATCHED}: this folder has no scores of held-out images to compare them with. Export a model that has "
    "held-out images, with this version."
)


class OnnxPredictor(Model):
    """Predicts with an exported model; needs onnxruntime and no torch. Arguments and attributes are those of `Model`.

    Args:
        folder: That `export_predictor` or `quantize_folder` wrote.
        threads: Threads of onnxruntime; as many as it likes, unless given.
        providers: Execution providers of onnxruntime, such as "CUDAExecutionProvider".

    Raises:
        DamagedFileError: if a file is missing, damaged or of a newer version.
        SettingError: if there is no such folder, or onnxruntime is not installed.
    """

    def image_watch(self, *, false_alarms: float = 0.01) -> ImageWatch:
        """Watches whether new images are like those of the fit; give it the logits of `stream`'s batches."""
        record = self.record.get("image_watch")
        if record is None:
            raise SettingError(NO_SCORES)
        return ImageWatch.from_record(record, false_alarms=false_alarms)

    def predict_pixels(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Logits and calibrated probabilities, [n, C] each, of images that were decoded and resized elsewhere."""
        _, logits, zero_shot = self.graphs(normalise(list(images), self.record["preprocessing"]))
        return logits, softmax(calibrated_logits(self.steps, logits, zero_shot))
