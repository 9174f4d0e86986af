"""Requests: bodies received in bounded memory and time, forms taken apart in memory, options of a prediction."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from calprompt.serve.admission import Ticket
from calprompt.serve.engine import Options
from calprompt.serve.problems import ProblemError, sentence_of
from calprompt.text import format_size

Model = TypeVar("Model", bound=BaseModel)
FORM = "multipart/form-data"
RAW = ("image/", "application/octet-stream")
SLOW_START = 10.0  # seconds before a body has to come at some speed
SLOWEST = 16 * 1024  # bytes per second after that
LONGEST_NAME = 200  # characters of an image's name that are kept
MOST_FIELDS = 1100  # of a form: classes and options
FIELD_BYTES = 64 * 1024
HEADER_BYTES = 16 * 1024  # of one part
MOST_PARAMETERS = 100  # of its name: a name of a file may have semicolons


class Upload(NamedTuple):
    """An image that came with a request."""

    name: str  # what its sender calls it
    data: bytes  # the file


class Form(NamedTuple):
    """What came with a request."""

    uploads: list[Upload]  # images
    fields: dict[str, list[str]]  # everything else, text by name


async def parse_form(kind: str, data: bytes, most_images: int) -> Form:
    """The images and fields of a form: between two boundaries are headers, an empty line, and the image or text."""
    boundary = parse_options_header(kind)[1].get(b"boundary")
    if not boundary:
        raise _unreadable("its type says no boundary")
    mark, form, count = b"\r\n--" + boundary, Form([], {}), 0
    place = data.find(mark[2:])
    if place < 0:
        raise _unreadable("its boundary is not in it")
    place += len(mark) - 2
    while not data.startswith(b"--", place):
        head = data.find(b"\r\n\r\n", place, place + HEADER_BYTES)
        if head < 0 and len(data) > place + HEADER_BYTES:
            raise _unreadable(f"a part has headers of more than {HEADER_BYTES // 1024} KB")
        end = data.find(mark, head + 4)
        if head < 0 or end < 0:
            raise _unreadable("it ends too early")
        name, filename = _part_names(data[place:head])
        if name == "image":
            if len(form.uploads) == most_images:
                raise ProblemError(413, f"the form has more than {most_images} images; send them in several requests")
            form.uploads.append(Upload(image_name(filename), data[head + 4 : end]))
        else:
            count += 1
            if count > MOST_FIELDS:
                raise _unreadable(f"it has more than {MOST_FIELDS} fields")
            if end - head - 4 > FIELD_BYTES:
                raise _unreadable(f"its field {name[:50]!r} has more than {FIELD_BYTES // 1024} KB")
            form.fields.setdefault(name, []).append(_text(data[head + 4 : end]))
        place = end + len(mark)
        await asyncio.sleep(0)  # headers of many parts may take seconds: others have their turn
    return form


def _part_names(head: bytes) -> tuple[str, str]:
    """Name and file name of a part, from its headers."""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() != b"content-disposition":
            continue
        if value.count(b";") > MOST_PARAMETERS:
            raise _unreadable(f"a part has more than {MOST_PARAMETERS} parameters")
        options = parse_options_header(value)[1]
        if b"name" in options:
            return _text(options[b"name"]), _text(options.get(b"filename", b""))
    raise _unreadable("a part has no name; its header Content-Disposition has to say it")


def _unreadable(reason: str) -> ProblemError:
    return ProblemError(400, f"the form cannot be read: {reason}")


def image_name(name: str) -> str:
    """A name as it is shown and sent back: without folders and control characters, and not too long.

    >>> image_name("../../etc/frog.jpg"), image_name("C:\\\\photos\\\\frog.jpg"), image_name("a\\nb")
    ('frog.jpg', 'frog.jpg', 'ab')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "image"


def _text(data: bytes) -> str:
    """UTF-8, as browsers send it; anything else is read byte by byte."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


async def read_body(request: Request, ticket: Ticket, *, most: int, timeout: float) -> bytes:
    """The body of a request, which has to arrive in time and not too slowly."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    loop = asyncio.get_running_loop()
    start, data, dropped = loop.time(), bytearray(), False
    try:
        async with asyncio.timeout(timeout) as limit:

            def drop() -> None:
                nonlocal dropped
                dropped = True
                limit.reschedule(loop.time())

            ticket.on_drop = drop
            limit.reschedule(start + min(timeout, SLOW_START))
            async for chunk in request.stream():
                if len(data) + len(chunk) > most:
                    raise _too_large(most)
                ticket.take(size=len(chunk))
                data += chunk
                limit.reschedule(start + min(timeout, SLOW_START + len(data) / SLOWEST))
    except TimeoutError:
        if dropped:
            raise ProblemError(
                429, "the server is full, and this request was the slowest to arrive", Retry_After="5"
            ) from None
        seconds = loop.time() - start
        raise ProblemError(
            408,
            f"the request was not complete after {seconds:.0f} s, with {format_size(len(data))} received; send it "
            "faster, or a smaller image",
        ) from None
    except ClientDisconnect:
        raise ProblemError(400, "the connection was closed before the request was complete") from None
    finally:
        ticket.on_drop = None
    return bytes(data)


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, f"request exceeds the {format_size(most)} limit")


def _type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(request: Request, data: bytes, ticket: Ticket, *, most_images: int) -> Form:
    """The images and fields of a body: raw bytes of an image, or a form."""
    kind = _type(request)
    if kind == FORM:
        ticket.take(size=len(data))
        return await parse_form(request.headers["content-type"], data, most_images)
    if kind.startswith(RAW) or not kind:
        name = unquote(request.headers.get("x-image-name", ""), errors="replace")
        return Form([Upload(image_name(name), data)], {})
    raise ProblemError(
        415,
        f"the body has the type {kind[:100]!r}; send an image as image/jpeg, image/png and so on, as "
        "application/octet-stream, or in a form as multipart/form-data",
    )


def read_json(request: Request, data: bytes, expected: type[Model]) -> Model:
    """The JSON object in a body, checked."""
    kind = _type(request)
    if kind != "application/json":
        raise ProblemError(415, f"the body has the type {kind[:100]!r}; send application/json or multipart/form-data")
    return checked(expected, parse_object(data))


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ProblemError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise ProblemError(422, f"the body must be a JSON object, got {type(found).__name__}")
    return found


def checked(expected: type[Model], values: dict[str, Any], *, strict: bool | None = None) -> Model:
    """The values of a body, checked; those of a form are text, so not strict."""
    try:
        return expected.model_validate(values, strict=strict)
    except ValidationError as error:
        raise ProblemError(422, sentence_of(error.errors())) from None


def options_of(fields: dict[str, list[str]], given: Options) -> Options:
    """Options from the fields of a form, in the place of those in the address."""
    for name in fields.keys() - Options.model_fields.keys():
        known = ", ".join(Options.model_fields)
        raise ProblemError(422, f"there is no option {name[:50]!r}; there are: {known}")
    found = {name: texts if name == "classes" else texts[-1] for name, texts in fields.items()}
    return checked(Options, {**vars(given), **found})
