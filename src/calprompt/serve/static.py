"""The page: files of the package, read once."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request, Response

from calprompt.serve.problems import ProblemError

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

    @app.get("/", include_in_schema=False)
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
