"""The Python client against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

import calprompt
from calprompt.errors import CalpromptError, SettingError
from calprompt.serve.client import ServerError, _seconds
from serve import serving
from serve.serving import NAMES, Running, add_version, picture

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("client")
    for number in (1, 2):
        add_version(folder / "models" / "colours" / str(number), seed=number)
    add_version(folder / "models" / "other", labels=["left", "right"])
    with serving.server(models=folder / "models", token=TOKEN, keep=str(folder / "kept")) as found:
        yield found


def client(served: Running, **options: str) -> calprompt.Client:
    return calprompt.Client(f"http://127.0.0.1:{served.port}", token=TOKEN, **options)


def test_the_client_sends_images_and_feedback(served: Running, tmp_path: Path) -> None:
    path = tmp_path / "größe.png"
    path.write_bytes(picture())
    asking = client(served)
    answer = asking.predict(path, top=2, min_confidence=0.01)
    assert answer["name"] == "größe.png"
    assert answer["class_name"] in NAMES
    assert len(answer["probabilities"]) == 2
    result = asking.feedback(answer, right=False, class_name="yak", image=path)
    assert result["kept"]
    with pytest.raises(ServerError, match="409: there is feedback on this answer already") as caught:
        asking.feedback(answer, right=True)
    assert caught.value.status == 409
    assert caught.value.request_id
    assert asking.undo(answer)["feedback"] == 0
    assert asking.watch()["status"] == "holds"
    many = list(asking.predict_many([picture(seed=1), b"no image", path], at_a_time=2, classes=["ant", "yak"]))
    assert [each.get("class_name", "problem") for each in many][1] == "problem"
    assert many[0]["class_name"] in ("ant", "yak")


def test_the_client_switches_versions(served: Running) -> None:
    asking = client(served)
    assert [each["name"] for each in asking.models()] == ["colours", "other"]
    assert client(served, model="other").model()["classes"] == ["left", "right"]
    assert asking.versions()["active"] == "2"
    assert asking.switch("1")["previous"] == "2"
    assert asking.shadow("2")["shadow"] == "2"
    asking.predict(picture())
    assert asking.comparison()["images"] == 1
    assert asking.rollback()["active"] == "2"


def test_a_busy_server_is_asked_again() -> None:
    with serving.server(queue=2, delay=0.3, batch=1) as busy:
        asking = calprompt.Client(f"http://127.0.0.1:{busy.port}", tries=50)
        answers: list[str] = []
        ask = [threading.Thread(target=lambda: answers.append(asking.predict(picture())["name"])) for _ in range(6)]
        for thread in ask:
            thread.start()
        for thread in ask:
            thread.join()
        assert answers == 6 * ["image"]


def test_errors_are_reported(served: Running, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="url must be an address such as http"):
        calprompt.Client("localhost:8000")
    with pytest.raises(ServerError, match="401: this server needs a key"):
        calprompt.Client(f"http://127.0.0.1:{served.port}").model()
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1/ does not answer: "):
        calprompt.Client("http://127.0.0.1:1", tries=2).watch()
    with pytest.raises(CalpromptError, match=r"nothing\.png cannot be read: No such file"):
        client(served).predict(tmp_path / "nothing.png")


def test_retry_after_is_a_number_or_a_date() -> None:
    assert _seconds("3") == 3
    assert _seconds(format_datetime(datetime.now(UTC) + timedelta(seconds=60))) == pytest.approx(60, abs=5)
    assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert [_seconds(each) for each in (None, "soon", "nan")] == [1, 1, 0]
