"""The web application: the JSON API, the page, and what both need while they run.

GET  /                    the page
GET  /v1/model            classes, promises, track record, limits
POST /v1/predict          one image
POST /v1/predict/batch    several
POST /v1/marks            an answer was right or wrong
GET  /v1/watch            whether the promise still holds
GET  /health /ready /metrics /openapi.json
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

import calprompt
from calprompt.errors import CalpromptError, ImageError, SettingError
from calprompt.serve import schemas
from calprompt.serve.batching import Ticket
from calprompt.serve.bodies import read_body, read_form, read_json
from calprompt.serve.descriptions import IMAGE_BODY, IMAGES_BODY, MARK_BODY, PROBLEMS, describe, model_info, shown
from calprompt.serve.engine import TOP, Answered, Engine, Options
from calprompt.serve.forms import Form, Upload
from calprompt.serve.guard import Guard, known_hosts
from calprompt.serve.marks import Mark, MarkBook
from calprompt.serve.measurements import Measurements
from calprompt.serve.problems import MEDIA_TYPE, ProblemError, problem_of
from calprompt.serve.receipts import Receipt, Signer
from calprompt.serve.served_model import MOST_CHARACTERS, ServedModel
from calprompt.serve.settings import ServeSettings
from calprompt.serve.static import add_page

MARK_BYTES = 64 * 1024  # of a mark without an image

Coverage = Annotated[float | None, Query(ge=0, le=1, description="Add the prediction set of this coverage.")]
PerClass = Annotated[bool, Query(description="Of sets whose coverage holds for each class by itself.")]
Threshold = Annotated[float | None, Query(ge=0, le=1, description="Call answers below this unsure.")]
Classes = Annotated[list[str], Query(description="Instead of the model's own classes; promises are withdrawn.")]
Top = Annotated[int, Query(ge=1, le=100_000, description="How many probabilities to give.")]


def create_app(
    model: ServedModel, settings: ServeSettings | None = None, *, marks: MarkBook | Any | None = None
) -> FastAPI:
    """The application that serves a model.

    Args:
        model: What is served; `load_served` reads one from a folder.
        settings: How.
        marks: Where marks are counted; a `MarkBook` of its own, unless given.
    """
    settings = settings or ServeSettings()
    book = marks if marks is not None else mark_book(model, settings)
    measurements = Measurements(watched=model.rule.promised)
    state = Service(model, settings, book, measurements)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await state.start()
        try:
            yield
        finally:
            await state.close()

    app = FastAPI(
        title="calprompt",
        version=calprompt.__version__,
        description="Images in, calibrated probabilities and decisions out.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = state
    app.add_middleware(
        Guard,
        token=settings.token,
        hosts=known_hosts(settings.host, settings.allowed_hosts) if settings.is_local or settings.allowed_hosts else (),
        observe=measurements.on_request,
    )
    _add_errors(app)
    _add_routes(app, state)
    add_page(app)
    describe(app)
    return app


def mark_book(model: ServedModel, settings: ServeSettings) -> MarkBook:
    """The marks of a model that is served by one process."""
    return MarkBook(
        model.rule,
        model.fingerprint,
        false_alarms=settings.false_alarms,
        path=settings.marks,
        keep=settings.keep,
    )


class Service:
    """What the routes work with.

    Args:
        model: That is served.
        settings: How.
        book: Of marks.
        measurements: For Prometheus.

    Attributes:
        engine: Answers images.
        draining: Whether the server is being stopped.
        on_ready: Called when images can be answered.
    """

    def __init__(self, model: ServedModel, settings: ServeSettings, book: MarkBook, measurements: Measurements) -> None:
        self.model, self.settings, self.book, self.measurements = model, settings, book, measurements
        self.signer = Signer(book.secret)
        self.engine: Engine | None = None
        self.draining = False
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

    @property
    def running(self) -> Engine:
        """The engine; raises before it has started."""
        if self.engine is None:
            raise ProblemError(503, "the server is starting; try again", Retry_After="1")
        return self.engine

    async def form(self, request: Request, ticket: Ticket, *, most_images: int) -> Form:
        """The images and fields of a request, within all limits."""
        settings = self.settings
        data = await read_body(request, ticket, most=settings.body_bytes, timeout=settings.timeout)
        return await read_form(request, data, ticket, most_images=most_images)

    async def answer(self, upload: Upload, options: Options) -> dict[str, Any]:
        """The answer for an image, as clients get it; raises a problem."""
        most = 2 * self.settings.timeout  # decoding alone may take half of it, and says why it is given up
        try:
            async with asyncio.timeout(most):
                answered = await self.running.answer(upload.name, upload.data, options)
        except TimeoutError:
            self.measurements.on_problem()
            raise ProblemError(503, f"the answer took longer than {most:g} s; send it again", Retry_After="1") from None
        except CalpromptError as error:
            self.measurements.on_problem()
            raise problem_of(error) from error
        self.measurements.on_answer(answered)
        return shown(answered, options, self._receipt(upload, answered))

    def _receipt(self, upload: Upload, answered: Answered) -> str:
        answer = answered.answer
        return self.signer.sign(
            Receipt.of(answered.model.fingerprint, upload.data, answer.decision, answer.class_name, answer.promised)
        )


def _add_routes(app: FastAPI, state: Service) -> None:
    @app.get("/v1/model", response_model=schemas.ModelInfo, responses=PROBLEMS(401, 422, 429))
    async def model(classes: Classes = []) -> dict[str, Any]:  # noqa: B006
        """The model: classes, promises, track record and limits; with `classes`, as it is with these instead."""
        with state.running.admission.ticket() as ticket:
            if classes:
                ticket.take(images=1)
            return model_info(await state.running.variant(classes), state.settings)

    @app.post(
        "/v1/predict",
        response_model=schemas.AnswerModel,
        responses=PROBLEMS(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=IMAGE_BODY,
    )
    async def predict(
        request: Request,
        coverage: Coverage = None,
        per_class: PerClass = False,
        min_confidence: Threshold = None,
        classes: Classes = [],  # noqa: B006
        top: Top = TOP,
    ) -> dict[str, Any]:
        """What an image shows, with calibrated probabilities; or that the model is unsure, or that it is none of these.

        The image is the body itself, or a part `image` of a form, whose other fields may hold the options.
        """
        given = Options(coverage, per_class, min_confidence, tuple(classes), top)
        with state.running.admission.ticket() as ticket:
            ticket.take(images=1)
            form = await state.form(request, ticket, most_images=2)
            if len(form.uploads) != 1:
                raise ProblemError(
                    422, f"send one image as 'image', got {len(form.uploads)}; several go to /v1/predict/batch"
                )
            return await state.answer(form.uploads[0], options_of(form.fields, given))

    @app.post(
        "/v1/predict/batch",
        response_model=schemas.BatchModel,
        responses=PROBLEMS(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=IMAGES_BODY,
    )
    async def predict_batch(
        request: Request,
        coverage: Coverage = None,
        per_class: PerClass = False,
        min_confidence: Threshold = None,
        classes: Classes = [],  # noqa: B006
        top: Top = TOP,
    ) -> dict[str, Any]:
        """What several images show, in their order; one that cannot be answered has its problem in its place."""
        given = Options(coverage, per_class, min_confidence, tuple(classes), top)
        with state.running.admission.ticket() as ticket:
            ticket.take(images=1)
            form = await state.form(request, ticket, most_images=state.settings.max_images)
            if not form.uploads:
                raise ProblemError(422, "send one or more images, each as a part 'image' of the form")
            ticket.take(images=len(form.uploads) - 1)
            options = options_of(form.fields, given)
            variant = await state.running.variant(options.classes)
            variant.set_rule(options.coverage, options.per_class)  # what is wrong with the options is told once

            async def one(upload: Upload) -> dict[str, Any]:
                try:
                    return await state.answer(upload, options)
                except ProblemError as problem:
                    return {"name": upload.name, "problem": problem.to_dict()}

            return {"answers": await asyncio.gather(*map(one, form.uploads))}

    @app.post(
        "/v1/marks",
        response_model=schemas.MarkModel,
        responses=PROBLEMS(400, 401, 403, 408, 409, 413, 415, 422, 429, 503),
        openapi_extra=MARK_BODY,
    )
    async def marks(request: Request) -> dict[str, Any]:
        """Mark an answer right or wrong; with its image, if the server keeps images to fit again."""
        with state.running.admission.ticket() as ticket:
            mark, right = await _mark(request, ticket, state)
        state.measurements.on_mark(right, mark)
        return {"counted": mark.counted, "reason": mark.reason, "kept": mark.kept, "watch": mark.watch}

    @app.get("/v1/watch", response_model=schemas.WatchModel, responses=PROBLEMS(401))
    async def watch() -> dict[str, Any]:
        """Whether the promise on errors still holds, from the answers that were marked."""
        return await _waited(state.book.state)

    @app.get("/health", response_model=schemas.Status)
    async def health() -> dict[str, str]:
        """Whether the process runs."""
        return {"status": "ok"}

    @app.get("/ready", response_model=schemas.Status, responses=PROBLEMS(503))
    async def ready() -> dict[str, str]:
        """Whether it can answer images now."""
        if state.draining or state.engine is None or not state.engine.ready:
            raise ProblemError(503, "not ready to answer images", Retry_After="1")
        return {"status": "ready"}

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Measurements for Prometheus."""
        text = state.measurements.text(state.running, await _waited(state.book.state))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        """This description."""
        return JSONResponse(app.openapi())


