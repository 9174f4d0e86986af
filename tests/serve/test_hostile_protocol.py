"""Five hundred hostile requests to the addresses of versions and of the inference protocol: none breaks the server."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from serve import serving
from serve.hostile_requests import request
from serve.serving import add_version, picture

COUNT = 500
JUNK: list[Any] = [None, True, -1, 0, 2**63, 1e308, "", "x" * 5000, "\x00", "../..", "ü", [], {}, [[]], [{}], {"a": []}]
PATHS = (
    *("/v1/versions", "/models/colours/v1/versions", "/models/nothing/v1/versions", "/models/%2e%2e/v1/versions"),
    *("/v2/models/colours/infer", "/v2/models/colours/versions/1/infer", "/v2/models/colours/versions/%00/infer"),
    *("/v2/models/nothing/infer", "/models/colours/v2/models/colours/infer", "/models//v1/predict", "/models/a/b/c"),
)


def hostile(chance: random.Random) -> bytes:
    """A request that begins well and has something wrong."""
    path = chance.choice(PATHS)
    kind, tail, extra = "application/json", b"", []
    if "infer" in path:
        data = picture()
        tensor: dict[str, Any] = {"name": "image", "shape": [1], "datatype": "BYTES"}
        if chance.random() < 0.5:
            tail = struct.pack("<I", chance.choice([len(data), 0, 2**32 - 1])) + data
            tensor["parameters"] = {"binary_data_size": chance.choice([len(tail), 0, 3, *JUNK])}
        else:
            tensor["data"] = [base64.b64encode(data).decode()]
        body: dict[str, Any] = {"inputs": [tensor], "outputs": [{"name": "probability"}], "parameters": {}}
        place = chance.choice([body, tensor, body["outputs"][0]])
        if chance.random() < 0.3:
            shape = chance.choice([[1, 1, 1, 3], [1, 9999, 9999, 3], [0], [2**40], [1, 2, 3], [1, 1, 10**6, 3]])
            tensor |= {"datatype": chance.choice(["UINT8", "FP32", "FP16"]), "shape": shape}
    else:
        body = {"action": "switch", "version": chance.choice(["1", "2", "9", "../../1", "1/../2"])}
        place = body
    place[chance.choice([*place, "more"])] = chance.choice(JUNK)
    text = json.dumps(body).encode()
    if tail:
        extra = [f"Inference-Header-Content-Length: {chance.choice([len(text), len(text), 0, 10**9, -1])}"]
    if chance.random() < 0.1:
        text = chance.choice([b"[" * 50_000, text[: len(text) // 2], b'{"inputs":' + text, bytes(300), b"[1," * 9000])
    if chance.random() < 0.05:
        kind = chance.choice(["text/plain", "multipart/form-data; boundary=b", ""])
    return request(path, text + tail, *extra, kind=kind)


def test_five_hundred_hostile_requests_get_no_5xx(tmp_path: Path) -> None:
    for number in (1, 2):
        add_version(tmp_path / "models" / "colours" / str(number), seed=number)
    chance = random.Random(0)
    statuses: Counter[int] = Counter()
    with (
        open(tmp_path / "log", "w") as log,
        serving.server(models=tmp_path / "models", max_pixels=1.0, log=log) as served,
    ):
        before = serving.memory(served.pid)
        for number in range(COUNT):
            data = hostile(chance)
            found = served.raw(data)
            assert found is not None, data[:300]
            assert found.status < 500, (found.body, data[:300])
            statuses[found.status] += 1
            if number % 50 == 0:
                served.check_health()
        served.check_health()
        assert sum(statuses[status] for status in (400, 404, 413, 415, 422)) > COUNT / 2, statuses
        assert serving.memory(served.pid) < 1.2 * before + 30
    assert (tmp_path / "log").read_text() == ""
