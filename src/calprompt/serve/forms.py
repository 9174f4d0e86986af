"""Forms: multipart/form-data taken apart in memory, in bounded time, and never written to disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from calprompt.serve.problems import ProblemError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

LONGEST_NAME = 200  # characters of an image's name that are kept
FIELDS = 1100  # of a form, at most: classes and options
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
        parser = MultipartParser(boundary, collector.callbacks)
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
        self.callbacks: MultipartCallbacks = {
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
        if self.fields > FIELDS:
            raise _unreadable(f"it has more than {FIELDS} fields")

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
