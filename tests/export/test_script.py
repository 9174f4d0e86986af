"""predict.py: one file that needs neither torch nor calprompt, from the command line and from Python."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calprompt.export import runtime
from calprompt.export.exporter import script
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule
from export.exported import export, folder, loaded, own_copy, pictures, tuned

DEPENDENCIES = {"numpy", "onnxruntime", "PIL"}
OPTIONAL = {"pillow_heif"}  # read HEIC where it is installed
BLOCKED = ("torch", "torchvision", "calprompt", "open_clip", "onnx", "onnxscript", "transformers", "scipy")
ALONE = f"""
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is not installed here")

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_alone(
    out: Path, *arguments: object, code: int = 0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an exported predict.py where nothing but its dependencies can be imported."""
    command = [sys.executable, "-I", "-c", ALONE, str(out / "predict.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, encoding="utf-8")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("files")
    paths = [root / f"{number} é.png" for number in range(6)]
    for path, picture in zip(paths, pictures(), strict=False):
        Image.fromarray(picture).save(path)
    return paths


def test_script_imports_only_its_dependencies() -> None:
    tree = ast.parse(script())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            names.add((node.module or "").partition(".")[0])
    assert names - set(sys.stdlib_module_names) - OPTIONAL == DEPENDENCIES


@pytest.mark.parametrize("name", ["coop", "cocoop"])
def test_script_without_calprompt_gives_the_predictors_probabilities(name: str, files: list[Path]) -> None:
    lines = run_alone(folder(name), *files, "--json", "--sets", "0.9").stdout.splitlines()
    answers = [json.loads(line) for line in lines]
    probabilities = Predictor(tuned(name)).predict_proba(files)
    for answer, path, row in zip(answers, files, probabilities, strict=True):
        assert answer["name"] == str(path)
        assert abs(answer["probability"] - row.max()) < 1e-4
        assert answer["class_name"] == answer["label"] == f"label {row.argmax()}"
        assert answer["class_name"] in answer["prediction_set"]
        assert answer["promised"] is (answer["decision"] == "answer")
        assert answer["withdrawn"] is None
    assert [answer["decision"] for answer in answers] == [answer.decision for answer in loaded(name).answers(files)]


def test_script_can_be_imported_without_calprompt(files: list[Path], tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(
        "import json, sys\n"
        f"sys.path.insert(0, {str(folder())!r})\n"
        "from predict import Model\n"
        f"model = Model({str(folder())!r}, threads=1)\n"
        f"print(json.dumps(model.predict_proba({[str(path) for path in files]}).tolist()))\n"
    )
    command = [sys.executable, "-I", "-c", ALONE, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ours = np.array(json.loads(done.stdout))
    np.testing.assert_allclose(ours, Predictor(tuned("coop")).predict_proba(files), atol=1e-4, rtol=0)


def test_the_script_reports_errors_without_a_traceback(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    done = run_alone(folder(), files[0], tmp_path / "none.png", tmp_path / "text.png", tmp_path, files[1], code=2)
    assert len(done.stdout.splitlines()) == 2
    for part in ("none.png (No such file", "text.png (text, not an image", "(a folder, not a file)"):
        assert part in done.stderr
    out = own_copy(tmp_path / "damaged")
    (out / "model.onnx").write_bytes((out / "model.onnx").read_bytes()[:-1])
    assert "model.onnx is damaged or was edited" in run_alone(out, files[0], code=2).stderr
    assert "usage:" in run_alone(folder(), code=2).stderr


def said(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> tuple[str, str]:
    assert runtime.main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_script_refuses_options_the_model_does_not_support(
    files: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = ("--model", folder())
    for options, says in (
        (("--sets", "0.5"), "no prediction sets of coverage 0.5; it has 0.9, 0.8, 0.9 per class"),
        (("--sets", "0.8", "--per-class"), "no prediction sets of coverage 0.8 per class"),
        (("--min-confidence", "2"), "min_confidence must be a probability"),
    ):
        assert says in said(capsys, files[0], *model, *options, code=2)[1]
    assert "there is no folder" in said(capsys, files[0], "--model", tmp_path / "none", code=2)[1]
    plain = export(Predictor(tuned("coop")), tmp_path / "plain")
    assert (
        "no prediction sets of coverage 0.9; fit it with coverage"
        in said(capsys, files[0], "--model", plain, "--sets", "0.9", code=2)[1]
    )


def test_script_prints_one_readable_line_per_image(
    files: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, _ = said(capsys, *files, "--model", folder(), "--sets", "0.9", "--threads", "1")
    lines = out.splitlines()
    assert len(lines) == len(files)  # a promise stands behind them, so there is no note
    for line, answer in zip(lines, loaded().answers(files), strict=True):
        shown = answer.class_name if answer.decision == "answer" else answer.decision
        assert line.split(".png")[1].strip().startswith(shown)
        assert "set: " in line
    out, _ = said(capsys, files[0], "--model", folder(), "--min-confidence", "0.999")
    assert out.endswith("no promise on errors stands behind these answers\n")
    rule = DecisionRule().without_promises("another tower")
    withdrawn = export(Predictor(tuned("coop")), tmp_path / "withdrawn", rule=rule)
    assert said(capsys, files[0], "--model", withdrawn)[0].endswith("promises withdrawn: another tower\n")
    answer = json.loads(said(capsys, files[0], "--model", withdrawn, "--json")[0])
    assert (answer["promised"], answer["withdrawn"]) == (False, "another tower")


def test_the_librarys_handle_needs_no_torch(files: list[Path], tmp_path: Path) -> None:
    script = f"""
import json, sys
import calprompt.export
after_import = sorted(set(sys.modules) & {{"torch", "onnxruntime", "onnx", "open_clip"}})
from calprompt.export.onnx_predictor import OnnxPredictor
model = OnnxPredictor({str(folder())!r})
model.predict_proba({str(files[0])!r})
answer = model.answers({str(files[0])!r}, coverage=0.9)[0]
print(json.dumps([after_import, sorted(set(sys.modules) & {{"torch", "onnx", "open_clip", "torchvision"}})]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == [[], []]
