"""The API says what the library says, of every kind of model, and every mistake is answered with a sentence."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import samples
from calprompt import Predictor
from calprompt.cli import main
from calprompt.errors import NotFoundError, SettingError
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.serve import feedback
from calprompt.serve.app import create_app
from calprompt.serve.feedback import FeedbackBook, Receipt
from calprompt.serve.loading import load_served, served_export
from calprompt.serve.problems import ProblemError
from calprompt.serve.settings import ServeSettings
from classifier import fits
from serve.serving import numpy_model, wait_until

LOCAL = "http://127.0.0.1"
SETTINGS = ServeSettings(decoders=1, queue=8, max_images=5, max_body="200KB", max_memory="1MB", max_pixels=1.0)


@cache
def exported() -> Path:
    out = samples.shared() / "served-export"
    fits.fitted().export(out)
    return out


@cache
def run_folder() -> Path:
    out = samples.shared() / "served-run"
    given = {"--backbone": samples.backbone(), "--data": samples.pictures(), "--out": out, "--set": "context=2"}
    given |= {"--shots": 4, "--epochs": 1, "--batch-size": 8, "--views": 1}
    assert main(["train", "--quiet", *(str(each) for pair in given.items() for each in pair)]) == 0
    return next(out.iterdir())


def picture(seed: int = 1, kind: str = "PNG", size: tuple[int, int] = (50, 40)) -> bytes:
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 90, (size[1], size[0], 3)) + noise.integers(0, 160, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, kind)
    return stream.getvalue()


def serving(place: Path, **settings: Any) -> TestClient:
    values = {**vars(SETTINGS), **settings}
    return TestClient(create_app(load_served(place), ServeSettings(**values)), base_url=LOCAL)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving(fits.saved()) as found:
        yield found


PICTURES = [picture(seed, kind, size) for seed, kind, size in ((1, "PNG", (50, 40)), (2, "JPEG", (33, 90)))]
PICTURES += [picture(3, "WEBP", (64, 64)), picture(4, "BMP", (20, 31)), picture(5, "GIF", (45, 44))]


def predicted(client: TestClient, data: bytes, **options: Any) -> dict[str, Any]:
    found = client.post("/v1/predict", content=data, params=options, headers={"Content-Type": "image/png"})
    assert found.status_code == 200, found.text
    return dict(found.json())


def row(answer: dict[str, Any], names: tuple[str, ...]) -> list[float]:
    by_name = {each["class_name"]: each["probability"] for each in answer["probabilities"]}
    return [by_name[name] for name in names]


def test_a_fitted_model_answers_as_the_library_does(client: TestClient) -> None:
    model = fits.fitted()
    (rule,) = model.rule_.sets
    expected = model.answer(PICTURES, coverage=rule.coverage)
    proba = model.predict_proba(PICTURES)
    names = tuple(map(str, model.classes_))
    for data, answer, probabilities in zip(PICTURES, expected, proba, strict=True):
        found = predicted(client, data, coverage=rule.coverage)
        np.testing.assert_allclose(row(found, names), probabilities, atol=1e-5)
        assert (found["decision"], found["class_name"]) == (answer.decision, answer.class_name)
        assert tuple(found["prediction_set"]) == answer.prediction_set
        assert found["promised"] == answer.promised


def test_an_exported_model_answers_as_the_library_does() -> None:
    model = OnnxPredictor(exported())
    with serving(exported()) as client:
        for data, answer, probabilities in zip(
            PICTURES, model.answers(PICTURES), model.predict_proba(PICTURES), strict=True
        ):
            found = predicted(client, data)
            np.testing.assert_allclose(row(found, model.class_names), probabilities, atol=1e-4)
            assert (found["decision"], found["class_name"]) == (answer.decision, answer.class_name)
        info = client.get("/v1/model").json()
        assert (info["kind"], info["classes_editable"]) == ("onnx", False)
        record = load_served(fits.saved()).track_record
        assert record is not None
        assert info["evidence"] == record.summary
        assert "no text tower" in client.get("/v1/model", params={"classes": "yak"}).json()["detail"]


def test_an_exported_model_is_served_without_torch() -> None:
    script = f"""