async def _mark(request: Request, ticket: Ticket, state: Service) -> tuple[Mark, bool]:
    """Read a mark and take it down."""
    is_form = request.headers.get("content-type", "").lower().startswith("multipart/form-data")
    most = state.settings.body_bytes if is_form else MARK_BYTES
    data = await read_body(request, ticket, most=most, timeout=state.settings.timeout)
    image: bytes | None = None
    if is_form:
        form = await read_form(request, data, ticket, most_images=1)
        values: dict[str, Any] = {name: texts[-1] for name, texts in form.fields.items()}
        if "right" in values:
            values["right"] = _flag("right", values["right"])
        if not values.get("class_name"):
            values.pop("class_name", None)
        image = form.uploads[0].data if form.uploads else None
    else:
        values = read_json(request, data)
    try:
        asked = schemas.MarkRequest.model_validate(values)
    except ValidationError as error:
        raise ProblemError(422, _sentence(error.errors())) from None
    receipt = state.signer.read(asked.id)
    if asked.class_name is not None and (not asked.class_name.isprintable() or not asked.class_name.strip()):
        raise ProblemError(422, "class_name must be a name without line breaks and control characters")
    kind = None
    if image is not None:
        if Receipt.of("", image, "", "", False).image != receipt.image:
            raise ProblemError(422, "image is not the one that was answered")
        try:
            kind = (await state.running.decoders.decode(image)).format
        except ImageError as error:
            raise problem_of(error) from error
    mark = await _waited(
        lambda: state.book.add(receipt, asked.right, class_name=asked.class_name, image=image, format=kind)
    )
    return mark, asked.right


