"""The notebooks run from top to bottom, and what they end with is what a reader should see."""

from __future__ import annotations

import ast
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from calprompt.notebook import card
from calprompt.promises import Answer

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = {"epochs=50": "epochs=1", "shots=16": "shots=2", '"context": 16': '"context": 2', "0[01]?.bmp": "00?.bmp"}


def run_cells(path: Path, changes: dict[str, str] | None = None) -> list[Any]:
    """The values that the code cells of a notebook end with, as Jupyter would show them; `changes` are made first."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    text = path.read_text("utf-8")
    for old, new in (changes or {}).items():
        old, new = (json.dumps(each)[1:-1] for each in (old, new))
        assert old in text
        text = text.replace(old, new)
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, path.name, "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    return shown


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_a_folder_of_photographs(capsys: pytest.CaptureFixture[str]) -> None:
    labels, classifier, answer, *_ = run_cells(EXAMPLES / "photographs.ipynb")
    assert "airplane" in labels
    bundle = classifier._repr_mimebundle_()
    assert "on pocket-photo: 10 classes" in bundle["text/html"]
    assert "accuracy" in bundle["text/html"]
    assert answer.class_name in answer._repr_html_()
    assert "may be" in answer._repr_html_()
    said = capsys.readouterr().out
    accuracy = int(said.partition("right on ")[2].partition("%")[0])
    assert accuracy > 50, said  # the pocket's zero-shot on all ten classes would be below


@pytest.mark.parametrize("changes", [SHORT, pytest.param({}, marks=pytest.mark.long)], ids=["short", "whole"])
def test_base_and_novel(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    display = types.ModuleType("IPython.display")
    display.Image = Path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    plain, tcpt, picture = run_cells(EXAMPLES / "tcpt.ipynb", changes)
    assert picture.stat().st_size > 10_000
    assert "ECE, novel, zero-shot" in plain._repr_html_()
    if not changes:
        assert abs(tcpt.metrics["novel"]["confidence_gap"]) < plain.metrics["novel"]["confidence_gap"] - 0.03
    assert "CoOp + TCPT, novel: says" in capsys.readouterr().out


def test_shown_text_is_escaped() -> None:
    html = Answer("<b>.jpg", "answer", "<i>", 0.5)._repr_html_()
    assert "&lt;b&gt;.jpg" in html
    assert "<i>" not in html
    assert "&lt;p&gt;" in card("a", [("b", "<p>")])
