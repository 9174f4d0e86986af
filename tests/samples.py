"""Small things to run on: a CLIP with random weights, folders of pictures, files of tensors."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file

from calprompt.cli.app import main
from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.images import ImageFiles, Images
from calprompt.data.load import load_dataset
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import write_record
from calprompt.training import TrainingConfig

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
SIZE, EMBED, SCALE = 32, 32, 20.0
MODEL: dict[str, Any] = {
    "embed_dim": EMBED,
    "quick_gelu": True,
    "vision_cfg": {"image_size": SIZE, "patch_size": 8, "width": 64, "head_width": 32, "layers": 2},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


def rounding(size: float = 1.0, terms: int = 1) -> float:
    """How far two float32 computations of one number may be apart, both being right.

    Processors, and numbers of threads, add up in other orders. Each order is off by a unit in the last place of `size`
    for about the root of its `terms`, and what enters a sum was rounded before: eight units leave room for that.
    """
    return 8 * torch.finfo(torch.float32).eps * size * math.sqrt(terms)


@cache
def shared() -> Path:
    """A folder for what no test changes, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="calprompt-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def backbone() -> Path:
    """Folder of a tiny CLIP as open_clip saves one."""
    folder = shared() / "tiny-clip"
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CLIP(**MODEL)
        model.logit_scale.data.fill_(np.log(SCALE))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": MODEL, "preprocess_cfg": {}}))
    return folder


def picture(path: Path, seed: int, size: tuple[int, int] = (40, 36)) -> None:
    """A picture of coloured noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 80, (size[1], size[0], 3)) + noise.integers(0, 170, 3)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def picture_folder(root: Path, names: tuple[str, ...] = NAMES, each: int = 10) -> Path:
    """root/<class>/<number>.png"""
    for label, name in enumerate(names):
        for number in range(each):
            picture(root / name / f"{number}.png", seed=100 * label + number)
    return root


@cache
def pictures() -> Path:
    return picture_folder(shared() / "photos")


@cache
def loaded() -> Backbone:
    """The tiny CLIP, loaded."""
    return load_backbone(backbone())


@cache
def picture_files() -> ImageFiles:
    """The training images of `pictures`."""
    images = load_dataset(pictures()).train.images
    assert isinstance(images, ImageFiles)
    return images


def pixels(images: Images, index: int, preprocessing: Preprocessing) -> torch.Tensor:
    """[3, size, size] of the evaluation view of an image."""
    return preprocessing.normalise(images.read(index).views(preprocessing)[0][None])[0]


def edit_record(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change run.json of a run and write it as the library does, with its checksum."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    change(record)
    write_record(folder, record)


def dying(at: int, half: bool) -> Callable[[Any, Any], None]:
    """A stand-in for os.replace that kills at its n-th call, with the new file written in half or in full."""
    replace, calls = os.replace, 0

    def stand_in(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            if half:
                os.truncate(source, os.path.getsize(source) // 2)
            else:
                replace(source, target)
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    return stand_in


def tensors(kind: str = "features", each: int = 8, names: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    """A learnable dataset: every class is noise around a centre of its own."""
    shape = (EMBED,) if kind == "features" else (3, SIZE, SIZE)
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(len(names), *shape, generator=generator)
    found = {}
    for split in ("train", "val", "test"):
        labels = torch.arange(len(names)).repeat(each)
        noise = torch.randn(len(labels), *shape, generator=generator)
        found |= {f"{split}_{kind}": centres[labels] + 0.7 * noise, f"{split}_labels": labels}
    return found


def tensor_file(path: Path, held: dict[str, torch.Tensor] | None = None, names: Any = NAMES, **metadata: str) -> Path:
    """A dataset in a .safetensors file, its class names in the metadata."""
    if names is not None:
        metadata["class_names"] = json.dumps(names)
    save_file(tensors() if held is None else held, path, metadata)
    return path


@cache
def feature_file() -> Path:
    return tensor_file(shared() / "toys.safetensors")


def config(data: Path | None = None, *, epochs: int = 3, lr: float = 0.01, seed: int = 1, **settings: Any) -> RunConfig:
    """A run of a second."""
    settings.setdefault("options", {} if settings.get("tuner") == "zero-shot" else {"context": 2})
    settings.setdefault("shots", 4)
    settings.setdefault("views", 2)
    training = TrainingConfig(epochs=epochs, batch_size=8, lr=lr, seed=seed)
    return RunConfig(backbone=str(backbone()), data=str(data or feature_file()), training=training, **settings)


def forked(work: Callable[[], Any]) -> int:
    """A copy of this process that does some work and ends with what it returns, or with 1 after an error; its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(work() or 0)
        finally:
            os._exit(code)
    return child


def command(folder: Path, *words: Any, given: str = "") -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, without the seconds that it takes to import torch.

    Args:
        folder: For what it reads and prints.
        words: Of the command.
        given: Its standard input.
    """
    streams = [folder / name for name in ("stdin", "stdout", "stderr")]
    streams[0].write_text(given, encoding="utf-8")

    def work() -> int:
        for number, path in enumerate(streams):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
            setattr(sys, path.name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        warnings.resetwarnings()
        for unseen in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", unseen)  # as Python starts
        code = main([os.fsdecode(word) for word in words])
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    code = exit_code(forked(work))
    return subprocess.CompletedProcess(words, code, *(path.read_text(encoding="utf-8") for path in streams[1:]))


def exit_code(child: int, seconds: float = 120.0) -> int:
    """How a copy of this process ended; one that hangs is killed and told, instead of being waited for for ever."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the copy of the process was still running after {seconds:g} s")