async def _waited(call: Callable[[], Any]) -> Any:
    """What a book of marks says; one that is elsewhere is waited for, one that writes to disk does so in a thread."""
    found = await asyncio.get_running_loop().run_in_executor(None, call)
    return await found if isinstance(found, Awaitable) else found


def options_of(fields: dict[str, list[str]], given: Options) -> Options:
    """Options from the fields of a form, in the place of those in the address.

    Raises:
        ProblemError: if a field makes no sense.
    """
    found: dict[str, Any] = {}
    for name, texts in fields.items():
        if name == "classes":
            if any(len(text) > MOST_CHARACTERS for text in texts):
                raise ProblemError(422, f"classes must be names of {MOST_CHARACTERS} characters at most")
            found[name] = tuple(texts)
        elif name == "per_class":
            found[name] = _flag(name, texts[-1])
        elif name in ("coverage", "min_confidence", "top"):
            try:
                found[name] = int(texts[-1]) if name == "top" else float(texts[-1])
            except ValueError:
                raise ProblemError(422, f"{name} must be a number, got {texts[-1][:50]!r}") from None
        else:
            raise ProblemError(
                422, f"there is no option {name[:50]!r}; there are coverage, per_class, min_confidence, classes and top"
            )
    try:
        return Options(**{**vars(given), **found})
    except SettingError as error:
        raise problem_of(error) from error


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ProblemError(422, f"{name} must be true or false, got {text[:50]!r}")
    return text.lower() in ("true", "1")


def _add_errors(app: FastAPI) -> None:
    def respond(problem: ProblemError) -> JSONResponse:
        return JSONResponse(problem.to_dict(), problem.status, headers=problem.headers, media_type=MEDIA_TYPE)

    async def of_library(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, CalpromptError)
        return respond(problem_of(error))

    async def of_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return respond(ProblemError(422, _sentence(error.errors())))

    async def of_http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
        return respond(ProblemError(error.status_code, HTTP.get(error.status_code, str(error.detail)), **headers))

    async def of_ours(_: Request, error: Exception) -> JSONResponse:
        return respond(ProblemError(500, "the server made a mistake; it is in its log"))

    app.add_exception_handler(CalpromptError, of_library)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(Exception, of_ours)


HTTP = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not take this method; /openapi.json lists what there is",
}


def _sentence(errors: Any) -> str:
    """What is wrong with values, in a sentence."""
    parts = []
    for error in errors[:3]:
        place = [str(each) for each in error["loc"] if each not in ("query", "body", "path")]
        parts.append(f"{'.'.join(place) or 'the body'}: {str(error['msg'])[:200]}")
    return "; ".join(parts)
