"""Several models with versions: switched between two requests, taken back, compared in the shadow."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.serve import models as models_module
from calprompt.serve.app import create_app
from calprompt.serve.feedback import FeedbackBook, Receipt, sign
from calprompt.serve.feedback_store import ShadowAnswer
from calprompt.serve.improving import next_version
from calprompt.serve.models import Keeper, Models, Plan
from calprompt.serve.problems import ProblemError
from calprompt.serve.settings import ServeSettings
from serve import serving
from serve.serving import add_version, picture

LOCAL = "http://127.0.0.1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, one with versions."""
    monkeypatch.setattr(models_module, "load_served", serving.load_numpy_model)
    for number in (9, 10):
        add_version(tmp_path / "models" / "colours" / f"v{number}", seed=number)
    add_version(tmp_path / "models" / "other", seed=3, labels=["left", "right"])
    (tmp_path / "models" / "notes").mkdir()
    return tmp_path / "models"


def client(folder: Path, **settings: Any) -> TestClient:
    app = create_app(Models(folder), ServeSettings(decoders=1, **settings))
    return TestClient(app, base_url=LOCAL)


def change(client: TestClient, action: str, version: str | None = None, path: str = "/v1/versions") -> Any:
    return client.post(path, json={"action": action, "version": version})


def predict(client: TestClient, seed: int = 1, path: str = "/v1/predict") -> dict[str, Any]:
    found = client.post(path, content=picture(seed=seed), headers={"Content-Type": "image/png"})
    assert found.status_code == 200, found.text
    return dict(found.json())


def test_each_model_has_all_addresses_below_its_name(folder: Path) -> None:
    with client(folder) as served:
        names = [each["name"] for each in served.get("/v1/models").json()["models"]]
        assert names == ["colours", "other"]
        assert served.get("/v1/model").json()["name"] == "colours"
        assert served.get("/models/other/v1/model").json()["classes"] == ["left", "right"]
        assert predict(served, path="/models/other/v1/predict")["class_name"] in ("left", "right")
        assert "calprompt" in served.get("/models/other/").text
        found = served.get("/models/other", follow_redirects=False)
        assert (found.status_code, found.headers["location"]) == (308, "other/")
        found = served.get("/models/nothing/v1/model")
        assert (found.status_code, found.json()["detail"]) == (
            404,
            "there is no model 'nothing'; there are: colours, other",
        )


def test_switch_rollback_and_restart(folder: Path) -> None:
    with client(folder) as served:
        assert served.get("/v1/versions").json()["versions"] == [
            {"version": "v10", "loaded": True},
            {"version": "v9", "loaded": False},
        ]
        first = [predict(served, seed) for seed in range(8)]
        assert {each["model_version"] for each in first} == {"v10"}
        found = change(served, "switch", "v9").json()
        assert (found["active"], found["previous"], found["sample"]["images"]) == ("v9", "v10", 8)
        second = [predict(served, seed) for seed in range(8)]
        assert {each["model_version"] for each in second} == {"v9"}
        agreed = sum(a["class_name"] == b["class_name"] for a, b in zip(first, second, strict=True))
        assert found["sample"]["same_class"] == agreed < 8
    with client(folder) as served:
        assert predict(served)["model_version"] == "v9", "a restart does not undo it"
        assert change(served, "rollback").json()["active"] == "v10"
        assert predict(served) | {"id": ""} == first[1] | {"id": ""}


def test_a_version_that_cannot_be_used_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_version(folder / "colours" / "v11", error="the weights are damaged")
    add_version(folder / "colours" / "v12", seed=12)
    (folder / "colours" / "serving.json").write_text(json.dumps({"active": "v9"}))
    load = serving.load_numpy_model

    def load_broken(place: Path, **options: Any) -> Any:
        found = load(place, **options)
        if place.name == "v12":
            object.__setattr__(found, "predict", lambda levels: (levels[:, 0, 0] * 0.0, levels[:, 0, 0] * float("nan")))
        return found

    with client(folder) as served:
        for action, version, expected in (
            ("switch", "v11", "version v11 of colours cannot be loaded: the weights are damaged"),
            ("switch", "v13", "colours has no version 'v13'; there are: v12, v11, v10, v9"),
            ("switch", "v9", "version v9 of colours answers already"),
            ("switch", None, "version must be the version to switch to"),
            ("rollback", None, "colours has no version to go back to: none was switched yet"),
        ):
            found = change(served, action, version)
            assert found.status_code in (409, 422)
            assert expected in found.json()["detail"]
        monkeypatch.setattr(models_module, "load_served", load_broken)
        found = change(served, "switch", "v12")
        assert "version v12 of colours does not return probabilities of its classes" in found.json()["detail"]
        assert served.get("/v1/versions").json() | {"versions": []} == {
            "name": "colours",
            "path": None,
            "active": "v9",
            "previous": None,
            "shadow": None,
            "next": None,
            "versions": [],
            "sample": None,
        }
        assert predict(served)["model_version"] == "v9"
        found = change(served, "switch", None, "/models/other/v1/versions")
        assert found.status_code == 422


