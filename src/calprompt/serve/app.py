"""The web application: the JSON API, the page, and what both need while they run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import calprompt
from calprompt.serve.descriptions import describe
from calprompt.serve.failures import add_failures
from calprompt.serve.guard import Guard, known_hosts
from calprompt.serve.marks import MarkBook
from calprompt.serve.measurements import Measurements
from calprompt.serve.routes import add_routes
from calprompt.serve.served_model import ServedModel
from calprompt.serve.service import Service
from calprompt.serve.settings import ServeSettings
from calprompt.serve.static import add_page


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
    measurements = Measurements(watched=model.rule.promised, images_watched=model.image_watch is not None)
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
    add_failures(app)
    add_routes(app, state)
    add_page(app)
    describe(app)
    return app


def mark_book(model: ServedModel, settings: ServeSettings) -> MarkBook:
    """The marks of a model that is served by one process."""
    return MarkBook(
        model.rule,
        model.fingerprint,
        class_names=model.labels,
        false_alarms=settings.false_alarms,
        path=settings.marks,
        keep=settings.keep,
        image_watch=model.image_watch,
        not_watched=model.not_watched,
        image_path=settings.watch,
    )
