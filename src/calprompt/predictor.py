"""From images to calibrated probabilities: the one way, used by runs, transfers and whatever predicts.

    image ── read, decode ── pixels ── image tower ── features ──┐
                                                                 ├── logits ── calibrator ── softmax ── probabilities
    class names ── prompts ── text tower ── text features ───────┘

Images are taken a few batches at a time, so that a stream of any length fits in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.clip.backbone import Backbone, unit
from calprompt.data.decoding import iterate_images
from calprompt.data.images import FeatureRows, ImageFiles, ImageRows, Images, open_image
from calprompt.errors import DataError, ImageError
from calprompt.features.frozen import batch_size, encode, one_thread
from calprompt.parallel import batched, map_in_threads
from calprompt.progress import Progress, rate_note, silent
from calprompt.promises import DecisionRule, make_answers
from calprompt.tuners import Tuner

if TYPE_CHECKING:
    from PIL import Image

    from calprompt.runs.folder import Run
    from calprompt.runs.resources import Resources

    ImageLike = str | Path | bytes | Image.Image | NDArray[Any]

BATCH = 64  # features that a tuner is given at a time
WORKERS = 16  # threads at most
Loaded = tuple[list[str], list[str], Tensor | None, Tensor | None, dict[str, str]]  # see `Predictor._loaded`


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """Predictions of a batch of images.

    Attributes:
        names: Names of the images: their paths, or "image 3" for the fourth that has none.
        features: [n, D] unit image features that the logits are made of.
        logits: [n, C] in float32, before calibration.
        probabilities: [n, C] in float64, calibrated.
        unreadable: Images that could not be read, and why; they have no rows.
        digests: sha256 of the content of each image; empty where only features or pixels were given.
    """

    names: list[str]
    features: Tensor
    logits: Tensor
    probabilities: NDArray[np.float64]
    unreadable: dict[str, str]
    digests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Prediction:
    """The answer for one image.

    Attributes:
        name: Name of the image.
        class_name: The most probable class.
        probability: Its calibrated probability.
        runner_up: The second most probable class; `None` if there is only one class.
        runner_up_probability: Its probability.
    """

    name: str
    class_name: str
    probability: float
    runner_up: str | None
    runner_up_probability: float | None


class Predictor:
    """Predicts the class of images, with calibrated probabilities.

    Args:
        tuner: Prompts, their backbone and the classes to tell apart.
        calibrator: A fitted calibrator; `None`: the softmax of the logits as they are.
        text: Tuned text features [C, D] that calibrators such as DAC compare; the tuner's own, unless given.
        base_text: Text features of the classes that the prompts were tuned on; by default, the same classes.
        base_frozen_text: Untuned text features of these.
        upright: Turn images as their EXIF data say; a run that was trained so predicts so.

    Attributes:
        class_names: In the order of the columns of logits and probabilities.
    """

    def __init__(
        self,
        tuner: Tuner,
        *,
        calibrator: Calibrator | None = None,
        text: Tensor | None = None,
        base_text: Tensor | None = None,
        base_frozen_text: Tensor | None = None,
        upright: bool = False,
    ) -> None:
        self.tuner, self.calibrator, self.upright = tuner, calibrator, upright
        self._text, self._base_text, self._base_frozen_text = text, base_text, base_frozen_text

    @classmethod
    def from_run(
        cls,
        run: str | Path | Run,
        *,
        calibrator: str | None = None,
        part: str | None = None,
        class_names: Sequence[str] | None = None,
        backbone: str | None = None,
        device: str | None = None,
        imports: Sequence[str | Path] | None = None,
        resources: Resources | None = None,
    ) -> Predictor:
        """The predictor of a finished run.

        Args:
            run: The folder of the run, or the run itself if it was read.
            calibrator: Such as "temperature". What it learned is read back from what `calprompt evaluate` wrote, or,
                if it was not evaluated, fitted on the run's validation images in the same way. `None`: no calibration.
            part: The classes to tell apart: "base" (or "all" for a few-shot run), which is the default, "novel", or
                "all" for base and novel together.
            class_names: Other classes instead.
            backbone: New location of the backbone's weights, which must be the same weights.
            device: Instead of the one it was trained on.
            imports: The Python files of your own that it needs; they are run only if named here.
            resources: Backbones and features that are already loaded.

        Raises:
            CalpromptError: if the run is not finished or damaged, or its prompts do not apply to these classes.
        """
        from calprompt.evaluation.predicting import run_predictor

        return run_predictor(
            run,
            calibrator=calibrator,
            part=part,
            class_names=class_names,
            backbone=backbone,
            device=device,
            imports=imports,
            resources=resources,
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of logits and probabilities."""
        return self.tuner.class_names

    @property
    def backbone(self) -> Backbone:
        """The frozen CLIP."""
        return self.tuner.backbone

    def __repr__(self) -> str:
        calibrated = f", {self.calibrator.name}" if self.calibrator is not None else ""
        return f"Predictor({type(self.tuner).__name__}, {len(self.class_names)} classes{calibrated})"

    def predict(
        self, images: ImageLike | Iterable[ImageLike] | Images, *, progress: Progress = silent
    ) -> list[Prediction]:
        """The most probable class and the runner-up of each image.

        Args:
            images: Paths, bytes of image files, PIL images or uint8 arrays [height, width(, 3)]; one or many.
            progress: Callback for progress.

        Raises:
            ImageError: for an image that cannot be read.
        """
        return [answer for batch in self.stream(images, progress=progress) for answer in self.answers(batch)]

    def predict_proba(
        self, images: ImageLike | Iterable[ImageLike] | Images, *, progress: Progress = silent
    ) -> NDArray[np.float64]:
        """Calibrated probabilities [n, C] in float64; `images` as `predict` takes them."""
        rows = [batch.probabilities for batch in self.stream(images, progress=progress)]
        return np.concatenate(rows) if rows else np.empty((0, len(self.class_names)))

    def answers(self, batch: PredictionBatch) -> list[Prediction]:
        """The most probable class and the runner-up of each image of a batch."""
        found = make_answers(batch.names, batch.logits, batch.probabilities, self.class_names, DecisionRule())
        return [
            Prediction(each.name, each.class_name, each.probability, each.runner_up, each.runner_up_probability)
            for each in found
        ]

    @torch.no_grad()
    def stream(
        self,
        images: ImageLike | Iterable[ImageLike] | Images,
        *,
        skip_unreadable: bool = False,
        progress: Progress = silent,
    ) -> Iterator[PredictionBatch]:
        """Predictions in batches, in constant memory however many images there are.

        Args:
            images: Images as for `predict`; a generator is read as predictions are taken.
            skip_unreadable: Go on past images that cannot be read, which the batch then names.
            progress: Callback for progress; of a generator, whose length is not known, it shows what is done.

        Yields:
            A batch at a time, in the order of the images.
        """
        if isinstance(images, FeatureRows):
            yield self._batch([images.name(i) for i in range(len(images))], images.rows, None, {})
            return
        dataset = images if isinstance(images, ImageFiles | ImageRows) else None
        items, total = iterate_images(images) if dataset is None else (range(len(dataset)), len(dataset))
        done, start = 0, time.perf_counter()
        loaded = self._loaded(items, frozen=self._needs_frozen, images=dataset)
        for names, digests, frozen, pixels, unreadable in loaded:
            if unreadable and not skip_unreadable:
                name, reason = next(iter(unreadable.items()))
                raise ImageError(reason, name)
            done += len(names) + len(unreadable)
            yield replace(self._batch(names, frozen, pixels, unreadable), digests=digests)
            left = None if total is None else total - done
            progress("predicting", done, total or done, rate_note(done, time.perf_counter() - start, left))

    @torch.no_grad()
    def predict_pixels(self, images: NDArray[np.uint8]) -> PredictionBatch:
        """Predictions of 8-bit pixels [n, size, size, 3] decoded and resized elsewhere, as for a waiting client.

        The tower gets as many images as there are, where `stream` fills up its batches: one image takes the time of
        one. In exchange the last digits may depend on how many there are.
        """
        backbone, tuner = self.backbone, self.tuner
        pixels = backbone.preprocessing.normalise(torch.from_numpy(images))
        frozen = None
        if self._needs_frozen:
            with backbone.limited_threads():
                parts = [backbone.encode_image(part) for part in pixels.split(batch_size(backbone))]
            frozen = torch.cat(parts).cpu() if parts else None
        names = [f"image {number}" for number in range(len(images))]
        return self._batch(names, frozen, pixels if tuner.needs_pixels else None, {})

    @torch.no_grad()
    def logits(self, images: Images, features: Tensor) -> Tensor:
        """Logits [n, C] in float32, before calibration, of images whose frozen features [n, D] are at hand."""
        if not self.tuner.needs_pixels:
            return self.tuner.predict(features.split(BATCH)).float().cpu()
        pixels = (pixels for _, _, _, pixels, _ in self._loaded(range(len(images)), frozen=False, images=images))
        return self.tuner.predict(batch for batch in pixels if batch is not None).float().cpu()

    @property
    def _needs_frozen(self) -> bool:
        """Whether frozen features are needed, for the tuner or for the zero-shot logits of the calibrator."""
        needs = () if self.calibrator is None else self.calibrator.needs
        return "zero_shot_logits" in needs or not self.tuner.needs_pixels

    def _loaded(self, items: Iterable[Any], *, frozen: bool, images: Images | None = None) -> Iterator[Loaded]:
        """Names, digests, features, pixels and unreadable images of batches of items, read and encoded in threads."""
        backbone, tuner = self.backbone, self.tuner
        on_cpu = backbone.device.type == "cpu"
        threads = torch.get_num_threads() if on_cpu else None

        def load(batch: list[tuple[int, Any]]) -> Loaded:
            names, digests, views, unreadable = [], [], [], {}
            for number, item in batch:
                name = images.name(item) if images is not None else f"image {number}"
                try:
                    picture = (
                        images.read(item) if images is not None else open_image(item, number, upright=self.upright)
                    )
                    name = getattr(picture, "name", name)
                    views.append(picture.views(backbone.preprocessing)[0])
                    digests.append(picture.digest)
                    names.append(name)
                except ImageError as error:
                    unreadable[error.name or name] = error.reason
            if not views:
                return names, digests, None, None, unreadable
            pixels = backbone.preprocessing.normalise(torch.stack(views))
            features = encode(backbone, pixels) if frozen and on_cpu else None
            return names, digests, features, pixels if tuner.needs_pixels or not on_cpu else None, unreadable

        batches = batched(enumerate(items), batch_size(backbone) if frozen else BATCH)
        loaded: Iterator[Any]
        if threads == 1:
            loaded = map(load, batches)
        else:
            workers = min(threads, WORKERS) if threads else None
            loaded = map_in_threads(load, batches, threads=workers, ahead=1, initializer=one_thread)
        for names, digests, features, pixels, unreadable in loaded:
            if frozen and features is None and pixels is not None:
                features = encode(backbone, pixels)
            yield names, digests, features, pixels, unreadable

    def _batch(
        self, names: list[str], frozen: Tensor | None, pixels: Tensor | None, unreadable: dict[str, str]
    ) -> PredictionBatch:
        """Features, logits and probabilities of one batch."""
        tuner, C = self.tuner, len(self.class_names)
        if not names:
            return PredictionBatch(
                [], torch.empty(0, self.backbone.embed_dim), torch.empty(0, C), np.empty((0, C)), unreadable
            )
        inputs = pixels if tuner.needs_pixels else frozen
        if inputs is None:
            raise DataError("pixels are needed, and these images hold features only")
        with torch.no_grad(), self.backbone.limited_threads():
            features = tuner.image_features(inputs)
            if tuner.text_depends_on_image:
                logits = tuner.predict_features(features).float().cpu()
            else:
                logits = tuner.logits(features, self._tuned_text.to(features)).float().cpu()
            calibrator = self.calibrator
            scores = logits.double() if calibrator is None else calibrator(self.stored_logits(logits, frozen))
            probabilities = scores.softmax(dim=1).cpu().numpy()
        return PredictionBatch(names, features.float().cpu(), logits, probabilities, unreadable)

    @cached_property
    def _tuned_text(self) -> Tensor:
        """Text features that no image changes."""
        return self.tuner.text_features()

    def stored_logits(self, logits: Tensor, frozen: Tensor | None = None) -> StoredLogits:
        """Logits [n, C] with all that the calibrator needs beside them, such as zero-shot logits of frozen features."""
        needs = () if self.calibrator is None else self.calibrator.needs
        record: dict[str, Any] = {"logit_scale": float(self.backbone.logit_scale)}
        if {"text", "frozen_text", "base_text", "base_frozen_text"} & set(needs):
            text = self._text if self._text is not None else self._tuned_text.float().cpu()
            frozen_text = self.tuner.frozen_text.float().cpu()
            record |= {
                "text": text,
                "frozen_text": frozen_text,
                "base_text": text if self._base_text is None else self._base_text,
                "base_frozen_text": frozen_text if self._base_frozen_text is None else self._base_frozen_text,
            }
        if "zero_shot_logits" in needs:
            assert frozen is not None
            record["zero_shot_logits"] = zero_shot_logits(self.backbone, frozen, self.tuner.frozen_text)
        return StoredLogits(logits, **record)


@torch.no_grad()
def zero_shot_logits(backbone: Backbone, features: Tensor, frozen_text: Tensor) -> Tensor:
    """Logits [n, C] in float32 of the untuned model, from frozen features [n, D]."""
    image = unit(features.to(backbone.device, backbone.prompt_dtype))
    return (backbone.logit_scale * image @ frozen_text.T).float().cpu()