def test_only_admins_switch(folder: Path) -> None:
    keys = (("anna", "admin", "anna-token"), ("ben", "feedback", "ben-token"))
    with client(folder, keys=keys) as served:
        for token, status in (("ben-token", 403), ("anna-token", 200)):
            for path in ("/v1/versions", "/models/colours/v1/versions"):
                headers = {"Authorization": f"Bearer {token}"}
                found = served.post(path, json={"action": "shadow", "version": None}, headers=headers)
                assert found.status_code == status, found.text
        assert served.get("/models/colours/v1/model").status_code == 401
        assert served.get("/models/colours/").status_code == 200


def test_shadow_says_where_versions_differ_and_which_is_right(folder: Path, tmp_path: Path) -> None:
    with client(folder, feedback=str(tmp_path / "feedback"), keep=str(tmp_path / "kept")) as served:
        assert served.get("/v1/shadow").status_code == 404
        before = [predict(served, seed) for seed in range(20)]
        assert change(served, "shadow", "v9").json()["shadow"] == "v9"
        answers = [predict(served, seed) for seed in range(20)]
        same = [each["class_name"] for each in answers] == [each["class_name"] for each in before]
        assert same, "the shadow changes no answer"
        found = served.get("/v1/shadow").json()
        assert (found["active"], found["version"], found["images"]) == ("v10", "v9", 20)
        assert found["different"] == len(found["differences"]) > 5
        digests = {each["image"]: each["shadow_class_name"] for each in found["differences"]}
        told = 0
        for seed, answer in enumerate(answers):
            # the other version's class is the true one, wherever they differ
            digest = json.loads(_decoded(answer["id"]))["image"]
            body = {"id": answer["id"], "right": digest not in digests}
            if digest in digests:
                body["class_name"], told = digests[digest], told + 1
            result = served.post("/v1/feedback", json=body)
            assert result.status_code == 200, (seed, result.text)
        found = served.get("/v1/shadow").json()
        assert (found["told"], found["shadow_right"], found["only_shadow_right"]) == (20, 20, told)
        assert found["only_right"] == 0
        assert found["verdict"] == ("better" if found["evidence"] >= 20 else "too few to tell")
        assert {each["true"] for each in found["differences"]} == set(digests.values())
        assert change(served, "switch", "v9").json() | {"versions": [], "sample": None} == {
            "name": "colours",
            "path": None,
            "active": "v9",
            "previous": "v10",
            "shadow": None,
            "next": None,
            "versions": [],
            "sample": None,
        }
        found = served.post("/v1/feedback", json={"id": before[0]["id"], "right": True})
        assert found.status_code == 200, "answers of the version before can still be judged"
    assert sorted(path.name for path in (tmp_path / "feedback" / "colours").glob("*.db")) == ["v10.db", "v9.db"]
    assert (tmp_path / "feedback" / "other" / "1.db").is_file()


def _decoded(receipt: str) -> bytes:
    import base64

    body = receipt.partition(".")[0]
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


def test_the_better_version_is_named_only_when_it_is_clear() -> None:
    book = FeedbackBook(replace(serving.numpy_model(), fingerprint="m"))
    verdicts = []
    for number in range(8):
        receipt = Receipt.of("m", bytes([number]), "answer", "ant", True)
        book.add_shadow_answer(ShadowAnswer("2", receipt.image, 0.0, "answer", "ant", 0.9, "answer", "bee", 0.8))
        book.add(receipt, False, class_name="bee")
        verdicts.append(book.compare("2")["verdict"])
    assert verdicts == 7 * ["too few to tell"] + ["better"]  # 2⁷ B(1, 8) = 16, 2⁸ B(1, 9) = 28.4
    assert book.compare("3")["images"] == 0


def test_switches_under_load_drop_no_request(tmp_path: Path) -> None:
    """A shorter form of benchmarks/serve_switches.py."""
    for number in (1, 2):
        add_version(tmp_path / "models" / "colours" / str(number), seed=number)
    with serving.server(models=tmp_path / "models", decoders=2) as served:
        statuses: Counter[int] = Counter()
        versions: set[str] = set()
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                found = served.predict()
                statuses[found.status] += 1
                if found.status == 200:
                    versions.add(found.json["model_version"])

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(6):
            body = json.dumps({"action": "switch", "version": str(1 + turn % 2)})
            found = served.request("POST", "/v1/versions", body, {"Content-Type": "application/json"})
            assert found.status == 200, found.body
        over.set()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}
        assert versions == {"1", "2"}


