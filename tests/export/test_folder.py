"""The folder: written in full or not at all, and refused if anything in it is not as it was written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calprompt
from calprompt import export as room
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, SettingError
from calprompt.export import exporter, runtime
from calprompt.export.exporter import script
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule
from export.exported import export, folder, own_copy, pictures, tuned

VERIFIED = ["logits.onnx", "model.json", "model.onnx", "weights.npz"]


def test_an_exported_folder_has_all_files_and_the_script() -> None:
    out = folder("cocoop")
    assert sorted(path.name for path in out.iterdir()) == sorted([*VERIFIED, "README.md", "card.md", "predict.py"])
    assert (out / "predict.py").read_text(encoding="utf-8") == script()
    assert (out / "card.md").read_text() == "# For tests\n"
    record = json.loads((out / "model.json").read_text())
    assert record["format"] == runtime.FORMAT
    assert record["backbone"] == {"name": "tiny", "fingerprint": "tiny"}
    assert record["versions"]["calprompt"] == calprompt.__version__
    assert sorted(record["files"]) == [name for name in VERIFIED if name != "model.json"]
    readme = (out / "README.md").read_text()
    for part in ("onnxruntime", "python predict.py", "10 classes", "at most one answer in ten is wrong", "card.md"):
        assert part in readme
    assert not (folder("coop") / "logits.onnx").exists()


def damages(path: Path) -> list[Callable[[], Any]]:
    data = path.read_bytes()
    middle = len(data) // 2
    return [
        lambda: path.write_bytes(data[:middle]),
        lambda: path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]),
        lambda: path.write_bytes(b""),
        lambda: path.unlink(),
    ]


@pytest.mark.parametrize("name", VERIFIED)
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    out = own_copy(tmp_path / "out", "cocoop")
    for damage in damages(out / name):
        damage()
        with pytest.raises(CalpromptError, match=name.replace(".", r"\.")):
            OnnxPredictor(out)


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    out = own_copy(tmp_path / "out")
    record = json.loads((out / "model.json").read_text())
    record["rule"]["min_confidence"] = 0.0
    (out / "model.json").write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=r"model\.json is damaged or was edited: its checksum does not fit"):
        OnnxPredictor(out)
    (out / "model.json").write_text("[]")
    with pytest.raises(DamagedFileError, match=r"model\.json is damaged: it has no format number"):
        OnnxPredictor(out)


def rewrite(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads((out / "model.json").read_text())
    change(record)
    (out / "model.json").write_text(json.dumps({**record, "checksum": runtime.checksum(record)}))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    out = own_copy(tmp_path / "out")
    rewrite(out, lambda record: record["calibrator"]["steps"].append({"step": "new", "keeps_argmax": True}))
    with pytest.raises(NewerFormatError, match=r"its calibrator has the step 'new', .* use the predict\.py that"):
        OnnxPredictor(out)
    rewrite(out, lambda record: record.update(format=99))
    with pytest.raises(NewerFormatError, match=r"has format 99, and formats up to 1 are known here; use the predict"):
        OnnxPredictor(out)


def test_editable_files_are_not_sealed(tmp_path: Path) -> None:
    out = own_copy(tmp_path / "out")
    (out / "README.md").unlink()
    (out / "predict.py").write_text("print('mine')\n")
    assert OnnxPredictor(out).class_names


def test_no_folder_and_no_model(tmp_path: Path) -> None:
    for place, says in (
        (tmp_path / "none", "there is no folder"),
        (tmp_path, r"has no model\.json: it is no exported"),
    ):
        with pytest.raises(SettingError, match=says):
            OnnxPredictor(place)


def test_export_never_overwrites_existing_files(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link"):
        with pytest.raises(SettingError, match=f"{name} exists already; choose another folder"):
            export(Predictor(tuned("coop")), tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "link"]
    (tmp_path / "empty").mkdir()
    assert export(Predictor(tuned("coop")), tmp_path / "empty") == tmp_path / "empty"
    deep = export(Predictor(tuned("coop")), tmp_path / "a" / "b")
    assert OnnxPredictor(deep).predict_proba(pictures(1)).shape == (1, 10)


def test_nothing_is_left_of_a_failed_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporter, "write_folder", fail)
    with pytest.raises(CalpromptError, match=r"cannot write .*out: No space left on device"):
        export(Predictor(tuned("coop")), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = exporter.write_folder

    def meanwhile(*args: Any, **options: Any) -> None:
        write(*args, **options)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("theirs")

    monkeypatch.setattr(exporter, "write_folder", meanwhile)
    with pytest.raises(SettingError, match="exists already"):
        export(Predictor(tuned("coop")), tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["theirs"]


def test_export_reports_progress_and_stores_only_needed_weights(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    export(
        Predictor(tuned("coop")),
        tmp_path / "out",
        progress=lambda what, done, total, note="": seen.append((done, total)),
    )
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    with np.load(tmp_path / "out" / "weights.npz", allow_pickle=False) as weights:
        assert weights.files == ["text"]
        assert weights["text"].dtype == np.float32


def test_withdrawn_promises_are_stated_and_not_promised(tmp_path: Path) -> None:
    rule = DecisionRule(min_confidence=0.3, target_error=0.1).without_promises("the classes were changed by hand")
    out = export(Predictor(tuned("coop")), tmp_path / "out", rule=rule, promises=["hardly ever wrong"])
    assert "hardly ever wrong" not in (out / "README.md").read_text()
    assert "does not hold: the classes were changed by hand" in (out / "README.md").read_text()
    assert not any(answer.promised for answer in OnnxPredictor(out).answers(pictures(3)))
    assert runtime.Model(out).rule.withdrawn == "the classes were changed by hand"


def test_no_promise_stands_behind_a_threshold_by_hand() -> None:
    ours = OnnxPredictor(folder())
    own = ours.rule.min_confidence
    assert all(
        answer.promised == (answer.decision == "answer") for answer in ours.answers(pictures(3), min_confidence=own)
    )
    answers = ours.answers(pictures(3), min_confidence=1.0)
    assert not any(answer.promised for answer in answers)
    assert "answer" not in {answer.decision for answer in answers}
    with pytest.raises(SettingError, match="min_confidence must be a probability"):
        ours.answers(pictures(1), min_confidence=7)
    with pytest.raises(SettingError, match=r"no prediction sets of coverage 0\.5; it has 0\.9, 0\.8, 0\.9 per class"):
        ours.predict_set(pictures(1), 0.5)
    assert ours.predict_set(pictures(2), 0.9)[0]


def test_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room, "find_spec", lambda name: None if name != "onnxscript" else name)
    with pytest.raises(
        SettingError, match=r"need onnx and onnxruntime, which are not installed: pip install 'calprompt"
    ):
        export(Predictor(tuned("coop")), tmp_path / "out")
    monkeypatch.delitem(sys.modules, OnnxPredictor.__module__)
    with pytest.raises(SettingError, match="need onnxruntime, which is not installed"):
        import_module(OnnxPredictor.__module__)
