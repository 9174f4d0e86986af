"""The snippets of docs/serve-api.md against a real server: curl, Python and JavaScript."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from serve import serving
from serve.serving import Running, add_version, picture

PAGE = Path(__file__).parents[2] / "docs" / "serve-api.md"
ADDRESS = "http://127.0.0.1:8000"
BLOCKS = re.findall(
    r"^```(bash|python|javascript)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    for name in ("clothes/1", "clothes/2", "parts/2026-03"):
        add_version(folder / "models" / name, seed=len(name) + int(name[-1]))
    with serving.server(models=folder / "models") as found:
        yield found


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[f"{n} {each[0]}" for n, each in enumerate(BLOCKS)])
def test_every_snippet_runs(served: Running, tmp_path: Path, language: str, code: str) -> None:
    code = code.replace(ADDRESS, f"http://127.0.0.1:{served.port}")
    (tmp_path / "photo.png").write_bytes(picture())
    (tmp_path / "other.png").write_bytes(picture(seed=2))
    if language == "bash":
        command = ["bash", "-euo", "pipefail", "-c", code.replace("curl ", "curl --silent --show-error --fail ")]
    elif language == "python":
        command = [sys.executable, "-c", code]
    else:
        read = 'import { readFileSync } from "node:fs";\nconst image = new Blob([readFileSync("photo.png")]);\n'
        (tmp_path / "snippet.mjs").write_text(read + code)
        command = [str(compute_driver_executable()[0]), "snippet.mjs"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
