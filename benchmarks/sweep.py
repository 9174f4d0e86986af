"""What a sweep saves: tiny runs by two workers that share what is loaded, against one process doing them one by one.

    python benchmarks/sweep.py                     CoOp and KgCoOp, six losses, nine seeds on the pocket: 108 runs
    python benchmarks/sweep.py --seeds 2           fewer

Seconds by the clock, with one thread per run, on a part of the pocket's photos. "One by one" is a loop over `run` in
this process, after imports: each run loads the backbone, reads the pictures and computes its features. Each worker also
imports everything, which is part of its time. Nothing is kept in the feature store.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import yaml

from calprompt import pocket
from calprompt.results.collecting import results
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep


def part_of_photos(target: Path, each: int) -> str:
    """A folder with some of the pocket's photos."""
    for split, number in (("train", 16), ("val", 4), ("test", each)):
        for folder in sorted((pocket.folder("photos") / split).iterdir()):
            (target / split / folder.name).mkdir(parents=True)
            for picture in sorted(folder.iterdir())[:number]:
                shutil.copy(picture, target / split / folder.name)
    return str(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=40, help="test images per class")
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as place:
        compare(Path(place), args)


def compare(place: Path, args: argparse.Namespace) -> None:
    """Both ways, and their ratio."""
    from calprompt import run
    from calprompt.runs.config import build_config

    content = {
        "settings": {
            "backbone": "pocket",
            "data": part_of_photos(place / "photos", args.images),
            "epochs": args.epochs,
            "crop": 1.0,
            "shots": 4,
        },
        "axes": {"tuner": ["coop", "kgcoop"], "loss": ["ce", "tcpt", "mbls", "zs_norm", "penalty", "margin_only"]},
        "seeds": list(range(1, args.seeds + 1)),
        "workers": args.workers,
    }
    file = place / "tiny.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    sweep = read_sweep(file)
    start = time.perf_counter()
    state = run_sweep(plan_sweep(sweep, f"{place}/shared"), store=False)
    shared = time.perf_counter() - start
    assert not state.failures, state.failures[0].reason
    print(f"{len(sweep.cells)} runs, {args.workers} workers     {shared:7.1f} s", flush=True)
    start = time.perf_counter()
    for cell in sweep.cells:
        run(build_config(**cell.settings), f"{place}/alone")
    alone = time.perf_counter() - start
    print(f"{len(sweep.cells)} runs, one by one    {alone:7.1f} s")
    print(f"ratio                    {alone / shared:7.2f}")
    tables = [results(f"{place}/{each}").to_csv(times=False) for each in ("shared", "alone")]
    print("the tables are the same, byte for byte" if tables[0] == tables[1] else "THE TABLES DIFFER")


if __name__ == "__main__":
    main()
