"""The addresses of the API.

GET  /v1/model            classes, promises, track record, limits
POST /v1/predict          one image
POST /v1/predict/batch    several
POST /v1/marks            an answer was right or wrong
GET  /v1/watch            whether the promise still holds, and images are like those of the fit
GET  /health /ready /metrics /openapi.json
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse

from calprompt.serve import schemas
from calprompt.serve.descriptions import IMAGE_BODY, IMAGES_BODY, MARK_BODY, PROBLEMS, model_info
from calprompt.serve.forms import Upload
from calprompt.serve.marking import take_mark
from calprompt.serve.options import Classes, InAddress, options_of
from calprompt.serve.problems import ProblemError
from calprompt.serve.service import Service


def add_routes(app: FastAPI, state: Service) -> None:
    """Add the routes of the API to an app."""

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
    async def predict(request: Request, given: InAddress) -> dict[str, Any]:
        """What an image shows, with calibrated probabilities; or that the model is unsure, or that it is none of these.

        The image is the body itself, or a part `image` of a form, whose other fields may hold the options.
        """
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
    async def predict_batch(request: Request, given: InAddress) -> dict[str, Any]:
        """What several images show, in their order; one that cannot be answered has its problem in its place."""
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
        responses=PROBLEMS(400, 401, 403, 408, 409, 413, 415, 422, 429, 503, 507),
        openapi_extra=MARK_BODY,
    )
    async def marks(request: Request) -> dict[str, Any]:
        """Mark an answer right or wrong; with its image, if the server keeps images to fit again."""
        with state.running.admission.ticket() as ticket:
            mark, right = await take_mark(request, ticket, state)
        state.measurements.on_mark(right, mark)
        return {"counted": mark.counted, "reason": mark.reason, "kept": mark.kept, "watch": mark.watch}

    @app.get("/v1/watch", response_model=schemas.WatchModel, responses=PROBLEMS(401))
    async def watch() -> dict[str, Any]:
        """Whether the promise on errors still holds, from the answers that were marked, and what all images say."""
        return dict(await state.watch())

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
        text = state.measurements.text(state.running, await state.watch())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        """This description."""
        return JSONResponse(app.openapi())
