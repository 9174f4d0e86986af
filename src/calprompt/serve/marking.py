"""POST /v1/marks: from the body of a request to a mark that is counted."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from pydantic import ValidationError

from calprompt.errors import ImageError
from calprompt.serve import schemas
from calprompt.serve.batching import Ticket
from calprompt.serve.bodies import read_body, read_form, read_json
from calprompt.serve.failures import sentence_of
from calprompt.serve.marks import Mark
from calprompt.serve.options import flag
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.receipts import Receipt
from calprompt.serve.service import Service, waited

MARK_BYTES = 64 * 1024  # of a mark without an image


async def take_mark(request: Request, ticket: Ticket, state: Service) -> tuple[Mark, bool]:
    """Read a mark and take it down."""
    is_form = request.headers.get("content-type", "").lower().startswith("multipart/form-data")
    most = state.settings.body_bytes if is_form else MARK_BYTES
    data = await read_body(request, ticket, most=most, timeout=state.settings.timeout)
    image: bytes | None = None
    if is_form:
        form = await read_form(request, data, ticket, most_images=1)
        values: dict[str, Any] = {name: texts[-1] for name, texts in form.fields.items()}
        if "right" in values:
            values["right"] = flag("right", values["right"])
        if not values.get("class_name"):
            values.pop("class_name", None)
        image = form.uploads[0].data if form.uploads else None
    else:
        values = read_json(request, data)
    try:
        asked = schemas.MarkRequest.model_validate(values)
    except ValidationError as error:
        raise ProblemError(422, sentence_of(error.errors())) from None
    receipt = state.signer.read(asked.id)
    if asked.class_name is not None and (not asked.class_name.isprintable() or not asked.class_name.strip()):
        raise ProblemError(422, "class_name must be a name without line breaks and control characters")
    kind = None
    if image is not None:
        try:
            decoded = await state.running.decoders.decode(image)
        except ImageError as error:
            raise problem_of(error) from error
        if Receipt.of("", decoded.levels.tobytes(), "", "", False).image != receipt.image:
            raise ProblemError(422, "image is not the one that was answered")
        kind = decoded.format
    mark = await waited(
        lambda: state.book.add(receipt, asked.right, class_name=asked.class_name, image=image, format=kind)
    )
    return mark, asked.right
