"""Errors as clients see them: application/problem+json (RFC 9457), with a sentence that says what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from calprompt.errors import CalpromptError, ImageError
from calprompt.serve.admission import OverloadedError
from calprompt.serve.decoder import DecoderLostError
from calprompt.serve.feedback import DuplicateFeedbackError, NoFeedbackError, NotYoursError
from calprompt.serve.feedback_store import NoRoomError
from calprompt.serve.keeper import SwitchError
from calprompt.text import visible

MEDIA_TYPE = "application/problem+json"
INFERENCE = "/v2"  # addresses of the Open Inference Protocol, which has errors of its own
STATUSES = {DuplicateFeedbackError: 409, NoFeedbackError: 404, NotYoursError: 403, NoRoomError: 507, SwitchError: 409}
HTTP_DETAILS = {
    404: "there is nothing at this address; /openapi.json lists what there is",
    405: "this address does not take this method; /openapi.json lists what there is",
}


class ProblemError(CalpromptError):
    """What is wrong with a request: HTTP status, a sentence that also says what to do, headers such as Retry_After."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def to_dict(self, request_id: str | None = None) -> dict[str, Any]:
        """As clients get it."""
        found = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": visible(self.detail),
        }
        return found if request_id is None else {**found, "request_id": request_id}

    def response(self, path: str = "", request_id: str | None = None) -> JSONResponse:
        """The whole answer."""
        body = self.to_dict(request_id)
        if path.startswith(INFERENCE):
            return JSONResponse({"error": body["detail"]}, self.status, headers=self.headers)
        return JSONResponse(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def problem_of(error: CalpromptError) -> ProblemError:
    """The problem that an error of the library is for a client."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, OverloadedError):
        return ProblemError(429, str(error), Retry_After=str(error.retry_after))
    if isinstance(error, DecoderLostError):
        return ProblemError(503, str(error), Retry_After="1")
    if isinstance(error, ImageError):
        return ProblemError(422, f"the image cannot be read: {error.reason}")
    return ProblemError(next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 422), str(error))


def add_failures(app: FastAPI) -> None:
    """Answer errors of the library, of validation and of HTTP with problems; the guard answers all others."""

    def respond(request: Request, problem: ProblemError) -> JSONResponse:
        return problem.response(request.scope["path"], request.scope["caller"].id)

    @app.exception_handler(CalpromptError)
    async def of_library(request: Request, error: CalpromptError) -> JSONResponse:
        return respond(request, problem_of(error))

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return respond(request, ProblemError(422, sentence_of(error.errors())))

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        detail = HTTP_DETAILS.get(error.status_code, str(error.detail))
        return respond(request, ProblemError(error.status_code, detail, **(error.headers or {})))


def sentence_of(errors: Any) -> str:
    """What is wrong with values, in a sentence."""
    parts = []
    for error in errors[:3]:
        place = [str(each) for each in error["loc"] if each not in ("query", "body", "path")]
        parts.append(f"{'.'.join(place) or 'the body'}: {str(error['msg'])[:200]}")
    return "; ".join(parts)
