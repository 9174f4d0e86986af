"""The wheel, installed into an environment of its own, works without the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 40 * 2**20  # bytes; package registries take 100 MB


def call(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows, so that nothing left in the folder gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = call("git", "ls-files", "-z", "--", "src", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT)
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).symlink_to(ROOT / name)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    call(sys.executable, "-m", "pip", "wheel", *options, folder / "source", cwd=folder)
    return next(folder.glob("calprompt-*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; its dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def test_size(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST


def test_contents(wheel: Path) -> None:
    """All data files of the package, and nothing that is not in the repository."""
    tracked = set(call("git", "ls-files", "src/calprompt", cwd=ROOT).split())
    with zipfile.ZipFile(wheel) as archive:
        packed = {f"src/{name}" for name in archive.namelist() if name.startswith("calprompt/")}
    assert packed == {name for name in tracked if (ROOT / name).exists()}


def test_zero_shot_run(python: Path, tmp_path: Path) -> None:
    """On some pictures of a bundled dataset, whose checksums are verified."""
    script = """
from pathlib import Path
from PIL import Image
import calprompt, calprompt.pocket
sheet = calprompt.pocket.sheet("clothes")
for label, number, pixels in sheet.checked("val"):
    folder = Path("clothes", sheet.class_names[label])
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{number}.png")
print(calprompt.__file__)
"""
    assert str(ROOT) not in call(python, "-c", script, cwd=tmp_path)
    command = ("train", "--tuner", "zero-shot", "--backbone", "pocket", "--data", "clothes", "--out", "runs")
    call(python, "-m", "calprompt", *command, cwd=tmp_path)
    (metrics,) = tmp_path.glob("runs/zero-shot-*/metrics.json")
    assert json.loads(metrics.read_text(encoding="utf-8"))["base"]["accuracy"] > 0.5
