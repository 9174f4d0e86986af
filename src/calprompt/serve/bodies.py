"""Bodies of requests: received in bounded memory and time, and read as an image, a form or JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request

from calprompt.serve.batching import Ticket
from calprompt.serve.forms import Form, Upload, image_name, parse_form
from calprompt.serve.problems import ProblemError
from calprompt.text import format_size

RAW = ("image/", "application/octet-stream")


async def read_body(request: Request, ticket: Ticket, *, most: int, timeout: float) -> bytes:
    """The body of a request."""
    length = request.headers.get("content-length", "")
    if length.isdecimal():
        if int(length) > most:
            raise _too_large(int(length), most)
        ticket.take(size=int(length))
    data = bytearray()
    try:
        async with asyncio.timeout(timeout):
            async for chunk in request.stream():
                if len(data) + len(chunk) > most:
                    raise _too_large(len(data) + len(chunk), most)
                data += chunk
                ticket.take(size=max(0, len(data) - ticket.bytes))  # a length that was too small, or none
    except TimeoutError:
        raise ProblemError(
            408, f"the request took longer than {timeout:g} s to arrive; send it faster, or a smaller image"
        ) from None
    except ClientDisconnect:
        raise ProblemError(400, "the connection was closed before the request was complete") from None
    return bytes(data)


def _too_large(size: int, most: int) -> ProblemError:
    return ProblemError(
        413, f"the request has {format_size(size)} or more, and {format_size(most)} is the most that is taken"
    )


async def read_form(request: Request, data: bytes, ticket: Ticket, *, most_images: int) -> Form:
    """The images and fields of a body: raw bytes of an image, or a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        ticket.take(size=len(data))
        return await parse_form(request.headers["content-type"], data, most_images=most_images)
    if kind.startswith(RAW) or not kind:
        name = unquote(request.headers.get("x-image-name", ""), errors="replace")
        return Form([Upload(image_name(name), data)])
    raise ProblemError(
        415,
        f"the body has the type {kind[:100]!r}; send an image as image/jpeg, image/png and so on, as "
        "application/octet-stream, or in a form as multipart/form-data",
    )


def read_json(request: Request, data: bytes) -> dict[str, Any]:
    """The JSON object in a body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ProblemError(415, f"the body has the type {kind[:100]!r}; send application/json or multipart/form-data")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProblemError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise ProblemError(422, f"the body must be a JSON object, got {type(found).__name__}")
    return found
