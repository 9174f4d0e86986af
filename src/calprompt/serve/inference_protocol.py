"""The Open Inference Protocol, version 2, over REST: what clients of KServe and Triton speak.

A model has one input, `image`, of one of three types. Tensors are JSON, or bytes behind the JSON as Triton's extension
`binary_tensor_data` has them.

    BYTES  [n]           image files, in base64 where they stand in JSON
    UINT8  [n, h, w, 3]  RGB pixels
    FP32   [n, h, w, 3]  RGB from 0 to 1; they are resized and normalised as files are, so do neither
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from starlette.responses import JSONResponse

import calprompt
from calprompt.serve.engine import Answered, Options
from calprompt.serve.guard import caller_of
from calprompt.serve.problems import ProblemError
from calprompt.serve.requests import Upload, options_of, parse_object
from calprompt.serve.served_model import ServedModel
from calprompt.serve.service import Deployment, Service

BINARY = "binary_tensor_data"
HEADER = "Inference-Header-Content-Length"
INPUT, FILES, CHANNELS = "image", "BYTES", 3
TENSORS: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("u1"), "FP32": np.dtype("<f4")}
DIGITS = 12  # of a length
MOST_DIMENSIONS = 4
MOST_ELEMENTS = 1_000_000  # in JSON, where each takes many bytes of memory
PNM = ("PPM",)  # pixels that come as a tensor go to the decoder as such a file
OUTPUTS = {  # name: type and whether there is one for each class
    "decision": (FILES, False),
    "class_name": (FILES, False),
    "probability": ("FP32", False),
    "probabilities": ("FP32", True),
    "id": (FILES, False),
}


def add_inference_protocol(app: FastAPI, state: Service) -> None:
    """Add the routes of the protocol to an app."""

    def shown(deployment: Deployment) -> dict[str, ServedModel]:
        """Versions that clients may ask: one that is only tried, or loaded, is not among them."""
        plan = deployment.plan
        return {each: model for each, model in deployment.loaded.items() if each in (plan.active, plan.previous)}

    def find(name: str, version: str | None) -> tuple[Deployment, ServedModel]:
        deployment = state.find(name)
        model = deployment.active if version is None else shown(deployment).get(version)
        if model is None:
            known = ", ".join(shown(deployment))
            raise ProblemError(404, f"version {version!r} of {name} is not loaded; there are: {known}")
        return deployment, model

    def route(path: str, method: str = "GET") -> Any:
        """With and without a version."""

        def add(function: Any) -> Any:
            for place in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
                app.add_api_route(place + path, function, methods=[method], include_in_schema=False)
            return function

        return add

    @app.get("/v2", include_in_schema=False)
    async def server() -> dict[str, Any]:
        return {"name": "calprompt", "version": calprompt.__version__, "extensions": [BINARY]}

    @app.get("/v2/health/live", include_in_schema=False)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready", include_in_schema=False)
    async def ready() -> JSONResponse:
        return JSONResponse({"ready": state.ready}, 200 if state.ready else 503)

    @route("")
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        deployment, model = find(name, version)
        outputs = [
            {"name": output, "datatype": kind, "shape": [-1, len(model.labels)] if of_classes else [-1]}
            for output, (kind, of_classes) in OUTPUTS.items()
        ]
        return {
            "name": name,
            "versions": list(shown(deployment)),
            "platform": f"calprompt_{model.kind}",
            "inputs": [{"name": INPUT, "datatype": FILES, "shape": [-1]}],
            "outputs": outputs,
            "parameters": {"classes": list(model.labels)},
        }

    @route("/ready")
    async def model_ready(name: str, version: str | None = None) -> JSONResponse:
        find(name, version)
        return JSONResponse({"name": name, "ready": state.ready}, 200 if state.ready else 503)

    @route("/infer", "POST")
    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        deployment, model = find(name, version)
        caller = caller_of(request)
        with state.ticket(request) as ticket:
            data = await state.body(request, ticket)
            ticket.take(size=len(data))
            loop, length = asyncio.get_running_loop(), request.headers.get(HEADER)
            asked = await loop.run_in_executor(None, read_request, data, length, state.settings.max_images)
            del data
            uploads = asked.uploads
            ticket.take(images=len(uploads))
            found = await asyncio.gather(  # all of them end before the ticket is given back
                *(
                    state.answer(deployment, each, asked.options, caller, model=model, formats=asked.formats)
                    for each in uploads
                ),
                return_exceptions=True,
            )
        answers = []
        for each in found:
            if isinstance(each, BaseException):
                raise each
            answers.append(each)
        head = {"model_name": name, "model_version": model.version, **({} if asked.id is None else {"id": asked.id})}
        return respond(head, asked.outputs, answers)


class InferenceRequest(NamedTuple):
    """A request, checked."""

    id: str | None  # that the response repeats; None if it has none
    uploads: list[Upload]  # images
    formats: tuple[str, ...] | None  # theirs, if they came as pixels; None: those of the server's settings
    options: Options  # among the parameters
    outputs: list[tuple[str, bool]]  # names, and whether each comes as bytes


def read_request(data: bytes, length: str | None, most_images: int) -> InferenceRequest:
    """A request from its body and the length of the JSON in it."""
    if length is not None and not (length.isdecimal() and len(length) <= DIGITS and int(length) <= len(data)):
        raise ProblemError(400, f"{HEADER} must be the length of the JSON at the beginning of the body")
    end = len(data) if length is None else int(length)
    if data.count(b",", 0, end) > MOST_ELEMENTS:
        raise ProblemError(413, f"the JSON has more than {MOST_ELEMENTS:,} elements; send the tensor as binary data")
    try:
        asked, binary = parse_object(data[:end]), memoryview(data)[end:]
        id = asked.get("id") if isinstance(asked.get("id"), str) else None
        uploads, formats = read_images(asked, binary, most_images)
        threshold = {name: [str(value)] for name, value in _parameters(asked).items() if name == "min_confidence"}
        return InferenceRequest(id, uploads, formats, options_of(threshold, Options()), wanted_outputs(asked))
    except RecursionError:
        raise ProblemError(400, "the JSON is nested too deeply") from None


def read_images(asked: dict[str, Any], binary: memoryview, most: int) -> tuple[list[Upload], tuple[str, ...] | None]:
    """The images of a request, and their formats if they are not files."""
    inputs = asked.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise ProblemError(400, f"inputs must be a list of one input, {INPUT!r}")
    tensor = inputs[0]
    kind, shape = tensor.get("datatype"), tensor.get("shape")
    if tensor.get("name") != INPUT or kind not in (FILES, *TENSORS):
        raise ProblemError(400, f"the input must be {INPUT!r} of the type {', '.join((FILES, *TENSORS))}")
    if not isinstance(shape, list) or not shape or not all(type(n) is int and 0 < n < 2**31 for n in shape):
        raise ProblemError(400, "the shape of the input must be a list of whole numbers above 0")
    if len(shape) > MOST_DIMENSIONS:
        raise ProblemError(400, f"the shape of the input has {len(shape)} dimensions; the limit is {MOST_DIMENSIONS}")
    size = _parameters(tensor).get("binary_data_size") if "data" not in tensor else None
    if size is not None and (type(size) is not int or size != len(binary)):
        raise ProblemError(400, f"binary_data_size is {size!r}, and {len(binary)} bytes came behind the JSON")
    images = math.prod(shape) if kind == FILES else shape[0]
    if images > most:
        raise ProblemError(413, f"the limit is {most} images; send them in several requests")
    if kind == FILES:
        files = _flat(tensor.get("data")) if size is None else list(_elements(binary))
        if len(files) != images:
            raise ProblemError(400, f"the shape {shape} does not fit {len(files)} images")
        return [Upload(f"image {n}", _file(each)) for n, each in enumerate(files)], None
    if len(shape) != 4 or shape[3] != CHANNELS:
        raise ProblemError(400, f"an input of the type {kind} must have the shape [n, height, width, 3], got {shape}")
    pixels = _pixels(tensor.get("data") if size is None else binary, kind, shape)
    head = f"P6 {shape[2]} {shape[1]} 255\n".encode()
    return [Upload(f"image {n}", head + each.tobytes()) for n, each in enumerate(pixels)], PNM


def _file(given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        return base64.b64decode(given, validate=True)
    except (TypeError, ValueError):
        raise ProblemError(400, "BYTES in JSON must be image files in base64") from None


def _elements(binary: memoryview) -> Iterator[bytes]:
    """BYTES as the extension has them: four bytes of length, and that many."""
    start = 0
    while start < len(binary):
        length = int.from_bytes(binary[start : start + 4], "little")
        start += 4 + length
        if start > len(binary):
            raise ProblemError(400, "the elements of the BYTES tensor are longer than what came")
        yield bytes(binary[start - length : start])


def _flat(data: Any) -> list[Any]:
    """Elements of a tensor in JSON, nested or not."""
    if not isinstance(data, list):
        raise ProblemError(400, "the input needs data, a list")
    found: list[Any] = []
    for each in data:
        found += _flat(each) if isinstance(each, list) else [each]
    return found


def _pixels(given: Any, kind: str, shape: list[int]) -> NDArray[np.uint8]:
    """Levels [n, h, w, 3] of a tensor."""
    try:
        if isinstance(given, memoryview):
            found = np.frombuffer(given, TENSORS[kind])
        else:
            found = np.asarray(_flat(given), dtype=np.float64)
        found = found.reshape(shape)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(400, f"the data of the input are not {kind} of the shape {shape}") from None
    if found.dtype == np.uint8:
        return found
    top = 1 if kind == "FP32" else 255
    if not bool(((found >= 0) & (found <= top)).all()):
        raise ProblemError(400, f"{kind} must be from 0 to {top}: RGB that is neither normalised nor shifted")
    return np.rint(found * (255 / top)).astype(np.uint8)


def _parameters(of: dict[str, Any]) -> dict[str, Any]:
    found = of.get("parameters")
    return found if isinstance(found, dict) else {}


def wanted_outputs(asked: dict[str, Any]) -> list[tuple[str, bool]]:
    """Outputs of a request, and which of them as bytes."""
    every = bool(_parameters(asked).get("binary_data_output", False))
    outputs = asked.get("outputs") or [{"name": name} for name in OUTPUTS]
    found: dict[str, bool] = {}
    for each in outputs if isinstance(outputs, list) else [None]:
        if not isinstance(each, dict) or each.get("name") not in tuple(OUTPUTS):
            raise ProblemError(400, f"outputs must be among {', '.join(OUTPUTS)}")
        if each["name"] in found:
            raise ProblemError(400, f"outputs must name each output once, got {each['name']!r} twice")
        found[each["name"]] = bool(_parameters(each).get("binary_data", every))
    return list(found.items())


def respond(head: dict[str, Any], wanted: list[tuple[str, bool]], answers: list[tuple[Answered, str]]) -> Response:
    """The response, with tensors in JSON or behind it."""
    outputs, tail = [], b""
    for name, is_binary in wanted:
        kind, of_classes = OUTPUTS[name]
        values: list[Any] = [
            receipt if name == "id" else each.row if of_classes else getattr(each.answer, name)
            for each, receipt in answers
        ]
        shape = [len(values), len(values[0])] if of_classes else [len(values)]
        output: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape}
        flat = [each for row in values for each in row] if of_classes else values
        if is_binary:
            if kind == FILES:
                data = b"".join(struct.pack("<I", len(each)) + each for each in map(str.encode, flat))
            else:
                data = np.asarray(flat, dtype="<f4").tobytes()
            output["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            output["data"] = flat
        outputs.append(output)
    text = json.dumps({**head, "outputs": outputs}, ensure_ascii=False).encode()
    if not any(is_binary for _, is_binary in wanted):
        return Response(text, media_type="application/json")
    return Response(text + tail, media_type="application/octet-stream", headers={HEADER: str(len(text))})
