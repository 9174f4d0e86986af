"""The web application: the JSON API, the page, and what both need while they run."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response

import calprompt
from calprompt.serve.feedback import FeedbackBook
from calprompt.serve.guard import Caller, Guard, KeyRing, known_hosts
from calprompt.serve.measurements import AccessLog, Measurements
from calprompt.serve.problems import ProblemError, add_failures
from calprompt.serve.routes import add_routes
from calprompt.serve.schemas import describe
from calprompt.serve.served_model import ServedModel
from calprompt.serve.service import Service
from calprompt.serve.settings import ServeSettings

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"


def add_page(app: FastAPI) -> None:
    """Add the page and its files to an app."""
    found = {each.name: each.read_bytes() for each in files("calprompt.serve").joinpath("page").iterdir()}
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in found.items()}

    def send(name: str, request: Request) -> Response:
        headers = {"ETag": tags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(found[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index(request: Request) -> Response:
        return send(INDEX, request)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in found or name.rpartition(".")[2] not in TYPES:
            raise ProblemError(404, "there is nothing at this address")
        return send(name, request)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return send("icon.svg", request)


def create_app(
    model: ServedModel, settings: ServeSettings | None = None, *, feedback: FeedbackBook | Any | None = None
) -> FastAPI:
    """The application that serves a model.

    Args:
        model: What is served; `load_served` reads one from a folder.
        settings: How.
        feedback: Where feedback is counted; a `FeedbackBook` of its own, unless given.
    """
    settings = settings or ServeSettings()
    book = feedback if feedback is not None else feedback_book(model, settings)
    measurements = Measurements(watched=model.rule.promised, images_watched=model.image_watch is not None)
    state = Service(model, settings, book, measurements)
    log = None if settings.access_log is None else AccessLog(settings.access_log)

    def observe(caller: Caller, method: str, route: str, status: int, seconds: float) -> None:
        measurements.on_request(route, status, seconds)
        if log is not None:
            log.on_request(caller, method, route, status, seconds)

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
        keys=KeyRing(settings.all_keys, settings.token_file),
        hosts=known_hosts(settings.host, settings.allowed_hosts) if settings.is_local or settings.allowed_hosts else (),
        proxies=settings.trusted_proxies,
        observe=observe,
    )
    add_failures(app)
    add_routes(app, state)
    add_page(app)
    describe(app)
    return app


def feedback_book(model: ServedModel, settings: ServeSettings) -> FeedbackBook:
    """The feedback on a model that is served by one process."""
    return FeedbackBook(
        model.rule,
        model.fingerprint,
        class_names=model.labels,
        false_alarms=settings.false_alarms,
        path=settings.feedback,
        keep=settings.keep,
        keep_bytes=settings.keep_bytes,
        image_watch=model.image_watch,
        not_watched=model.not_watched,
        image_path=settings.watch,
    )
