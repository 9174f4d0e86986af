"""Errors as clients see them: application/problem+json (RFC 9457), with a sentence that says what to do."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from calprompt.errors import CalpromptError, ImageError
from calprompt.serve.batching import OverloadedError
from calprompt.serve.decoders import DecoderLostError
from calprompt.serve.mark_store import NoRoomError
from calprompt.serve.marks import MarkedAlreadyError
from calprompt.text import visible

MEDIA_TYPE = "application/problem+json"


class ProblemError(CalpromptError):
    """What is wrong with a request.

    Args:
        status: HTTP status code.
        detail: A sentence that says what is wrong and what to do.
        headers: Of the response, such as Retry-After.
    """

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def to_dict(self) -> dict[str, Any]:
        """As clients get it."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": visible(self.detail),
        }

    def body(self) -> bytes:
        """The body of the response."""
        return json.dumps(self.to_dict(), ensure_ascii=False).encode()


def problem_of(error: CalpromptError) -> ProblemError:
    """The problem that an error of the library is for a client."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, OverloadedError):
        return ProblemError(429, str(error), Retry_After=str(error.retry_after))
    if isinstance(error, DecoderLostError):
        return ProblemError(503, str(error), Retry_After="1")
    if isinstance(error, MarkedAlreadyError):
        return ProblemError(409, str(error))
    if isinstance(error, NoRoomError):
        return ProblemError(507, str(error))
    if isinstance(error, ImageError):
        return ProblemError(422, f"the image cannot be read: {error.reason}")
    return ProblemError(422, str(error))
