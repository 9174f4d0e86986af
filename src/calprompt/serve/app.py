"""The web application: the addresses of the JSON API, the page, and what both need while they run.

/v1/predict, /v1/feedback, …            of the first model; GET /openapi.json describes them
/models/NAME/v1/predict, …              the same of each model
/v2/…                                   the Open Inference Protocol, see `inference_protocol`
/ /health /ready /metrics               the page, probes, and measurements for Prometheus
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

import calprompt
from calprompt.errors import CalpromptError
from calprompt.serve import schemas
from calprompt.serve.admission import Ticket
from calprompt.serve.engine import CLASSES, Options
from calprompt.serve.guard import Caller, Guard, KeyRing, caller_of, known_hosts, respond
from calprompt.serve.improving import add_improving
from calprompt.serve.inference_protocol import add_inference_protocol
from calprompt.serve.measurements import AccessLog
from calprompt.serve.models import Keeper, Models
from calprompt.serve.problems import ProblemError, problem_of, sentence_of
from calprompt.serve.requests import FORM, Upload, checked, options_of
from calprompt.serve.schemas import (
    FEEDBACK_BODY,
    IMAGE_BODY,
    IMAGES_BODY,
    describe,
    model_info,
    posted,
    problems,
    shown,
)
from calprompt.serve.served_model import ServedModel
from calprompt.serve.service import Service
from calprompt.serve.settings import ADMIN, ServeSettings

NAMES_PER_PLACE = 8  # class names that cost about as much as an image
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def add_page(app: FastAPI) -> None:
    """Add the page and its files to an app."""
    found = {each.name: each.read_bytes() for each in files("calprompt.serve").joinpath("page").iterdir()}

    @app.get("/favicon.ico", include_in_schema=False)
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    @app.get("/static/{name}", include_in_schema=False)
    async def file(request: Request) -> Response:
        name = request.path_params.get("name") or ("index.html" if request.scope["path"] == "/" else "icon.svg")
        kind = TYPES.get(name.rpartition(".")[2])
        if name not in found or kind is None:
            raise ProblemError(404, "there is nothing at this address")
        tag = f'"{hashlib.sha256(found[name]).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(found[name], media_type=kind, headers=headers)


HTTP_DETAILS = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not take this method; /openapi.json lists what there is",
}


def add_failures(app: FastAPI) -> None:
    """Answer errors of the library, of validation and of HTTP with problems; the guard answers all others."""

    def answer(request: Request, problem: ProblemError) -> JSONResponse:
        return respond(problem, request.scope["path"], request.scope["caller"].id)

    @app.exception_handler(CalpromptError)
    async def of_library(request: Request, error: CalpromptError) -> JSONResponse:
        return answer(request, problem_of(error))

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(request, ProblemError(422, sentence_of(error.errors())))

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        detail = HTTP_DETAILS.get(error.status_code, str(error.detail))
        return answer(request, ProblemError(error.status_code, detail, **(error.headers or {})))


def create_app(
    model: ServedModel | Models, settings: ServeSettings | None = None, *, keeper: Any | None = None
) -> FastAPI:
    """The application that serves one or several models.

    Args:
        model: What is served; `load_served` reads a model from a folder, and `Models` finds several with versions.
        settings: How.
        keeper: Owns the feedback, if another process does.
    """
    settings = settings or ServeSettings()
    models = Models(model) if isinstance(model, ServedModel) else model
    if keeper is None:
        keeper = Keeper(models, settings)
        for each in models.load_active():  # what is wrong with a file of feedback is said before a port is opened
            keeper.open(each)
    state = Service(models, settings, keeper)
    measurements = state.measurements
    log = None if settings.access_log is None else AccessLog(settings.access_log)

    def observe(caller: Caller, method: str, route: str, status: int, seconds: float) -> None:
        measurements.on_request(route, status, seconds)
        measurements.on_engine(state.engine)
        if log is not None:
            log.on_request(caller, method, route, status, seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await state.start()
        try:
            yield
        finally:
            await refit.stop()
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
        keys=KeyRing(settings.all_keys, settings.token_file),
        hosts=known_hosts(settings.host, settings.allowed_hosts) if settings.is_local or settings.allowed_hosts else (),
        proxies=settings.trusted_proxies,
        observe=observe,
    )
    add_failures(app)
    add_routes(app, state)
    refit = add_improving(app, state)
    add_inference_protocol(app, state)
    add_page(app)
    describe(app)
    return app


async def take_feedback(request: Request, ticket: Ticket, state: Service) -> tuple[dict[str, Any], bool]:
    """Read feedback and keep it."""
    deployment = state.deployment(request)
    is_form = request.headers.get("content-type", "").lower().startswith(FORM)
    image: bytes | None = None
    if is_form:
        form = await state.form(request, ticket, most_images=1)
        values: dict[str, Any] = {name: texts[-1] for name, texts in form.fields.items()}
        if not values.get("class_name"):
            values.pop("class_name", None)
        image = form.uploads[0].data if form.uploads else None
        asked = checked(schemas.FeedbackRequest, values, strict=False)
    else:
        asked = await state.read(request, schemas.FeedbackRequest, ticket)
    receipt, version, view = deployment.read(asked.id)
    if asked.class_name is not None and (not asked.class_name.isprintable() or not asked.class_name.strip()):
        raise ProblemError(422, "class_name must be a name without line breaks and control characters")
    kind = None
    if image is not None:
        ticket.take(images=1)
        decoded = await state.engine.decoders.decode(image, view, ticket.client)
        if hashlib.sha256(decoded.pixels.tobytes()).hexdigest() != receipt.image:
            raise ProblemError(422, "image is not the one that was answered")
        kind = decoded.format
    author = caller_of(request).key.name
    details: dict[str, Any] = {"class_name": asked.class_name, "image": image, "format": kind, "author": author}
    found = await state.feedback((deployment.name, version), "add", receipt, asked.right, **details)
    return found, asked.right


def take_places(ticket: Ticket, classes: Sequence[str]) -> None:
    """Take up room for the texts of other classes, which cost as much as images; never more than there can be."""
    room = ticket.admission
    ticket.take(images=min(-(-len(classes) // NAMES_PER_PLACE), room.share(room.most_images) - ticket.images))


def add_routes(app: FastAPI, state: Service) -> None:
    """Add the routes of the API to an app."""

    @app.get("/v1/model", response_model=schemas.ModelInfo, responses=problems(401, 422, 429))
    async def model(
        request: Request,
        classes: Annotated[list[str], Query(description=CLASSES)] = [],  # noqa: B006
    ) -> dict[str, Any]:
        """The model: classes, promises, track record and limits; with `classes`, as it is with these instead."""
        with state.ticket(request) as ticket:
            take_places(ticket, classes)
            own = state.deployment(request).active
            return model_info(await state.engine.variant(own, classes), state.settings)

    @posted(app, "/v1/predict", schemas.AnswerModel, IMAGE_BODY, 503)
    async def predict(request: Request, given: Annotated[Options, Query()]) -> dict[str, Any]:
        """What an image shows, with calibrated probabilities; or that the model is unsure, or that it is none of these.

        The image is the body itself, or a part `image` of a form, whose other fields may hold the options.
        """
        with state.ticket(request) as ticket:
            form = await state.form(request, ticket, most_images=2)
            if len(form.uploads) != 1:
                raise ProblemError(
                    422, f"send one image as 'image', got {len(form.uploads)}; several go to /v1/predict/batch"
                )
            options = options_of(form.fields, given)
            ticket.take(images=1)
            take_places(ticket, options.classes)
            deployment = state.deployment(request)
            return shown(*await state.answer(deployment, form.uploads[0], options, caller_of(request)), options)

    @posted(app, "/v1/predict/batch", schemas.BatchModel, IMAGES_BODY, 503)
    async def predict_batch(request: Request, given: Annotated[Options, Query()]) -> dict[str, Any]:
        """What several images show, in their order; one that cannot be answered has its problem in its place."""
        with state.ticket(request) as ticket:
            form = await state.form(request, ticket, most_images=state.settings.max_images)
            if not form.uploads:
                raise ProblemError(422, "send one or more images, each as a part 'image' of the form")
            options = options_of(form.fields, given)
            ticket.take(images=len(form.uploads))
            take_places(ticket, options.classes)
            deployment = state.deployment(request)
            variant = await state.engine.variant(deployment.active, options.classes)
            variant.set_rule(options.coverage, options.per_class)  # what is wrong with the options is told once

            async def one(upload: Upload) -> dict[str, Any]:
                try:
                    return shown(*await state.answer(deployment, upload, options, caller_of(request)), options)
                except ProblemError as problem:
                    return {"name": upload.name, "problem": problem.to_dict()}

            return {"answers": await asyncio.gather(*map(one, form.uploads))}

    @posted(app, "/v1/feedback", schemas.FeedbackModel, FEEDBACK_BODY, 409, 503, 507)
    async def feedback(request: Request) -> dict[str, Any]:
        """Say that an answer was right or wrong; with its image, if the server keeps images to fit again."""
        with state.ticket(request) as ticket:
            result, right = await take_feedback(request, ticket, state)
        state.measurements.on_feedback(right, result["counted"])
        return result

    @posted(app, "/v1/feedback/undo", schemas.WatchModel, schemas.UndoRequest, 404, 507)
    async def undo(request: Request) -> dict[str, Any]:
        """Take feedback back: one's own, or as an admin anybody's. It stays on record as undone."""
        with state.ticket(request) as ticket:
            asked = await state.read(request, schemas.UndoRequest, ticket)
        deployment, key = state.deployment(request), caller_of(request).key
        receipt, version, _ = deployment.read(asked.id)
        who: dict[str, Any] = {"author": key.name, "is_admin": key.may(ADMIN)}
        return dict(await state.feedback((deployment.name, version), "undo", receipt, **who))

    @app.get("/v1/watch", response_model=schemas.WatchModel, responses=problems(401))
    async def watch(request: Request) -> dict[str, Any]:
        """Whether the promise on errors still holds, from feedback on its answers, and what all images say."""
        return await state.watch(state.deployment(request))

    @posted(app, "/v1/watch", schemas.WatchModel, schemas.AlarmRequest, 507)
    async def handle_alarm(request: Request) -> dict[str, Any]:
        """Acknowledge an alarm, or restart a watch, for instance with a new camera; both stay on record."""
        with state.ticket(request) as ticket:
            asked = await state.read(request, schemas.AlarmRequest, ticket)
        author = caller_of(request).key.name
        what = (asked.watch, asked.action, asked.note)
        return dict(await state.feedback(state.deployment(request).active, "handle_alarm", *what, author=author))

    @app.get("/v1/models", response_model=schemas.ModelsModel, responses=problems(401))
    async def models() -> dict[str, Any]:
        """The models of this server. All addresses are those of the first one; below `path`, those of another."""
        shown = [{**state.versions(each), "path": f"models/{each.name}/"} for each in state.deployments.values()]
        return {"models": shown}

    @app.get("/v1/versions", response_model=schemas.VersionsModel, responses=problems(401))
    async def versions(request: Request) -> dict[str, Any]:
        """The versions of the model, the newest first, and which of them are in use."""
        return state.versions(state.deployment(request))

    @posted(app, "/v1/versions", schemas.VersionsModel, schemas.VersionRequest, 409)
    async def change_version(request: Request) -> dict[str, Any]:
        """Switch to a version once it is loaded and tried on the images answered last, go back to the one before, or
        have one answer in the shadow (null: none). No request is dropped."""
        with state.ticket(request) as ticket:
            asked = await state.read(request, schemas.VersionRequest, ticket)
        deployment = state.deployment(request)
        caller_of(request).notes["version"] = f"{asked.action} {asked.version or ''}".strip()
        sample = await state.change(deployment, asked.action, asked.version)
        return {**state.versions(deployment), "sample": sample}

    @app.get("/v1/shadow", response_model=schemas.ComparisonModel, responses=problems(401, 404))
    async def shadow(request: Request) -> dict[str, Any]:
        """Where the shadow version answers differently, and which of the two was right by the feedback."""
        return await state.compare(state.deployment(request))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_model=schemas.Status)
    async def health() -> dict[str, str]:
        """Whether the process runs."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", response_model=schemas.Status, responses=problems(503))
    async def ready() -> dict[str, str]:
        """Whether it can answer images now."""
        if not state.ready:
            raise ProblemError(503, "not ready to answer images", Retry_After="1")
        return {"status": "ready"}

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        watches = {name: await state.watch(each) for name, each in state.deployments.items()}
        text = state.measurements.text(state.engine, watches)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())
