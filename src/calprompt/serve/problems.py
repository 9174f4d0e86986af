"""Errors as clients see them (RFC 9457): a status, and a sentence that also says what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from calprompt.errors import CalpromptError, ImageError
from calprompt.text import visible

MEDIA_TYPE = "application/problem+json"


class ProblemError(CalpromptError):
    """What is wrong with a request: HTTP status, a sentence that also says what to do, headers such as Retry_After."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail), {"headers": self.headers}

    def to_dict(self, request_id: str | None = None) -> dict[str, Any]:
        """As clients get it."""
        found = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": visible(self.detail),
        }
        return found if request_id is None else {**found, "request_id": request_id}


def problem_of(error: CalpromptError) -> ProblemError:
    """The problem that an error of the library is for a client."""
    if isinstance(error, ProblemError):
        return error
    return ProblemError(
        422, f"the image cannot be read: {error.reason}" if isinstance(error, ImageError) else str(error)
    )


def sentence_of(errors: Any) -> str:
    """What is wrong with values, in a sentence."""
    parts = []
    for error in errors[:3]:
        place = [str(each) for each in error["loc"] if each not in ("query", "body", "path")]
        parts.append(f"{'.'.join(place) or 'the body'}: {str(error['msg'])[:200]}")
    return "; ".join(parts)
