"""Whatever is raised while a request is answered, as a problem that its client can read."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from calprompt.errors import CalpromptError
from calprompt.serve.problems import MEDIA_TYPE, ProblemError, problem_of

HTTP = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not take this method; /openapi.json lists what there is",
}


def add_failures(app: FastAPI) -> None:
    """Answer errors of the library, of validation, of HTTP and of our own with problems."""

    def respond(problem: ProblemError) -> JSONResponse:
        return JSONResponse(problem.to_dict(), problem.status, headers=problem.headers, media_type=MEDIA_TYPE)

    async def of_library(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, CalpromptError)
        return respond(problem_of(error))

    async def of_validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return respond(ProblemError(422, sentence_of(error.errors())))

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


def sentence_of(errors: Any) -> str:
    """What is wrong with values, in a sentence."""
    parts = []
    for error in errors[:3]:
        place = [str(each) for each in error["loc"] if each not in ("query", "body", "path")]
        parts.append(f"{'.'.join(place) or 'the body'}: {str(error['msg'])[:200]}")
    return "; ".join(parts)
