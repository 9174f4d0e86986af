"""python -m pretrain: everything that made the pocket, one step after another; each goes on where it was stopped.

python -m pretrain all --work build/pocket      fetch, assemble, sheets, train, export, evaluate
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pretrain.evaluate import zero_shot
from pretrain.export import export
from pretrain.packages import fetch
from pretrain.pool import Pool, assemble
from pretrain.selection import COMPARED, KEPT_OUT, SHIFTS
from pretrain.sheets import make, seen_digests
from pretrain.train import Plan, train

ROOT = Path(__file__).parents[1]
POCKET = ROOT / "src" / "calprompt" / "pocket"
STEPS = ("fetch", "assemble", "sheets", "train", "export", "evaluate")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pretrain", description="Make the pocket model and its datasets.")
    parser.add_argument("step", choices=("all", *STEPS))
    parser.add_argument(
        "--work", type=Path, default=Path("build/pocket"), help="where downloads and checkpoints are kept"
    )
    parser.add_argument("--renders", type=int, default=Plan.renders, help="pictures to train on")
    parser.add_argument("--model", type=Path, default=POCKET / "model", help="where the model is written")
    parser.add_argument("--data", type=Path, default=POCKET / "data", help="where the sheets are written")
    chosen = parser.parse_args()
    work: Path = chosen.work
    work.mkdir(parents=True, exist_ok=True)
    steps = STEPS if chosen.step == "all" else (chosen.step,)
    if "fetch" in steps:
        fetch(work)
    if "assemble" in steps and not (work / "pool.npz").is_file():
        assemble(fetch(work)).save(work)
    if "sheets" in steps:
        packages = fetch(work)
        seen = seen_digests(packages, Pool.load(work))
        make(packages, seen, chosen.data)
        if chosen.data == POCKET / "data":  # what the tests hold these sheets against
            (ROOT / "tests" / "pocket" / "seen.bin").write_bytes(b"".join(sorted(seen)))
    if "train" in steps:
        train(Pool.load(work), work, Plan(renders=chosen.renders))
    if "export" in steps:
        print(export(work / "checkpoint.safetensors", Pool.load(work), chosen.model))
    if "evaluate" in steps:
        names = [each.name for each in (*KEPT_OUT, *COMPARED, *SHIFTS)]
        found = zero_shot(chosen.model, chosen.data, names)
        rounded = {name: {what: round(value, 3) for what, value in row.items()} for name, row in found.items()}
        (chosen.model / "zero_shot.json").write_text(json.dumps(rounded, indent=2) + "\n")


if __name__ == "__main__":
    main()