import sys
from fastapi.testclient import TestClient
from calprompt.serve.app import create_app
from calprompt.serve.loading import load_served
from calprompt.serve.problems import ProblemError
from calprompt.serve.settings import ServeSettings
app = create_app(load_served({str(exported())!r}), ServeSettings(decoders=1))
with TestClient(app, base_url={LOCAL!r}) as client:
    found = client.post("/v1/predict", content=open({str(fits.picture_paths()[0])!r}, "rb").read())
    assert found.status_code == 200, found.text
assert not {{"torch", "open_clip", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_code_in_an_exported_folder_is_not_run(tmp_path: Path) -> None:
    folder, trace = shutil.copytree(exported(), tmp_path / "model"), tmp_path / "trace"
    for name in ("predict.py", "__init__.py", "sitecustomize.py"):
        (folder / name).write_text(f"open({str(trace)!r}, 'w')")
    with serving(folder) as client:
        assert predicted(client, PICTURES[0])["name"] == "image"
    assert not trace.exists()


@pytest.mark.parametrize("part", [None, "novel", "all"])
def test_a_run_answers_as_its_predictor_does(part: str | None) -> None:
    predictor = Predictor.from_run(run_folder(), part=part)
    model = load_served(run_folder(), part=part, calibrator="none")
    with TestClient(create_app(model, SETTINGS), base_url=LOCAL) as client:
        for data, probabilities in zip(PICTURES, predictor.predict_proba(PICTURES), strict=True):
            found = predicted(client, data)
            np.testing.assert_allclose(row(found, predictor.class_names), probabilities, atol=1e-5)
        info = client.get("/v1/model").json()
        assert (info["kind"], info["promises"], info["target_error"]) == ("run", [], None)
        assert (info["evidence"] is None) == (part == "all")
        assert client.get("/v1/watch").json()["status"] == "unwatched"


def test_a_form_is_answered_as_the_bytes_are(client: TestClient) -> None:
    raw = predicted(client, PICTURES[0], top=2, min_confidence=0.99)
    form = client.post(
        "/v1/predict", files={"image": ("../frog.png", PICTURES[0])}, data={"top": "2", "min_confidence": "0.99"}
    ).json()
    assert form.pop("name") == "frog.png"
    assert raw.pop("name") == "image"
    assert form.pop("id") != raw.pop("id")
    assert form["probabilities"][0]["probability"] == pytest.approx(raw["probabilities"][0]["probability"], abs=1e-5)
    assert len(form["probabilities"]) == 2
    assert form["decision"] == raw["decision"] != "answer"
    assert not form["promised"]


def test_a_batch_is_in_order_and_has_its_problems_in_place(client: TestClient) -> None:
    files = [("image", (f"{n}.png", data)) for n, data in enumerate([*PICTURES[:2], b"no image", PICTURES[3]])]
    answers = client.post("/v1/predict/batch", files=files).json()["answers"]
    assert [each["name"] for each in answers] == ["0.png", "1.png", "2.png", "3.png"]
    assert answers[2]["problem"]["status"] == 422
    assert answers[2]["problem"]["detail"] == "the image cannot be read: text, not an image"
    alone = [predicted(client, data) for data in (PICTURES[0], PICTURES[1], PICTURES[3])]
    for together, single in zip([answers[0], answers[1], answers[3]], alone, strict=True):
        assert together["probability"] == pytest.approx(single["probability"], abs=1e-5)


def test_edited_classes_withdraw_promises_and_answer_as_the_library_does(client: TestClient) -> None:
    own = client.get("/v1/model").json()
    names = (*own["classes"], "yak")
    edited = client.get("/v1/model", params={"classes": names}).json()
    assert edited["classes"] == list(names)
    assert edited["evidence"] is None
    assert edited["target_error"] is None
    assert "nothing is known of yak but the name" in edited["withdrawn"]
    assert {promise["status"] for promise in edited["promises"]} <= {"withdrawn", "refused"}
    found = predicted(client, PICTURES[0], classes=names)
    expected = fits.fitted().with_classes(["yak"]).predict_proba(PICTURES[0])[0]
    np.testing.assert_allclose(row(found, names), expected, atol=1e-5)
    assert (found["promised"], found["meaning"]) == (False, None)
    assert "yak" in found["withdrawn"]
    two = predicted(client, PICTURES[0], classes=["bee", "yak"])
    expected = fits.fitted().with_classes(["bee", "yak"], keep=False).predict_proba(PICTURES[0])[0]
    np.testing.assert_allclose(row(two, ("bee", "yak")), expected, atol=1e-5)
    assert client.get("/v1/model", params={"classes": own["classes"]}).json() == own


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (["bee", "Bee "], "the model reads these alike"),
        (["a" * 300], "200 characters at most"),
        (["bee\n"], "without line breaks"),
        ([" "], "must be names"),
        (["bee"] * 1500, "1000 names at most"),
    ],
)
def test_invalid_classes_are_refused_with_a_reason(client: TestClient, classes: list[str], says: str) -> None:
    found = client.get("/v1/model", params={"classes": classes})
    assert (found.status_code, found.headers["content-type"]) == (422, "application/problem+json")
    assert says in found.json()["detail"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"coverage": "0.5"}, "no prediction sets of coverage"),
        ({"coverage": "2"}, "coverage"),
        ({"per_class": "true"}, "give their coverage too"),
        ({"min_confidence": "nan"}, "min_confidence"),
        ({"top": "0"}, "top"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(client: TestClient, options: dict[str, str], says: str) -> None:
    in_address = client.post("/v1/predict", content=PICTURES[0], params=options)
    in_form = client.post("/v1/predict", files={"image": PICTURES[0]}, data=options)
    for found in (in_address, in_form):
        assert (found.status_code, found.headers["content-type"]) == (422, "application/problem+json")
        assert says in found.json()["detail"]


def test_feedback_moves_the_watch_and_counts_once(tmp_path: Path) -> None:
    served = load_served(fits.saved())
    settings = {
        name: str(tmp_path / file) for name, file in (("feedback", "m.jsonl"), ("keep", "kept"), ("watch", "w"))
    }
    promised = served.rule.promised
    with serving(fits.saved(), **settings) as client:
        answer = predicted(client, PICTURES[0])
        said = {"id": answer["id"], "right": False, "class_name": "yak"}
        files = {"image": ("0.png", PICTURES[0])}
        first = client.post("/v1/feedback", data={**said, "right": "false"}, files=files).json()
        assert first["counted"] == (promised and answer["decision"] == "answer")
        assert (first["reason"] is None) == first["counted"]
        assert first["kept"]
        again = client.post("/v1/feedback", json=said)
        assert (again.status_code, again.json()["detail"]) == (
            409,
            "there is feedback on this answer already; undo it first to change it",
        )
        other = client.post("/v1/feedback", data={"id": answer["id"], "right": "true"}, files={"image": PICTURES[1]})
        assert "image is not the one that was answered" in other.json()["detail"]
        forged = client.post("/v1/feedback", json={**said, "id": answer["id"][:-4] + "AAAA"})
        assert "belongs to no answer of this server" in forged.json()["detail"]
        state = client.get("/v1/watch").json()
        assert state == first["watch"]
        text = client.get("/metrics").text
        assert "calprompt_feedback_total" in text
    (kept,) = (tmp_path / "kept" / "yak").iterdir()
    assert kept.read_bytes() == PICTURES[0]
    with serving(fits.saved(), **settings) as client:  # the file is read again: feedback and receipts stay valid
        assert client.get("/v1/watch").json() == state
        assert client.post("/v1/feedback", json=said).status_code == 409
    with pytest.raises(SettingError, match="feedback on another model"):
        serving(exported(), feedback=settings["feedback"])


def test_images_are_watched_without_feedback(tmp_path: Path) -> None:
    for place, held_out in ((fits.saved(), 30), (exported(), 30), (run_folder(), None)):
        with serving(place) as client:
            for data in (PICTURES[0], PICTURES[0], PICTURES[1]):
                predicted(client, data)
            client.post("/v1/predict", content=PICTURES[2], params={"classes": ["yak", "zebu"]})
            found = client.get("/v1/watch").json()["images"]
            metrics = client.get("/metrics").text
        assert found["held_out"] == held_out
        assert ('calprompt_images_alike{model="' in metrics) == (held_out is not None)
        if held_out is None:
            assert found["status"] == "unwatched"
            assert "a run holds out none" in found["sentence"]
        else:
            assert (found["status"], found["seen"], found["repeated"]) == ("alike", 2, 1), "edited classes do not count"
            assert "No sign so far (2 images)" in found["sentence"]
    with pytest.raises(SettingError, match=r"nothing to keep. .*a run holds out none"):
        serving(run_folder(), watch=str(tmp_path / "watch.json"))


def test_what_was_seen_is_written_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "SAVED_WITHIN", 0.1)
    path = tmp_path / "watch.json"
    book = FeedbackBook(load_served(fits.saved()), image_path=path)
    book.see([0.0, 0.0, 0.0], "a" * 64)
    book.see([0.0, 0.0, 0.0], "b" * 64)
    assert wait_until(lambda: json.loads(path.read_text())["seen"] == 2)


