"""Bodies of requests: received in bounded memory and time, and taken apart in memory, never on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from calprompt.serve.batching import Ticket
from calprompt.serve.problems import ProblemError
from calprompt.text import format_size

LONGEST_NAME = 200  # characters of an image's name that are kept
FIELDS = 1100  # of a form, at most: classes and options
FIELD_BYTES = 64 * 1024
RAW = ("image/", "application/octet-stream")


@dataclass(frozen=True)
class Upload:
    """An image that came with a request.

    Attributes:
        name: What its sender calls it.
        data: The file.
    """

    name: str
    data: bytes


@dataclass(frozen=True)
class Form:
    """What came with a request.

    Attributes:
        uploads: Images.
        fields: Everything else, text by name.
    """

    uploads: list[Upload] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)


async def read_body(request: Request, ticket: Ticket, *, most: int, timeout: float) -> bytes:
    """The body of a request.

    Args:
        request: Whose body has not been read.
        ticket: Takes up its bytes.
        most: Bytes that it may have.
        timeout: Seconds that it may take to arrive.

    Raises:
        ProblemError: if it is too large (413) or too slow (408).
        OverloadedError: if there is no memory for it.
    """
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
                if not length.isdecimal():
                    ticket.take(size=len(chunk))
                data += chunk
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


async def read_form(request: Request, data: bytes, *, most_images: int) -> Form:
    """The images and fields of a body: raw bytes of an image, or a form.

    Args:
        request: Whose body it is.
        data: The body.
        most_images: That it may have.

    Raises:
        ProblemError: if it is of another type (415) or malformed (400), or has too many images (413).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _multipart(request, data, most_images)
    if kind.startswith(RAW) or not kind:
        name = unquote(request.headers.get("x-image-name", ""), errors="replace")
        return Form([Upload(image_name(name), data)])
    raise ProblemError(
        415,
        f"the body has the type {kind!r}; send an image as image/jpeg, image/png and so on, as "
        "application/octet-stream, or in a form as multipart/form-data",
    )


def read_json(request: Request, data: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ProblemError: if it is of another type (415) or malformed (400).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ProblemError(415, f"the body has the type {kind!r}; send application/json or multipart/form-data")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProblemError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise ProblemError(422, f"the body must be a JSON object, got {type(found).__name__}")
    return found


def image_name(name: str) -> str:
    """A name as it is shown and sent back: without folders and control characters, and not too long.

    >>> image_name("../../etc/frog.jpg"), image_name("C:\\\\photos\\\\frog.jpg"), image_name("a\\nb")
    ('frog.jpg', 'frog.jpg', 'ab')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "image"


async def _multipart(request: Request, data: bytes, most_images: int) -> Form:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield data

    parser = MultiPartParser(
        request.headers, stream(), max_files=most_images, max_fields=FIELDS, max_part_size=FIELD_BYTES
    )
    parser.spool_max_size = len(data) + 1  # never large enough to be written to disk
    try:
        parts: FormData = await parser.parse()
    except MultiPartException as error:
        many = "too many files" in error.message.lower()
        detail = f"{error.message.rstrip('.')}; send {most_images} images at most" if many else error.message
        raise ProblemError(413 if many else 400, f"the form cannot be read: {detail}") from None
    except Exception as error:  # what is malformed enough makes the parser raise other errors
        raise ProblemError(400, f"the form cannot be read: {error or type(error).__name__}") from None
    form = Form()
    for key, value in parts.multi_items():
        if isinstance(value, UploadFile):
            if key == "image":
                form.uploads.append(Upload(image_name(value.filename or ""), await value.read()))
        elif key == "image":
            form.uploads.append(Upload("image", value.encode("utf-8", "replace")))
        else:
            form.fields.setdefault(key, []).append(value)
    await parts.close()
    return form
