"""The Open Inference Protocol: the messages of its specification, and of Triton's extension for binary tensors."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from calprompt.serve.app import create_app
from calprompt.serve.inference_protocol import HEADER
from calprompt.serve.settings import ServeSettings
from serve import hostile_images
from serve.serving import NAMES, numpy_model, picture

MODEL = "/v2/models/colours"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    settings = ServeSettings(decoders=1, max_images=4, formats=("PNG", "JPEG"), max_body="2MB", max_memory="8MB")
    with TestClient(create_app(numpy_model(), settings), base_url="http://127.0.0.1") as found:
        yield found


def image_input(**more: Any) -> dict[str, Any]:
    files = [base64.b64encode(picture(seed=seed)).decode() for seed in (1, 2)]
    return {"name": "image", "shape": [2], "datatype": "BYTES", "data": files, **more}


def pixels(seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(hostile_images.io.BytesIO(picture(seed=seed))))


def infer(client: TestClient, body: dict[str, Any], path: str = MODEL) -> dict[str, Any]:
    found = client.post(f"{path}/infer", json=body)
    assert found.status_code == 200, found.text
    return dict(found.json())


def expected(client: TestClient, seed: int = 1) -> dict[str, Any]:
    return dict(client.post("/v1/predict", content=picture(seed=seed), headers={"Content-Type": "image/png"}).json())


def test_health_and_metadata_have_the_fields_of_the_specification(client: TestClient) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    found = client.get("/v2").json()
    assert (found["name"], found["extensions"]) == ("calprompt", ["binary_tensor_data"])
    for path in (MODEL, f"{MODEL}/versions/1"):
        assert client.get(f"{path}/ready").json() == {"name": "colours", "ready": True}
        found = client.get(path).json()
        assert (found["name"], found["versions"]) == ("colours", ["1"])
        assert found["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(NAMES)]} in found["outputs"]
    for path in ("/v2/models/mymodel", "/v2/models/colours/versions/9", "/v2/models/mymodel/ready"):
        found = client.get(path)
        assert found.status_code == 404
        assert list(found.json()) == ["error"]


def test_the_request_of_the_specification_is_answered(client: TestClient) -> None:
    """Its example asks for one output by name and has an id."""
    found = infer(client, {"id": "42", "inputs": [image_input()], "outputs": [{"name": "probabilities"}]})
    assert (found["id"], found["model_name"], found["model_version"]) == ("42", "colours", "1")
    (output,) = found["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("probabilities", [2, 6], "FP32")
    assert len(output["data"]) == 12
    by_class = {each["class_name"]: each["probability"] for each in expected(client, 1)["probabilities"]}
    np.testing.assert_allclose(output["data"][:6], [by_class[name] for name in NAMES], atol=1e-6)


def test_all_outputs_unless_some_are_named(client: TestClient) -> None:
    found = infer(client, {"inputs": [image_input()]}, f"{MODEL}/versions/1")
    outputs = {each["name"]: each["data"] for each in found["outputs"]}
    assert list(outputs) == ["decision", "class_name", "probability", "probabilities", "id"]
    answers = [expected(client, seed) for seed in (1, 2)]
    assert outputs["class_name"] == [each["class_name"] for each in answers]
    assert outputs["decision"] == [each["decision"] for each in answers]
    feedback = client.post("/v1/feedback", json={"id": outputs["id"][0], "right": True})
    assert feedback.status_code == 200, "its id takes feedback"
    unsure = infer(client, {"inputs": [image_input()], "parameters": {"min_confidence": 0.99}})
    assert unsure["outputs"][0]["data"] == ["unsure", "unsure"]


@pytest.mark.parametrize("kind", ["UINT8", "FP32"])
def test_pixels_are_answered_as_files_are(client: TestClient, kind: str) -> None:
    levels = pixels()
    data = levels if kind == "UINT8" else levels / 255
    tensor = {"name": "image", "shape": [1, *levels.shape], "datatype": kind, "data": data.tolist()}
    found = infer(client, {"inputs": [tensor], "outputs": [{"name": "probability"}]})
    assert found["outputs"][0]["data"][0] == pytest.approx(expected(client)["probability"], abs=1e-6)


def test_binary_tensors_as_triton_sends_and_reads_them(client: TestClient) -> None:
    levels = pixels()
    files = [picture(seed=seed) for seed in (1, 2)]
    bodies = {
        ("UINT8", (1, *levels.shape)): levels.tobytes(),
        ("FP32", (1, *levels.shape)): (levels / 255).astype("<f4").tobytes(),
        ("BYTES", (2,)): b"".join(struct.pack("<I", len(each)) + each for each in files),
    }
    for (kind, shape), tail in bodies.items():
        tensor = {
            "name": "image",
            "shape": list(shape),
            "datatype": kind,
            "parameters": {"binary_data_size": len(tail)},
        }
        outputs = [{"name": "probabilities", "parameters": {"binary_data": True}}]
        outputs += [{"name": "class_name", "parameters": {"binary_data": True}}, {"name": "decision"}]
        head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        headers = {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
        found = client.post(f"{MODEL}/infer", content=head + tail, headers=headers)
        assert found.status_code == 200, found.text
        length = int(found.headers[HEADER])
        shown, data = json.loads(found.content[:length]), found.content[length:]
        sizes = [each.get("parameters", {}).get("binary_data_size") for each in shown["outputs"]]
        assert sizes[0] == 4 * 6 * shape[0]
        assert sizes[2] is None
        assert len(data) == sizes[0] + sizes[1]
        row = np.frombuffer(data[: 4 * 6], "<f4")
        answer = expected(client)
        assert row.max() == pytest.approx(answer["probability"], abs=1e-6)
        (size,) = struct.unpack("<I", data[sizes[0] : sizes[0] + 4])
        assert data[sizes[0] + 4 : sizes[0] + 4 + size].decode() == answer["class_name"]


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": []}, "inputs must be a list of one input"),
        (
            {"inputs": [{"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]}]},
            "must be 'image'",
        ),
        ({"inputs": [image_input(shape=[3])]}, "the shape [3] does not fit 2 images"),
        ({"inputs": [image_input(shape=[-1])]}, "whole numbers above 0"),
        ({"inputs": [image_input(shape=[True])]}, "whole numbers above 0"),
        ({"inputs": [image_input(shape=[5])]}, "the limit is 4 images"),
        ({"inputs": [image_input(shape=[1, 5])]}, "the limit is 4 images"),
        ({"inputs": [image_input(shape=[1] * 5)]}, "5 dimensions; the limit is 4"),
        ({"inputs": [image_input(data=["no base64", "!"])]}, "must be image files in base64"),
        ({"inputs": [image_input(data=[1, 2])]}, "must be image files in base64"),
        ({"inputs": [image_input(data=None)]}, "needs data"),
        ({"inputs": [image_input(data=nested(400))]}, "does not fit 0 images"),
        ({"inputs": [image_input(data=["bm8gaW1hZ2U=", "bm8gaW1hZ2U="])]}, "the image cannot be read: text"),
        ({"inputs": [image_input()], "outputs": [{"name": "output0"}]}, "outputs must be among decision"),
        ({"inputs": [image_input()], "outputs": [{"name": "id"}] * 2}, "name each output once, got 'id' twice"),
        ({"inputs": [image_input()], "outputs": 3}, "outputs must be among decision"),
        (
            {"inputs": [image_input()], "parameters": {"min_confidence": 7}},
            "min_confidence: Input should be less",
        ),
        ({"inputs": [image_input(datatype="FP32", shape=[1, 1, 1, 3], data=[0.5, 2, 0])]}, "from 0 to 1"),
        ({"inputs": [image_input(datatype="UINT8", shape=[1, 1, 1, 3], data=[1, 2, 300])]}, "from 0 to 255"),
        ({"inputs": [image_input(datatype="UINT8", shape=[1, 1, 3], data=[1, 2, 3])]}, "[n, height, width, 3]"),
        ({"inputs": [image_input(datatype="UINT8", shape=[1, 2, 2, 3], data=[1, 2, 3])]}, "not UINT8 of the shape"),
        (
            {"inputs": [image_input(datatype="UINT8", shape=[1, 1, 1, 3], data=[1, None, "x"])]},
            "not UINT8 of the shape",
        ),
        ({"inputs": [image_input(datatype="FP32", shape=[1, 1, 1, 3], data=[0, 1, 10**400])]}, "not FP32 of the shape"),
    ],
)
def test_errors_follow_the_protocol(client: TestClient, change: dict[str, Any], says: str) -> None:
    found = client.post(f"{MODEL}/infer", json=change)
    assert 400 <= found.status_code < 500, found.text
    assert list(found.json()) == ["error"]
    assert says in found.json()["error"]


def test_bodies_that_contradict_their_header_are_refused(client: TestClient) -> None:
    tensor = image_input(parameters={"binary_data_size": 99})
    del tensor["data"]
    head = json.dumps({"inputs": [tensor]}).encode()
    for body, length, says in (
        (head + b"abc", str(len(head)), "binary_data_size is 99, and 3 bytes came"),
        (head + struct.pack("<I", 200) + 95 * b"x", str(len(head)), "longer than what came"),
        (head, "7", "the body is not JSON"),
        (head, str(len(head) + 1), f"{HEADER} must be the length"),
        (head, "many", f"{HEADER} must be the length"),
        (b"[1]", None, "must be a JSON object"),
        (b"[" * 100_000, None, "nested too deeply"),
        (b"[" + 1_000_001 * b"," + b"]", None, "send the tensor as binary data"),
    ):
        headers = {} if length is None else {HEADER: length}
        found = client.post(f"{MODEL}/infer", content=body, headers=headers)
        assert 400 <= found.status_code < 500
        assert says in found.json()["error"]


def test_an_absurd_length_of_the_json_is_refused(client: TestClient) -> None:
    found = client.post(f"{MODEL}/infer", content=b"{}", headers={"Inference-Header-Content-Length": "1" * 5000})
    assert found.status_code == 400
    assert "must be the length of the JSON" in found.json()["error"]