def test_a_folder_exported_without_scores_is_reported() -> None:
    record = {**OnnxPredictor(exported()).record, "image_watch": None}
    old = OnnxPredictor(exported())
    old.record = record
    with pytest.raises(SettingError, match="has no scores of held-out images"):
        old.image_watch()
    assert OnnxPredictor(exported()).image_watch().held_out == 30
    del record["image_watch"]
    assert "has no scores" in served_export(old).not_watched
    assert served_export(old).image_watch is None


def test_the_same_image_counts_once_for_the_watch() -> None:
    book = FeedbackBook(replace(numpy_model(), fingerprint="m"))
    receipts = [Receipt.of("m", b"image", "answer", "ant", True) for _ in range(2)]
    assert book.add(receipts[0], True)["counted"]
    second = book.add(receipts[1], True)
    assert (second["counted"], second["reason"]) == (
        False,
        "there is feedback on this image already, and an image counts once",
    )
    with pytest.raises(ProblemError, match="there is feedback on this answer already"):
        book.add(receipts[1], True)
    unsure = book.add(Receipt.of("m", b"other", "unsure", "ant", True), False)
    assert "only answers are watched" in str(unsure["reason"])
    assert (book.state()["feedback"], book.state()["wrong"]) == (1, 0)
    for number in range(60):
        book.add(Receipt.of("m", bytes([number]), "answer", "ant", True), False)
    assert book.state()["status"] == "broken"
    assert "no longer holds" in book.state()["sentence"]


