"""Requests: bodies received in bounded memory and time, forms taken apart in memory, options of a prediction."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from fastapi import Depends, Query
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from calprompt.errors import SettingError
from calprompt.serve.admission import OverloadedError, Ticket
from calprompt.serve.engine import TOP, Options
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.served_model import MOST_CHARACTERS
from calprompt.text import format_size

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

RAW = ("image/", "application/octet-stream")
SLOW_START = 10.0  # seconds before a body has to come at some speed
SLOWEST = 16 * 1024  # bytes per second after that
LONGEST_NAME = 200  # characters of an image's name that are kept
MOST_FIELDS = 1100  # of a form: classes and options
FIELD_BYTES = 64 * 1024
HEADER_BYTES = 16 * 1024  # of one part
SLICE = 2**20  # bytes that are parsed before others have their turn


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


async def parse_form(kind: str, data: bytes, *, most_images: int) -> Form:
    """The images and fields of a form."""
    boundary = parse_options_header(kind)[1].get(b"boundary")
    if not boundary:
        raise _unreadable("its type says no boundary")
    collector = _Collector(most_images)
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        for start in range(0, len(data), SLICE):
            parser.write(data[start : start + SLICE])
            await asyncio.sleep(0)
        parser.finalize()
    except FormParserError as error:
        raise _unreadable(str(error)) from None
    if not collector.complete:
        raise _unreadable("it ends too early")
    return collector.form


def _unreadable(reason: str) -> ProblemError:
    return ProblemError(400, f"the form cannot be read: {reason}")


def image_name(name: str) -> str:
    """A name as it is shown and sent back: without folders and control characters, and not too long.

    >>> image_name("../../etc/frog.jpg"), image_name("C:\\\\photos\\\\frog.jpg"), image_name("a\\nb")
    ('frog.jpg', 'frog.jpg', 'ab')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:LONGEST_NAME] or "image"


class _Collector:
    """Collects what the parser finds, and stops at too much."""

    def __init__(self, most_images: int) -> None:
        self.form = Form()
        self.most_images = most_images
        self.complete = False
        self.fields = 0
        self.begin()

    def callbacks(self) -> MultipartCallbacks:
        """What the parser calls. They are not kept: the cycle would keep the images until the next full collection."""
        return {
            "on_part_begin": self.begin,
            "on_header_field": self.on_header_name,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_headers_finished": self.on_headers_finished,
            "on_part_data": self.on_data,
            "on_part_end": self.on_part_end,
            "on_end": self.on_end,
        }

    def begin(self) -> None:
        self.name, self.filename = "", ""
        self.is_image = False
        self.data = bytearray()
        self.disposition = b""
        self.header_name, self.header_value = bytearray(), bytearray()
        self.header_bytes = 0

    def on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self.header_name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self.header_value += data[start:end]

    def _count_header(self, size: int) -> None:
        self.header_bytes += size
        if self.header_bytes > HEADER_BYTES:
            raise _unreadable(f"a part has headers of more than {HEADER_BYTES // 1024} KB")

    def on_header_end(self) -> None:
        if self.header_name.lower() == b"content-disposition":
            self.disposition = bytes(self.header_value)
        self.header_name, self.header_value = bytearray(), bytearray()

    def on_headers_finished(self) -> None:
        options = parse_options_header(self.disposition)[1]
        if b"name" not in options:
            raise _unreadable("a part has no name; its header Content-Disposition has to say it")
        self.name, self.filename = _text(options[b"name"]), _text(options.get(b"filename", b""))
        self.is_image = self.name == "image"
        if self.is_image and len(self.form.uploads) == self.most_images:
            raise ProblemError(413, f"the form has more than {self.most_images} images; send them in several requests")
        self.fields += not self.is_image
        if self.fields > MOST_FIELDS:
            raise _unreadable(f"it has more than {MOST_FIELDS} fields")

    def on_data(self, data: bytes, start: int, end: int) -> None:
        if not self.is_image and len(self.data) + end - start > FIELD_BYTES:
            raise _unreadable(f"its field {self.name[:50]!r} has more than {FIELD_BYTES // 1024} KB")
        self.data += data[start:end]

    def on_part_end(self) -> None:
        data = bytes(self.data)
        if self.is_image:
            self.form.uploads.append(Upload(image_name(self.filename), data))
        else:
            self.form.fields.setdefault(self.name, []).append(_text(data))
        self.data = bytearray()

    def on_end(self) -> None:
        self.complete = True


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
            raise OverloadedError("the server is full, and this request was the slowest to arrive", 5) from None
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


Coverage = Annotated[float | None, Query(ge=0, le=1, description="Add the prediction set of this coverage.")]
PerClass = Annotated[bool, Query(description="Of sets whose coverage holds for each class by itself.")]
Threshold = Annotated[float | None, Query(ge=0, le=1, description="Call answers below this unsure.")]
Classes = Annotated[list[str], Query(description="Instead of the model's own classes; promises are withdrawn.")]
Top = Annotated[int, Query(ge=1, le=100_000, description="How many probabilities to give.")]
Preview = Annotated[bool, Query(description="Only look, as at what a camera sees now: no watch counts the image.")]


def options_in_address(
    coverage: Coverage = None,
    per_class: PerClass = False,
    min_confidence: Threshold = None,
    classes: Classes = [],  # noqa: B006
    top: Top = TOP,
    preview: Preview = False,
) -> Options:
    """Options from the address of a request; FastAPI describes and checks them by this signature."""
    return Options(coverage, per_class, min_confidence, tuple(classes), top, preview)


def options_of(fields: dict[str, list[str]], given: Options) -> Options:
    """Options from the fields of a form, in the place of those in the address."""
    found: dict[str, Any] = {}
    for name, texts in fields.items():
        if name == "classes":
            if any(len(text) > MOST_CHARACTERS for text in texts):
                raise ProblemError(422, f"classes must be names of {MOST_CHARACTERS} characters at most")
            found[name] = tuple(texts)
        elif name in ("per_class", "preview"):
            found[name] = flag(name, texts[-1])
        elif name in ("coverage", "min_confidence", "top"):
            try:
                found[name] = int(texts[-1]) if name == "top" else float(texts[-1])
            except ValueError:
                raise ProblemError(422, f"{name} must be a number, got {texts[-1][:50]!r}") from None
        else:
            raise ProblemError(
                422,
                f"there is no option {name[:50]!r}; there are coverage, per_class, min_confidence, classes, top "
                "and preview",
            )
    try:
        return Options(**{**vars(given), **found})
    except SettingError as error:
        raise problem_of(error) from error


def flag(name: str, text: str) -> bool:
    """True or false, as the field of a form has it."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ProblemError(422, f"{name} must be true or false, got {text[:50]!r}")
    return text.lower() in ("true", "1")


InAddress = Annotated[Options, Depends(options_in_address)]
