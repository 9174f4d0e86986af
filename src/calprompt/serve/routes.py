"""The addresses of the API.

GET  /v1/model            classes, promises, track record, limits
POST /v1/predict          one image
POST /v1/predict/batch    several
POST /v1/feedback         an answer was right or wrong
POST /v1/feedback/undo    it was not
GET  /v1/watch            whether the promise still holds, and images are like those of the fit
POST /v1/watch            an admin acknowledges an alarm, or restarts a watch
GET  /v1/models           names of all models; each has all addresses below /models/NAME/ too
GET  /v1/versions         versions of the model, and which of them are in use
POST /v1/versions         an admin switches to a version, goes back, or has one answer in the shadow
GET  /v1/shadow           where the shadow version answers differently, and which one was right
GET  /health /ready /metrics /openapi.json
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse

from calprompt.errors import ImageError
from calprompt.serve import schemas
from calprompt.serve.admission import Ticket
from calprompt.serve.deployment import Deployment
from calprompt.serve.feedback import FeedbackResult
from calprompt.serve.guard import caller_of
from calprompt.serve.keys import ADMIN
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.requests import (
    FORM,
    Classes,
    InAddress,
    Model,
    Upload,
    checked,
    flag,
    options_of,
    read_body,
    read_json,
)
from calprompt.serve.schemas import (
    FEEDBACK_BODY,
    IMAGE_BODY,
    IMAGES_BODY,
    model_info,
    posted,
    problems,
    shown,
    versions_info,
)
from calprompt.serve.service import Service
from calprompt.text import shorten

SMALL_BODY = 64 * 1024  # bytes of one that has no image
NAMES_PER_PLACE = 8  # class names that cost about as much as an image


def deployment_of(request: Request, state: Service) -> Deployment:
    """The model that the address names, or the first one."""
    name = request.scope.get("deployment") or state.models.names[0]
    if name not in state.models.names:
        raise ProblemError(404, f"there is no model {name!r}; there are: {shorten(state.models.names)}")
    if name not in state.deployments:
        raise ProblemError(503, "the server is starting; try again", Retry_After="1")
    return state.deployments[name]


async def take_feedback(request: Request, ticket: Ticket, state: Service) -> tuple[FeedbackResult, bool]:
    """Read feedback and keep it."""
    deployment = deployment_of(request, state)
    is_form = request.headers.get("content-type", "").lower().startswith(FORM)
    image: bytes | None = None
    if is_form:
        form = await state.form(request, ticket, most_images=1)
        values: dict[str, Any] = {name: texts[-1] for name, texts in form.fields.items()}
        if "right" in values:
            values["right"] = flag("right", values["right"])
        if not values.get("class_name"):
            values.pop("class_name", None)
        image = form.uploads[0].data if form.uploads else None
        asked = checked(schemas.FeedbackRequest, values)
    else:
        asked = await read_model(request, schemas.FeedbackRequest, ticket, state)
    receipt, version, view = deployment.read(asked.id)
    if asked.class_name is not None and (not asked.class_name.isprintable() or not asked.class_name.strip()):
        raise ProblemError(422, "class_name must be a name without line breaks and control characters")
    kind = None
    if image is not None:
        try:
            ticket.take(images=1)
            decoded = await state.engine.decoders.decode(image, view, ticket.client)
        except ImageError as error:
            raise problem_of(error) from error
        if hashlib.sha256(decoded.pixels.tobytes()).hexdigest() != receipt.image:
            raise ProblemError(422, "image is not the one that was answered")
        kind = decoded.format
    author = caller_of(request).key.name
    details: dict[str, Any] = {"class_name": asked.class_name, "image": image, "format": kind, "author": author}
    found = await state.feedback((deployment.name, version), "add", receipt, asked.right, **details)
    return found, asked.right


async def read_model(request: Request, kind: type[Model], ticket: Ticket, state: Service) -> Model:
    """A small JSON body, checked."""
    data = await read_body(request, ticket, most=SMALL_BODY, timeout=state.settings.timeout)
    return checked(kind, read_json(request, data))


def take_places(ticket: Ticket, classes: Sequence[str]) -> None:
    """Take up room for the texts of other classes, which cost as much as images; never more than there can be."""
    room = ticket.admission
    ticket.take(images=min(-(-len(classes) // NAMES_PER_PLACE), room.share(room.most_images) - ticket.images))


def add_routes(app: FastAPI, state: Service) -> None:
    """Add the routes of the API to an app."""

    @app.get("/v1/model", response_model=schemas.ModelInfo, responses=problems(401, 422, 429))
    async def model(request: Request, classes: Classes = []) -> dict[str, Any]:  # noqa: B006
        """The model: classes, promises, track record and limits; with `classes`, as it is with these instead."""
        with state.ticket(request) as ticket:
            take_places(ticket, classes)
            own = deployment_of(request, state).active
            return model_info(await state.engine.variant(own, classes), state.settings)

    @posted(app, "/v1/predict", schemas.AnswerModel, IMAGE_BODY, 503)
    async def predict(request: Request, given: InAddress) -> dict[str, Any]:
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
            deployment = deployment_of(request, state)
            return shown(*await state.answer(deployment, form.uploads[0], options, caller_of(request)), options)

    @posted(app, "/v1/predict/batch", schemas.BatchModel, IMAGES_BODY, 503)
    async def predict_batch(request: Request, given: InAddress) -> dict[str, Any]:
        """What several images show, in their order; one that cannot be answered has its problem in its place."""
        with state.ticket(request) as ticket:
            form = await state.form(request, ticket, most_images=state.settings.max_images)
            if not form.uploads:
                raise ProblemError(422, "send one or more images, each as a part 'image' of the form")
            options = options_of(form.fields, given)
            ticket.take(images=len(form.uploads))
            take_places(ticket, options.classes)
            deployment = deployment_of(request, state)
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
        state.measurements.on_feedback(right, result)
        return vars(result)

    @posted(app, "/v1/feedback/undo", schemas.WatchModel, schemas.UndoRequest, 404, 507)
    async def undo(request: Request) -> dict[str, Any]:
        """Take feedback back: one's own, or as an admin anybody's. It stays on record as undone."""
        with state.ticket(request) as ticket:
            asked = await read_model(request, schemas.UndoRequest, ticket, state)
        deployment, key = deployment_of(request, state), caller_of(request).key
        receipt, version, _ = deployment.read(asked.id)
        who: dict[str, Any] = {"author": key.name, "is_admin": key.may(ADMIN)}
        return dict(await state.feedback((deployment.name, version), "undo", receipt, **who))

    @app.get("/v1/watch", response_model=schemas.WatchModel, responses=problems(401))
    async def watch(request: Request) -> dict[str, Any]:
        """Whether the promise on errors still holds, from feedback on its answers, and what all images say."""
        return await state.watch(deployment_of(request, state))

    @posted(app, "/v1/watch", schemas.WatchModel, schemas.AlarmRequest, 507)
    async def handle_alarm(request: Request) -> dict[str, Any]:
        """Acknowledge an alarm, or restart a watch, for instance with a new camera; both stay on record."""
        with state.ticket(request) as ticket:
            asked = await read_model(request, schemas.AlarmRequest, ticket, state)
        author = caller_of(request).key.name
        what = (asked.watch, asked.action, asked.note)
        return dict(await state.feedback(deployment_of(request, state).active, "handle_alarm", *what, author=author))

    @app.get("/v1/models", response_model=schemas.ModelsModel, responses=problems(401))
    async def models() -> dict[str, Any]:
        """The models of this server. All addresses are those of the first one; below `path`, those of another."""
        shown = [{**versions_info(each, state), "path": f"models/{each.name}/"} for each in state.deployments.values()]
        return {"models": shown}

    @app.get("/v1/versions", response_model=schemas.VersionsModel, responses=problems(401))
    async def versions(request: Request) -> dict[str, Any]:
        """The versions of the model, the newest first, and which of them are in use."""
        return versions_info(deployment_of(request, state), state)

    @posted(app, "/v1/versions", schemas.VersionsModel, schemas.VersionRequest, 409)
    async def change_version(request: Request) -> dict[str, Any]:
        """Switch to a version once it is loaded and tried on the images answered last, go back to the one before, or
        have one answer in the shadow (null: none). No request is dropped."""
        with state.ticket(request) as ticket:
            asked = await read_model(request, schemas.VersionRequest, ticket, state)
        deployment = deployment_of(request, state)
        caller_of(request).notes["version"] = f"{asked.action} {asked.version or ''}".strip()
        sample = await state.change(deployment, asked.action, asked.version)
        return {**versions_info(deployment, state), "sample": sample}

    @app.get("/v1/shadow", response_model=schemas.ComparisonModel, responses=problems(401, 404))
    async def shadow(request: Request) -> dict[str, Any]:
        """Where the shadow version answers differently, and which of the two was right by the feedback."""
        return await state.compare(deployment_of(request, state))

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
