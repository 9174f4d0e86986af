"""Features of random views of the pool's pictures, view by view, on disk; goes on where it was stopped.

views-00.npy, views-01.npy, …   [pictures, 1280] float16; `progress.json` says how many rows of each are there
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch

from pretrain.photo.tower import WIDTH, Extractor
from pretrain.pool import Pool
from pretrain.views import MEAN, STD, views

CHUNK = 512  # pictures between two notes of progress


VIEWS = (None, None, 18_432, 18_432)  # pictures of each view: of drawings and silhouettes there are two more


def extract(
    pool: Pool, extractor: Extractor, folder: Path, views_of: tuple[int | None, ...] = VIEWS, echo=print
) -> None:
    """Store views of the pool's pictures, each of all or of so many first ones."""
    folder.mkdir(parents=True, exist_ok=True)
    count = len(pool.pictures)
    for view, most in enumerate(views_of):
        begun, first = time.monotonic(), rows_there(folder, view)
        for start in range(first, most or count, CHUNK):
            _write(folder, view, count, start, extractor(render(pool, view, start)))
            if start // CHUNK % 8 == 0:
                speed = (start + CHUNK - first) / (time.monotonic() - begun)
                echo(f"view {view}: {start + CHUNK:,} of {count:,}, {speed:.0f}/s", flush=True)


def render(pool: Pool, view: int, start: int) -> torch.Tensor:
    """A view of the pictures from `start` on, `CHUNK` of them: pixels [n, 3, 48, 48] from 0 to 1, always the same."""
    part, dice = slice(start, start + CHUNK), torch.Generator().manual_seed(1_000_003 * view + start)
    photos = torch.from_numpy(pool.pictures[pool.source == "cifar10"])
    pixels = views(torch.from_numpy(pool.pictures[part]), torch.from_numpy(pool.medium[part]), photos, dice)
    return pixels * torch.tensor(STD).view(1, 3, 1, 1) + torch.tensor(MEAN).view(1, 3, 1, 1)


def _write(folder: Path, view: int, rows: int, start: int, features: np.ndarray) -> None:
    path = folder / f"views-{view:02d}.npy"
    mode = "r+" if path.is_file() else "w+"
    store = np.lib.format.open_memmap(path, mode, dtype=np.float16, shape=None if mode == "r+" else (rows, WIDTH))
    store[start : start + len(features)] = features
    store.flush()
    progress = _progress(folder) | {str(view): start + len(features)}
    partial = folder / "progress.partial"
    partial.write_text(json.dumps(progress), "utf-8")
    partial.replace(folder / "progress.json")


def rows_there(folder: Path, view: int) -> int:
    """How many rows of a view are stored."""
    return _progress(folder).get(str(view), 0)


def load(folder: Path, rows: int) -> list[np.ndarray]:
    """The views that are there, each [rows so far, 1280]; the first must be complete."""
    if rows_there(folder, 0) < rows:
        raise SystemExit(f"not one view of every picture is in {folder}; extract features first")
    found = sorted((int(view), count) for view, count in _progress(folder).items())
    return [np.load(folder / f"views-{view:02d}.npy", mmap_mode="r")[:count] for view, count in found]


def _progress(folder: Path) -> dict[str, int]:
    path = folder / "progress.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
