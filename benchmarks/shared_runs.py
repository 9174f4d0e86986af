"""What a run costs beyond its own training: first, asked for again, and with resources shared.

    python benchmarks/shared_runs.py                          CoOp on pocket_signs, 10 epochs
    python benchmarks/shared_runs.py --data pocket_photos --tuner maple

Seconds by the clock, in one process with one thread, after imports. "First" loads the backbone, reads the pictures
and computes all features. "Asked again" finds the finished run. "Alone" is another loss with nothing shared,
"shared" the same with the `Resources` of the runs before: what remains is its own training views, training and
evaluation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings

import torch

from calprompt import Resources, RunConfig, run
from calprompt.runs.config import build_config


def measured(config: RunConfig, out: str, resources: Resources | None = None) -> tuple[float, str]:
    """Seconds of a run, and how they divide."""
    start = time.perf_counter()
    done = run(config, out, resources=resources)
    seconds = time.perf_counter() - start
    parts = "" if done.reused else ", ".join(f"{name} {value:.2f}" for name, value in done.record["timings"].items())
    return seconds, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="pocket_signs")
    parser.add_argument("--tuner", default="coop")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")

    def config(**changes: object) -> RunConfig:
        settings = {"backbone": "pocket", "data": args.data, "tuner": args.tuner, "epochs": args.epochs, "crop": 1.0}
        return build_config(**settings | changes)

    with tempfile.TemporaryDirectory() as out:
        rows = [("first", measured(config(), out)), ("asked again", measured(config(), out))]
        rows += [("another loss, alone", measured(config(loss="ce"), f"{out}/alone"))]
        shared = Resources()
        measured(config(), f"{out}/shared", shared)
        rows += [
            ("another loss, shared", measured(config(loss="ce"), f"{out}/shared", shared)),
            ("another seed, shared", measured(config(seed=2), f"{out}/shared", shared)),
            ("asked again, shared", measured(config(), f"{out}/shared", shared)),
        ]
    print(f"{args.tuner} on {args.data}, {args.epochs} epochs")
    for name, (seconds, parts) in rows:
        print(f"{name:22s} {seconds:6.2f} s   {parts}")


if __name__ == "__main__":
    main()
