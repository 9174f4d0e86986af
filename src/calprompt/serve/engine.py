"""From the bytes of an image to its answer: decoding processes, batches, the model, and its edited variants.

Nobody waits for a batch to fill: while the model works on one batch, the next one gathers.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from calprompt.promises import Answer, Meaning, make_answers
from calprompt.serve.admission import Admission, FairQueue
from calprompt.serve.decoder import DecodedImage, DecoderPool, Limits
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings

RATE_WEIGHT = 0.2  # weight of the newest batch in the running rate


@dataclass
class _Waiting:
    client: str
    key: Hashable
    item: object
    future: asyncio.Future[Any]


class Batcher:
    """Gathers items into batches, each of items with one key, and works on them in a thread of its own."""

    def __init__(
        self,
        work: Callable[[Hashable, Sequence[Any]], Sequence[Any]],
        size: int,
        *,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.work, self.size, self.on_batch = work, size, on_batch
        self.rate = 0.0
        self._waiting: FairQueue[_Waiting] = FairQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def submit(self, key: Hashable, item: object, client: str = "") -> Any:
        """The result for an item; whatever `work` raises is raised for every item of its batch."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.push(client, _Waiting(client, key, item, future))
        self._wake.set()
        return await future

    async def close(self) -> None:
        """Stop; whatever waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while len(self._waiting):
            self._waiting.pop()[1].future.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = self._next()
            if not batch:
                self._wake.clear()
                await self._wake.wait()
                continue
            start = time.perf_counter()
            items = [each.item for each in batch]
            try:
                results = await loop.run_in_executor(self._thread, self.work, batch[0].key, items)
            except asyncio.CancelledError:
                for each in batch:
                    each.future.cancel()
                raise
            except Exception as error:
                for each in batch:
                    if not each.future.done():
                        each.future.set_exception(error)
                continue
            seconds = time.perf_counter() - start
            self.rate += RATE_WEIGHT * (len(batch) / max(seconds, 1e-6) - self.rate)
            self.on_batch(len(batch), seconds)
            for each, result in zip(batch, results, strict=True):
                if not each.future.done():  # whoever waited may have given up
                    each.future.set_result(result)

    def _next(self) -> list[_Waiting]:
        """Items of one key, up to `size`, from each client in turn; items that nobody waits for are dropped."""
        taken: list[_Waiting] = []
        others: list[_Waiting] = []
        while len(self._waiting) and len(taken) < self.size:
            _, each = self._waiting.pop()
            if each.future.done():
                continue
            (taken if not taken or each.key == taken[0].key else others).append(each)
        for each in reversed(others):
            self._waiting.push(each.client, each, first=True)
        return taken


KEPT_VARIANTS = 8  # variants with other classes that are kept ready
GRACE = 2.0  # seconds after which a slow decoder ends itself if the server has not ended it
TOP = 20  # probabilities in an answer, unless asked otherwise


CLASSES = "Instead of the model's own classes; promises are withdrawn."


class Options(BaseModel):
    """How an image is to be answered, as clients say it in the address or in the fields of a form."""

    coverage: float | None = Field(default=None, ge=0, le=1, description="Add the prediction set of this coverage.")
    per_class: bool = Field(default=False, description="Of sets whose coverage holds for each class by itself.")
    min_confidence: float | None = Field(default=None, ge=0, le=1, description="Call answers below this unsure.")
    classes: list[str] = Field(default=[], description=CLASSES)
    top: int = Field(default=TOP, ge=1, le=100_000, description="How many probabilities to give.")
    preview: bool = Field(
        default=False, description="Only look, as at what a camera sees now: no watch counts the image."
    )


@dataclass(frozen=True, eq=False)
class Answered:
    """An answer with all that is said about it."""

    answer: Answer  # decision, class and probability
    model: ServedModel  # that gave it
    probabilities: list[tuple[str, float]]  # class and probability, falling
    meaning: Meaning | None  # how often answers this sure were right; None if that is not known
    image: DecodedImage  # what was decoded
    logits: NDArray[Any]  # [C], before calibration
    row: list[float]  # [C], calibrated, in the order of the model's classes


class Engine:
    """Answers images with models: decoders and a batcher, and how much of them is under way."""

    def __init__(
        self, settings: ServeSettings, *, on_batch: Callable[[int, float], None] = lambda size, seconds: None
    ) -> None:
        limits = Limits(settings.formats, settings.pixels, settings.decoder_memory, settings.decode_timeout + GRACE)
        self.decoders = DecoderPool(limits, settings.decoder_count, timeout=settings.decode_timeout)
        self.batcher = Batcher(_predict, settings.batch, on_batch=on_batch)
        self.admission = Admission(settings.queue, settings.memory_bytes, lambda: self.batcher.rate)
        self._edited: OrderedDict[tuple[ServedModel, tuple[str, ...]], ServedModel] = OrderedDict()
        self._editing = asyncio.Lock()
        self._editor = ThreadPoolExecutor(1, thread_name_prefix="classes")  # images are answered meanwhile

    async def start(self) -> None:
        await self.batcher.start()
        await self.decoders.start()

    async def warm(self, model: ServedModel) -> None:
        """Take an image through a model, which is slow the first time."""
        size = model.view.size
        await self.batcher.submit(model, np.zeros((size, size, 3), dtype=np.uint8))
        record = model.track_record
        if record is not None:
            await asyncio.to_thread(lambda: record.summary)  # computed once

    async def close(self) -> None:
        """Stop everything, after what is under way."""
        await self.decoders.close()
        await self.batcher.close()
        self._editor.shutdown(wait=False, cancel_futures=True)

    async def variant(self, model: ServedModel, classes: Sequence[str]) -> ServedModel:
        """A model with other classes."""
        key = (model, tuple(classes))
        if not classes:
            return model
        async with self._editing:
            found = self._edited.get(key)
            if found is None:
                found = await asyncio.get_running_loop().run_in_executor(self._editor, model.edited, key[1])
                if found is not model:
                    found = replace(found, name=model.name, version=model.version)
                self._edited[key] = found
            self._edited.move_to_end(key)
            while len(self._edited) > KEPT_VARIANTS:
                self._edited.popitem(last=False)
        return found

    def forget(self, model: ServedModel) -> None:
        """Give up the variants of a model that is served no longer."""
        for key in [key for key in self._edited if key[0] is model]:
            del self._edited[key]

    async def answer(
        self, model: ServedModel, name: str, image: DecodedImage, options: Options, client: str = ""
    ) -> Answered:
        """The answer of a model, with the classes of the options, for an image that was decoded for it."""
        model = await self.variant(model, options.classes)
        set_rule = model.set_rule(options.coverage, options.per_class)
        logits, probabilities = await self.batcher.submit(model, image.pixels, client)
        rule = model.rule.with_threshold(options.min_confidence)
        rows = (logits[None], probabilities[None])
        answer = make_answers([name], *rows, model.labels, rule, set_rule=set_rule)[0]
        order = np.argsort(-probabilities, kind="stable")[: options.top].tolist()
        ranked = [(model.labels[each], float(probabilities[each])) for each in order]
        meaning = None if model.track_record is None else model.track_record.meaning(answer.probability)
        return Answered(answer, model, ranked, meaning, image, logits, probabilities.tolist())


def _predict(model: Hashable, pixels: Sequence[Any]) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Logits and probabilities of each image of a batch."""
    assert isinstance(model, ServedModel)
    logits, probabilities = model.predict(np.stack(pixels))
    return list(zip(logits, probabilities, strict=True))
