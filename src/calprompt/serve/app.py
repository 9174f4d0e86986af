"""The web application: the JSON API, the page, and what both need while they run."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response

import calprompt
from calprompt.serve.guard import Caller, Guard, KeyRing, known_hosts
from calprompt.serve.improving import Refit, add_improving, samples_in
from calprompt.serve.inference_protocol import add_inference_protocol
from calprompt.serve.keeper import Keeper, ModelFacts
from calprompt.serve.measurements import AccessLog
from calprompt.serve.models import Models
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
            keeper.open(ModelFacts.of(each))
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
    samples = None if settings.samples is None else samples_in(settings.samples)
    refit = Refit(models, settings)
    add_improving(app, state, samples, refit)
    add_inference_protocol(app, state)
    add_page(app)
    describe(app)
    return app
