"""Keys with roles, limited guesses, request ids and the access log; feedback with an author, undone by who may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from calprompt.errors import SettingError
from calprompt.serve import guard
from calprompt.serve.app import create_app
from calprompt.serve.guard import KeyRing
from calprompt.serve.problems import ProblemError
from calprompt.serve.settings import ServeSettings, read_keys
from serve.serving import numpy_model, picture

KEYS = """# who may do what
reader predict aaaaaaaa1

anna feedback bbbbbbbb2
bert feedback cccccccc3  # night shift
owner admin dddddddd4
"""
TOKENS = {"reader": "aaaaaaaa1", "anna": "bbbbbbbb2", "bert": "cccccccc3", "owner": "dddddddd4"}


def key_file(folder: Path, text: str = KEYS) -> Path:
    path = folder / "keys.txt"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    settings = ServeSettings(
        token_file=str(key_file(place)),
        access_log=str(place / "access.jsonl"),
        feedback=str(place / "feedback.db"),
        keep=str(place / "kept"),
        max_keep="20KB",
        decoders=1,
    )
    with TestClient(create_app(numpy_model(), settings), base_url="http://127.0.0.1") as found:
        yield found


def ask(client: TestClient, name: str, method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {TOKENS[name]}", **options.pop("headers", {})}
    return client.request(method, path, headers=headers, **options)


def answered(client: TestClient, seed: int) -> str:
    found = ask(client, "reader", "POST", "/v1/predict", content=picture(seed=seed))
    assert found.status_code == 200, found.text
    return str(found.json()["id"])


def test_a_key_may_do_what_its_role_allows(client: TestClient) -> None:
    receipt = answered(client, 1)
    body = {"id": receipt, "right": True}
    refused = ask(client, "reader", "POST", "/v1/feedback", json=body)
    assert refused.status_code == 403
    assert "the key 'reader' has the role predict, and this needs the role feedback" in refused.json()["detail"]
    assert ask(client, "anna", "POST", "/v1/feedback", json=body).status_code == 200
    assert ask(client, "anna", "POST", "/v1/watch", json={"action": "reset"}).status_code == 403
    assert client.get("/v1/model").status_code == 401
    assert client.head("/health").status_code == 200


def test_feedback_is_undone_by_its_author_or_an_admin_and_given_again(client: TestClient) -> None:
    for seed, who in ((2, "anna"), (3, "owner")):
        receipt = answered(client, seed)
        before = ask(client, "reader", "GET", "/v1/watch").json()
        assert ask(client, "anna", "POST", "/v1/feedback", json={"id": receipt, "right": False}).status_code == 200
        assert ask(client, "anna", "POST", "/v1/feedback", json={"id": receipt, "right": True}).status_code == 409
        assert ask(client, "bert", "POST", "/v1/feedback/undo", json={"id": receipt}).status_code == 403
        undone = ask(client, who, "POST", "/v1/feedback/undo", json={"id": receipt})
        assert undone.status_code == 200, undone.text
        assert undone.json()["wrong"] == before["wrong"]
        assert ask(client, who, "POST", "/v1/feedback/undo", json={"id": receipt}).status_code == 404
        assert ask(client, "bert", "POST", "/v1/feedback", json={"id": receipt, "right": True}).status_code == 200


def test_an_alarm_is_acknowledged_and_reset_by_an_admin_on_record(client: TestClient) -> None:
    for seed in range(100, 140):
        said = {"id": answered(client, seed), "right": False}
        if ask(client, "anna", "POST", "/v1/feedback", json=said).json()["watch"]["status"] == "broken":
            break
    state = ask(client, "reader", "GET", "/v1/watch").json()
    assert (state["status"], state["acknowledged"]) == ("broken", None)
    seen = ask(client, "owner", "POST", "/v1/watch", json={"action": "acknowledge", "note": "new lamp"}).json()
    assert seen["status"] == "broken"
    assert (seen["acknowledged"]["author"], seen["acknowledged"]["note"]) == ("owner", "new lamp")
    anew = ask(client, "owner", "POST", "/v1/watch", json={"action": "reset", "note": "old lamp is back"}).json()
    assert (anew["status"], anew["feedback"], anew["acknowledged"]) == ("holds", 0, None)
    assert anew["reset"]["note"] == "old lamp is back"
    images = ask(client, "owner", "POST", "/v1/watch", json={"action": "reset", "watch": "images"}).json()["images"]
    assert (images["seen"], images["reset"]["author"]) == (0, "owner")


def test_kept_images_have_a_quota_and_go_with_their_feedback(client: TestClient, place: Path) -> None:
    def send(seed: int) -> tuple[str, Any]:
        receipt, files = answered(client, seed), {"image": ("a.png", picture(seed=seed))}
        return receipt, ask(
            client,
            "anna",
            "POST",
            "/v1/feedback",
            data={"id": receipt, "right": "false", "class_name": "yak"},
            files=files,
        )

    receipt, first = send(200)
    assert first.json()["kept"]
    assert len(list((place / "kept/yak").iterdir())) == 1
    assert ask(client, "anna", "POST", "/v1/feedback/undo", json={"id": receipt}).status_code == 200
    assert not (place / "kept/yak").exists(), "a class without images would stop every fit"
    statuses = [send(seed)[1].status_code for seed in range(201, 206)]
    assert statuses == [200, 200, 200, 507, 507], "three files of 6 KB are within 20 KB"


def test_request_ids_and_the_access_log(client: TestClient, place: Path) -> None:
    given = ask(client, "reader", "POST", "/v1/predict", content=picture(), headers={"X-Request-Id": "order-66"})
    assert given.headers["x-request-id"] == "order-66"
    bad = ask(
        client, "reader", "POST", "/v1/predict?classes=secret-class", content=b"x", headers={"X-Request-Id": "a b\t"}
    )
    assert bad.json()["request_id"] == bad.headers["x-request-id"] != "a b\t"
    client.get("/v1/model")
    text = (place / "access.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    last = {line["id"]: line for line in lines}
    line = last["order-66"]
    assert set(line) == {"time", "id", "key", "address", "method", "route", "status", "ms", "decisions"}
    assert (line["key"], line["route"], line["status"], sum(line["decisions"].values())) == (
        "reader",
        "/v1/predict",
        200,
        1,
    )
    assert last[bad.headers["x-request-id"]]["status"] == 422
    assert lines[-1]["status"] == 401
    assert not any(secret in text for secret in (*TOKENS.values(), "secret-class"))


def test_a_rotated_log_is_reopened(client: TestClient, place: Path) -> None:
    (place / "access.jsonl").rename(place / "access.jsonl.1")
    client.get("/health")
    assert len((place / "access.jsonl").read_text().splitlines()) == 1


def test_guesses_are_limited_and_valid_keys_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ring = KeyRing(path=key_file(tmp_path))
    assert ring.check("Bearer bbbbbbbb2", "10.0.0.1").name == "anna"
    statuses = []
    for number in range(12):
        with pytest.raises(ProblemError) as problem:
            ring.check(f"Bearer guess-{number}", "10.0.0.1")
        statuses.append(problem.value.status)
    assert statuses == [401] * 10 + [429] * 2
    with pytest.raises(ProblemError, match="too many wrong keys"):
        ring.check("Bearer aaaaaaaa1", "10.0.0.1")  # even the right one is not looked at
    assert ring.check("Bearer bbbbbbbb2", "10.0.0.1").name == "anna", "who had a key before is not kept out"
    assert ring.check("Bearer aaaaaaaa1", "10.0.0.2").name == "reader"
    monkeypatch.setattr(guard, "GUESS_SECONDS", 0.0)
    assert ring.check("Bearer aaaaaaaa1", "10.0.0.1").name == "reader"


def test_a_changed_file_of_keys_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guard, "REREAD_SECONDS", 0.0)
    ring = KeyRing(path=key_file(tmp_path))
    key_file(tmp_path, "new admin eeeeeeeee5\n")
    assert ring.check("Bearer eeeeeeeee5", "a").name == "new"
    with pytest.raises(ProblemError, match="not known"):
        ring.check("Bearer dddddddd4", "a")
    key_file(tmp_path, "nonsense\n")
    assert ring.check("Bearer eeeeeeeee5", "a").name == "new", "a file with a mistake changes nothing"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no keys"),
        ("anna predict\n", "line 1: expected a name"),
        ("anna boss aaaaaaaa1\n", "a role \\(predict, feedback, admin\\)"),
        ("anna admin aaaaaaaa1\nanna admin bbbbbbbb2\n", "line 2: expected a name that is not used yet"),
        ("anna admin short\n", "8 or more characters"),
    ],
)
def test_invalid_key_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        read_keys(key_file(tmp_path, text))


def test_a_file_of_keys_is_for_its_owner_alone(tmp_path: Path) -> None:
    key_file(tmp_path).chmod(0o644)
    with pytest.raises(SettingError, match="can be read by other users"):
        read_keys(tmp_path / "keys.txt")
    with pytest.raises(SettingError, match="cannot be read"):
        read_keys(tmp_path / "nothing")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_get_nothing(client: TestClient, site: str) -> None:
    found = ask(client, "owner", "GET", "/v1/model", headers={"Sec-Fetch-Site": site})
    assert (found.status_code, found.json()["detail"]) == (403, "pages of other sites may not use this server")
    assert client.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200, "a link to the page"


@pytest.mark.parametrize("host", ["[::1]evil.com", "[::1]:80:90", "localhost@evil.com", "evil.com", "x" * 3000])
def test_unknown_host_names_are_refused(client: TestClient, host: str) -> None:
    found = client.get("/health", headers={"Host": host})
    assert found.status_code == 403
    assert found.json()["detail"].startswith("host not allowed")
    assert len(found.json()["detail"]) < 300