def test_errors_in_a_folder_of_models_are_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not the folder of a model"):
        Models(folder / "notes")
    with pytest.raises(NotFoundError, match="there is no folder"):
        Models(tmp_path / "nowhere")
    plan = folder / "colours" / "serving.json"
    plan.write_text("{}")
    with pytest.raises(CalpromptError, match=r"serving.json cannot be read: .*remove it to begin with the newest"):
        Models(folder).plan("colours")
    plan.write_text(json.dumps({"active": "v8"}))
    with pytest.raises(NotFoundError, match="names the version 'v8', which is not there"):
        Models(folder).plan("colours")
    with pytest.raises(SettingError, match=r"other has no versions; serve a folder MODELS with MODELS/other/VERSION"):
        Models(folder).write_plan("other", Plan("2"))
    for number in range(40):
        add_version(folder / f"m{number}", seed=number)
    with pytest.raises(SettingError, match="has 42 models, and the limit is 32"):
        Models(folder)


def test_two_changes_at_once_and_a_stale_one_are_refused(folder: Path) -> None:
    keeper = Keeper(Models(folder), ServeSettings())
    seen = Plan("v10")
    proposed = keeper.propose("colours", seen, "v9")
    keeper.check_in("one", {}, {"colours": "version v9 cannot be loaded"})
    for version in ("v9", "v10"):
        with pytest.raises(ProblemError, match="version v9 of colours is being loaded"):
            keeper.propose("colours", seen, version)
    with pytest.raises(ProblemError, match="were changed meanwhile"):
        keeper.commit("colours", seen, Plan("v9"))
    keeper.cancel("colours", proposed)
    assert not keeper.is_loaded("colours", "v10"), "what failed before is forgotten"
    keeper.commit("colours", keeper.propose("colours", seen, "v9"), Plan("v9", previous="v10"))
    with pytest.raises(ProblemError, match="were changed meanwhile"):
        keeper.propose("colours", seen, "v9")


def test_a_process_that_begins_later_reads_receipts_of_versions_before(folder: Path) -> None:
    keeper, model = Keeper(Models(folder), ServeSettings()), Models(folder).load("colours", "v9")
    secret, _ = keeper.open(model)[model.version]
    app = create_app(Models(folder), ServeSettings(decoders=1), keeper=keeper)
    receipt = sign(Receipt.of(model.fingerprint, b"pixels", "answer", "red", False), secret)
    with TestClient(app, base_url=LOCAL) as served:
        found = served.post("/v1/feedback", json={"id": receipt, "right": True})
        assert found.status_code == 200, found.text


def test_a_version_with_an_unexpected_error_is_refused_and_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = serving.load_numpy_model

    def broken(place: Path, **options: Any) -> Any:
        if place.name == "v9":
            raise KeyError("rule")
        return load(place, **options)

    monkeypatch.setattr(models_module, "load_served", broken)
    with client(folder) as served:
        found = change(served, "switch", "v9")
        assert found.status_code == 409
        assert "version v9 of colours cannot be loaded: KeyError('rule')" in found.json()["detail"]
        assert change(served, "shadow").status_code == 200


def test_a_shadow_version_is_not_asked_by_name(folder: Path) -> None:
    with client(folder) as served:
        assert change(served, "shadow", "v9").status_code == 200
        assert served.get("/v2/models/colours").json()["versions"] == ["v10"]
        found = served.get("/v2/models/colours/versions/v9")
        assert (found.status_code, "there are: v10" in found.json()["error"]) == (404, True)


def test_a_path_with_a_foreign_host_is_not_redirected_to(folder: Path) -> None:
    with client(folder, keys=(("anna", "admin", "anna-token"),)) as served:
        found = served.get("/models/%5C%5Cevil.example", follow_redirects=False)
        assert found.headers.get("location", "%5C%5Cevil.example/") == "%5C%5Cevil.example/"
        found = served.get("/models/other", headers={"Host": "evil.example"}, follow_redirects=False)
        assert (found.status_code, "location" in found.headers) == (403, False)


def test_the_fit_of_a_new_version_takes_a_newer_name() -> None:
    for newest, expected in (
        ("9", "10"),
        ("v10", "v11"),
        ("2026-02", "2026-03"),
        ("v9.1", "v9.2"),
        ("final", "final-2"),
    ):
        assert next_version(newest) == expected
        assert models_module._age(expected) > models_module._age(newest)
