"""What the routes of the API work with: the engine, the feedback, receipts and measurements of one process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from fastapi import Request

from calprompt.errors import CalpromptError
from calprompt.promises.image_watch import image_scores
from calprompt.serve.admission import Ticket
from calprompt.serve.engine import Answered, Engine, Options
from calprompt.serve.feedback import FeedbackBook, Receipt, Signer
from calprompt.serve.guard import Caller
from calprompt.serve.measurements import Measurements
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.requests import Form, Upload, read_body, read_form
from calprompt.serve.schemas import shown
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings

LOG = logging.getLogger(__name__)


class Service:
    """What the routes work with.

    Args:
        model: That is served.
        settings: How.
        book: Of feedback.
        measurements: For Prometheus.

    Attributes:
        engine: Answers images.
        draining: Whether the server is being stopped.
        on_ready: Called when images can be answered.
    """

    def __init__(
        self, model: ServedModel, settings: ServeSettings, book: FeedbackBook, measurements: Measurements
    ) -> None:
        self.model, self.settings, self.book, self.measurements = model, settings, book, measurements
        self.signer = Signer(book.secret)
        self.engine: Engine | None = None
        self.draining = False
        self._seeing: set[asyncio.Future[None]] = set()
        self.on_ready: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Start processes and threads."""
        self.engine = Engine(self.model, self.settings, on_batch=self.measurements.on_batch)
        await self.engine.start()
        self.on_ready()

    async def close(self) -> None:
        """Stop them, after what is under way."""
        if self.engine is not None:
            await self.engine.close()
        await asyncio.gather(*self._seeing, return_exceptions=True)
        try:
            await waited(self.book.close)
        except CalpromptError as error:
            LOG.warning("%s", error)

    @property
    def running(self) -> Engine:
        """The engine; raises before it has started."""
        if self.engine is None:
            raise ProblemError(503, "the server is starting; try again", Retry_After="1")
        return self.engine

    def ticket(self, request: Request) -> AbstractContextManager[Ticket]:
        """A place for a request, counted for its client."""
        return self.running.admission.ticket(request.scope["caller"].client)

    async def form(self, request: Request, ticket: Ticket, *, most_images: int) -> Form:
        """The images and fields of a request, within all limits."""
        settings = self.settings
        data = await read_body(request, ticket, most=settings.body_bytes, timeout=settings.timeout)
        return await read_form(request, data, ticket, most_images=most_images)

    async def answer(self, upload: Upload, options: Options, caller: Caller) -> dict[str, Any]:
        """The answer for an image, as clients get it; raises a problem."""
        most = self.settings.timeout + self.settings.decode_timeout  # decoding says itself why it is given up
        try:
            async with asyncio.timeout(most):
                answered = await self.running.answer(upload.name, upload.data, options, caller.client)
        except TimeoutError:
            self.measurements.on_problem()
            raise ProblemError(503, f"the answer took longer than {most:g} s; send it again", Retry_After="1") from None
        except CalpromptError as error:
            self.measurements.on_problem()
            raise problem_of(error) from error
        self.measurements.on_answer(answered)
        decided = caller.notes.setdefault("decisions", {})
        decided[answered.answer.decision] = decided.get(answered.answer.decision, 0) + 1
        self._see(answered)
        return shown(answered, options, self._receipt(answered))

    def _see(self, answered: Answered) -> None:
        """Have the image watched; the answer does not wait for it."""
        watch = answered.model.image_watch
        if watch is None:  # of edited classes nothing is held out
            return

        def see() -> Any:
            scores = image_scores(answered.logits[None], watch["temperature"])[0].tolist()
            return self.book.see(scores, hashlib.sha256(answered.image.pixels.tobytes()).hexdigest())

        task = asyncio.ensure_future(waited(see))
        self._seeing.add(task)
        task.add_done_callback(self._seen)

    def _seen(self, task: asyncio.Future[None]) -> None:
        self._seeing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.warning("an image is not watched: %s", error)

    async def watch(self) -> Any:
        """The state of both watches, with all images that were answered before."""
        await asyncio.gather(*self._seeing, return_exceptions=True)
        return await waited(self.book.state)

    def _receipt(self, answered: Answered) -> str:
        answer = answered.answer
        return self.signer.sign(
            Receipt.of(
                answered.model.fingerprint,
                answered.image.pixels.tobytes(),
                answer.decision,
                answer.class_name,
                answer.promised,
            )
        )


async def waited(call: Callable[[], Any]) -> Any:
    """What the book says; one that is elsewhere is waited for, one that writes to disk does so in a thread."""
    found = await asyncio.get_running_loop().run_in_executor(None, call)
    return await found if isinstance(found, Awaitable) else found
