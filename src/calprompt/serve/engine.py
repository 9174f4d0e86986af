"""From the bytes of an image to its answer: decoding processes, batches, the model, and its edited variants."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import SettingError
from calprompt.promises import ANSWER, Answer, Meaning
from calprompt.serve.batching import Admission, Batcher
from calprompt.serve.decoder import DecoderSettings
from calprompt.serve.decoders import DecodedImage, DecoderPool
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings

EDITED = 8  # variants with other classes that are kept ready
GRACE = 2.0  # seconds after which a slow decoder ends itself if the server has not ended it
TOP = 20  # probabilities in an answer, unless asked otherwise


@dataclass(frozen=True)
class Options:
    """How an image is to be answered.

    Attributes:
        coverage: Of the prediction set; None: there is none.
        per_class: Whether the coverage holds for each class by itself.
        min_confidence: Instead of the model's own threshold.
        classes: Instead of the model's own classes.
        top: How many probabilities to give.
    """

    coverage: float | None = None
    per_class: bool = False
    min_confidence: float | None = None
    classes: tuple[str, ...] = ()
    top: int = TOP

    def __post_init__(self) -> None:
        for name in ("coverage", "min_confidence"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise SettingError(f"must be a share, from 0 to 1, got {value}", parameter=name)
        if self.top < 1:
            raise SettingError(f"must be 1 or more, got {self.top}", parameter="top")


@dataclass(frozen=True, eq=False)
class Answered:
    """An answer with all that is said about it.

    Attributes:
        answer: Decision, class and probability.
        model: That gave it.
        probabilities: Class and probability, falling.
        meaning: How often answers this sure were right; None if that is not known.
        image: What was decoded.
        logits: [C], before calibration.
    """

    answer: Answer
    model: ServedModel
    probabilities: list[tuple[str, float]]
    meaning: Meaning | None
    image: DecodedImage
    logits: NDArray[Any]

    @property
    def meaning_text(self) -> str | None:
        """The meaning in words."""
        if self.meaning is None:
            return None
        return self.meaning.sentence("answers" if self.answer.decision == ANSWER else "guesses")


class Engine:
    """Answers images with a model.

    Args:
        model: That is served.
        settings: How.
        on_batch: Told the size of each batch and the seconds it took.

    Attributes:
        admission: How much is under way.
        decoders: Processes that decode images.
        batcher: Gathers images for the model.
    """

    def __init__(
        self,
        model: ServedModel,
        settings: ServeSettings,
        *,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.model, self.settings = model, settings
        view = model.view
        decoder = DecoderSettings(
            view.size,
            view.interpolation,
            view.mode,
            view.upright,
            settings.formats,
            settings.pixels,
            settings.decoder_memory,
            settings.timeout + GRACE,
        )
        self.decoders = DecoderPool(decoder, settings.decoder_count, timeout=settings.timeout)
        self.batcher: Batcher[Any] = Batcher(_predict, settings.batch, on_batch=on_batch)
        self.admission = Admission(settings.queue, settings.memory_bytes, lambda: self.batcher.rate)
        self._edited: OrderedDict[tuple[str, ...], ServedModel] = OrderedDict()
        self._editing = asyncio.Lock()
        self.started = False

    @property
    def ready(self) -> bool:
        """Whether it can answer."""
        return self.started and self.decoders.alive > 0

    async def start(self) -> None:
        """Start the processes, and take an image through the model, which is slow the first time."""
        await self.batcher.start()
        await self.decoders.start()
        size = self.model.view.size
        await self.batcher.submit(self.model, np.zeros((size, size, 3), dtype=np.uint8))
        record = self.model.track_record
        if record is not None:
            await self.batcher.in_thread(lambda: record.summary)  # computed once
        self.started = True

    async def close(self) -> None:
        """Stop everything, after what is under way."""
        self.started = False
        await self.decoders.close()
        await self.batcher.close()

    async def variant(self, classes: Sequence[str]) -> ServedModel:
        """The model with other classes, made in the thread of the model."""
        key = tuple(classes)
        if not key:
            return self.model
        async with self._editing:
            found = self._edited.get(key)
            if found is None:
                found = await self.batcher.in_thread(lambda: self.model.edited(key))
                self._edited[key] = found
            self._edited.move_to_end(key)
            while len(self._edited) > EDITED:
                self._edited.popitem(last=False)
        return found

    async def answer(self, name: str, data: bytes, options: Options) -> Answered:
        """The answer for an image file."""
        model = await self.variant(options.classes)
        set_rule = model.set_rule(options.coverage, options.per_class)
        image = await self.decoders.decode(data)
        logits, probabilities = await self.batcher.submit(model, image.levels)
        answer = model.answer(name, logits, probabilities, set_rule=set_rule, min_confidence=options.min_confidence)
        order = np.argsort(-probabilities, kind="stable")[: options.top].tolist()
        ranked = [(model.labels[each], float(probabilities[each])) for each in order]
        meaning = None if model.track_record is None else model.track_record.meaning(answer.probability)
        return Answered(answer, model, ranked, meaning, image, logits)


def _predict(model: Hashable, levels: Sequence[Any]) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Logits and probabilities of each image of a batch."""
    assert isinstance(model, ServedModel)
    logits, probabilities = model.predict(np.stack(levels))
    return list(zip(logits, probabilities, strict=True))