def test_requests_without_the_token_or_from_other_sites_are_refused() -> None:
    with serving(fits.saved(), token="secret-token") as client:
        assert client.get("/v1/model").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200
        assert client.get("/v1/model", headers={"Authorization": "Bearer secret-token"}).status_code == 200
        assert client.get("/v1/model", headers={"Authorization": "Bearer secret-tokem"}).status_code == 401
        assert "host not allowed" in client.get("/health", headers={"Host": "evil.example"}).json()["detail"]
        cross = client.post("/v1/feedback", json={}, headers={"Origin": "http://evil.example"})
        assert (cross.status_code, cross.json()["detail"]) == (403, "pages of other sites may not use this server")


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for path in ("/", "/v1/model", "/nowhere", "/static/page.js", "/v1/predict"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_a_page_that_is_known_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/static/page.css")
    assert first.headers["content-type"].startswith("text/css")
    assert client.get("/static/page.css", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e%2fapp.py").status_code == 404


def test_every_address_is_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        *("/v1/model", "/v1/predict", "/v1/predict/batch", "/v1/feedback", "/v1/feedback/undo"),
        *("/v1/watch", "/v1/models", "/v1/versions", "/v1/shadow", "/v1/improve", "/v1/samples", "/v1/suggest"),
        *("/health", "/ready"),
    }
    for path, methods in paths.items():
        for description in methods.values():
            assert description["description"], path


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host": "0.0.0.0"}, "can be reached by other machines, so keys are needed"),
        ({"token": "short"}, "8 or more characters"),
        ({"port": 70000}, "from 0 to 65535"),
        ({"max_body": "many"}, "max_body must be a size such as 20MB"),
        ({"max_memory": "1MB"}, "max_memory must be at least three times the largest body, 20MB"),
        ({"formats": ("HEIC",)}, "unknown image format 'HEIC'"),
        ({"queue": 0}, "queue must be 1 or more"),
        ({"false_alarms": 2.0}, "false_alarms must be a rate"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        ServeSettings(**settings)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no folder"):
        load_served(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="is not the folder of a model, of an exported model or of a run"):
        load_served(tmp_path)
    with pytest.raises(SettingError, match="calibrator is for runs"):
        load_served(fits.saved(), calibrator="dac")
    with pytest.raises(SettingError, match="device is not for exported models"):
        load_served(exported(), device="cpu")


def test_probabilities_of_all_classes_add_up_to_one(client: TestClient) -> None:
    answer = predicted(client, PICTURES[2], top=100)
    assert sum(each["probability"] for each in answer["probabilities"]) == pytest.approx(1)
