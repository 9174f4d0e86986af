"""Samples show what the model knows and leak nothing it learned from; suggestions bear whatever a client sends."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from calprompt.errors import SettingError
from calprompt.serve.app import create_app
from calprompt.serve.improving import samples_of_package
from calprompt.serve.settings import ServeSettings
from serve.serving import numpy_model

LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    model = numpy_model(labels=("bag", "coat", "trousers"))
    with TestClient(create_app(model, ServeSettings(decoders=1)), base_url=LOCAL) as found:
        yield found


def test_samples_are_pictures_of_the_package_that_show_the_classes(client: TestClient) -> None:
    found = client.get("/v1/samples").json()["samples"]
    assert [each["name"] for each in found] == ["bag.png", "coat.png", "trousers.png", "something-else.png"]
    for each in found:
        image = client.get(f"/{each['address']}")
        assert image.headers["content-type"] == "image/png"
        Image.open(io.BytesIO(image.content)).load()
    assert client.get("/v1/samples/9").status_code == 404


def test_a_model_of_other_things_offers_no_samples_unless_a_folder_is_given(tmp_path: Path) -> None:
    assert samples_of_package(("screw", "nail", "bag")) == []
    Image.new("RGB", (4, 4)).save(tmp_path / "screw.png")
    (tmp_path / "notes.txt").write_text("no picture")
    app = create_app(numpy_model(), ServeSettings(decoders=1, samples=str(tmp_path)))
    with TestClient(app, base_url=LOCAL) as client:
        assert [each["name"] for each in client.get("/v1/samples").json()["samples"]] == ["screw.png"]
    with pytest.raises(SettingError, match="must be a folder with PNG"):
        create_app(numpy_model(), ServeSettings(decoders=1, samples=str(tmp_path / "nothing")))


def test_a_preview_is_answered_and_counted_by_no_watch() -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(data, "png")
    with TestClient(create_app(numpy_model(), ServeSettings(decoders=1)), base_url=LOCAL) as client:
        headers = {"Content-Type": "image/png"}
        answer = client.post("/v1/predict?preview=true", content=data.getvalue(), headers=headers)
        assert answer.status_code == 200
        assert client.get("/v1/watch").json()["images"]["seen"] == 0


def test_suggestions_are_places_among_the_candidates(client: TestClient) -> None:
    asked = {"candidates": [[0.9, 0.1, 0], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]], "labelled": [[0.1, 0.1, 0.8]], "n": 2}
    found = client.post("/v1/suggest", json=asked).json()["order"]
    assert sorted(found) == [0, 1]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"candidates": []},
        {"candidates": [[]]},
        {"candidates": [[0.5], [0.5, 0.5]]},
        {"candidates": [[0.5, 7.0]]},
        {"candidates": [[0.5, 0.5]], "n": 0},
        {"candidates": [[0.5, 0.5]], "labelled": [[1.0]]},
        {"candidates": [["a"]]},
        {"candidates": [[0.5, 0.5]], "other": 1},
        {"candidates": [[0.001] * 500] * 900},
    ],
)
def test_invalid_requests_for_suggestions_are_refused_with_a_message(client: TestClient, asked: Any) -> None:
    found = client.post("/v1/suggest", json=asked)
    assert found.status_code == 422
    assert found.json()["detail"]
