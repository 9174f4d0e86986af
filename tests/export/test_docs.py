"""The Python in docs/export.md runs as it stands, on fewer images, and so do its commands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from calprompt import pocket
from calprompt.export import graphs, runtime
from export.exported import copied

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(graphs, "write_tower", copied("write_tower"))
    for split, each in (("train", 16), ("val", 4), ("test", 8)):
        for folder in sorted((pocket.folder("photos") / split).iterdir()):
            (tmp_path / "photos" / split / folder.name).mkdir(parents=True)
            for picture in sorted(folder.iterdir())[:each]:
                shutil.copy(picture, tmp_path / "photos" / split / folder.name)
    shutil.copytree(tmp_path / "photos" / "test" / "frog", tmp_path / "frogs")
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        few = block.replace('"pocket_photos"', '"photos"')
        exec(few.replace("refit=refit", "refit=refit, max_accuracy_drop=1, max_ece_rise=1"), names)
    assert names["measured"]["bytes"]["after"] < names["measured"]["bytes"]["before"] / 3
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("python exported/predict.py")]
    for _, _, *arguments in commands:
        images = [str(path) for word in arguments for path in sorted(Path().glob(word)) if word.endswith(".bmp")]
        options = arguments[next((n for n, word in enumerate(arguments) if word.startswith("--")), len(arguments)) :]
        assert runtime.main([*images, *options, "--model", "exported"]) == 0
        assert len(capsys.readouterr().out.splitlines()) >= len(images) > 1
    assert len(commands) == 3
