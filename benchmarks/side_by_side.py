"""What training in one pass saves: runs that differ in their seed, together against one after another.

    python benchmarks/side_by_side.py                             CoOp, KgCoOp and ProGrad, five seeds, three datasets
    python benchmarks/side_by_side.py --epochs 50 --data pocket_clothes

Whole runs on the pocket by `run_together` in this process with one thread: training, evaluation and writing. The
backbone, the dataset and its features are loaded before, for both ways, and the two ways take turns. Seconds are of
the processor, which other work on the machine disturbs least. "Text tower" is what one pass through it and back takes
for five runs, against five passes for one: no run can gain more than that from sharing steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from calprompt.clip import load_backbone
from calprompt.runs import Resources, RunConfig, build_config, load_run
from calprompt.runs.together import run_together
from calprompt.tensor_files import read_tensor_file
from calprompt.tuners import CoOp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuners", nargs="+", default=["coop", "kgcoop", "prograd"])
    parser.add_argument("--data", nargs="+", default=["pocket_clothes", "pocket_signs", "pocket_animals"])
    parser.add_argument("--loss", default="tcpt")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for data in args.data:
        for tuner in args.tuners:
            compare(data, tuner, args)


def compare(data: str, tuner: str, args: argparse.Namespace) -> None:
    """Both ways in turns, and their ratio."""
    configs = [
        build_config(backbone="pocket", data=data, tuner=tuner, loss=args.loss, epochs=args.epochs, lr=0.002, seed=seed)
        for seed in range(1, args.seeds + 1)
    ]
    resources = Resources()
    with tempfile.TemporaryDirectory() as place:
        first = [build_config(**{**settings(config), "epochs": 1}) for config in configs]
        run_together(first, f"{place}/warm", resources=resources)  # loads everything
        seconds: dict[str, list[float]] = {"alone": [], "together": []}
        for turn in range(args.rounds):
            for way, most in (("alone", 1), ("together", args.seeds)):
                seconds[way].append(timed(partial(run_in_passes, configs, f"{place}/{way}{turn}", most, resources)))
        alone, together = min(seconds["alone"]), min(seconds["together"])
        apart = largest_difference(Path(place) / "alone0", Path(place) / "together0")
    limit, classes = text_tower(configs, resources)
    print(
        f"{data:16} {tuner:8} {classes:3} classes: {len(configs)} runs one after another {alone:6.1f} s, in one pass "
        f"{together:6.1f} s, ratio {alone / together:4.2f}; text tower {limit:4.2f}; prompts differ by {apart:.1e}",
        flush=True,
    )


def settings(config: RunConfig) -> dict[str, object]:
    return {"backbone": config.backbone, "data": config.data, "tuner": config.tuner, "seed": config.seed}


def run_in_passes(configs: list[RunConfig], out: str, most: int, resources: Resources) -> None:
    for start in range(0, len(configs), most):
        for done in run_together(configs[start : start + most], out, resources=resources, exact=False):
            assert not isinstance(done, Exception), done


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def largest_difference(one: Path, other: Path) -> float:
    """Between the prompts of the same runs in two folders."""
    found = 0.0
    for folder in one.iterdir():
        mine, _ = read_tensor_file(load_run(folder).folder / "prompts.safetensors")
        theirs, _ = read_tensor_file(other / folder.name / "prompts.safetensors")
        found = max(found, *(float((mine[name] - theirs[name]).abs().max()) for name in mine))
    return found


def text_tower(configs: list[RunConfig], resources: Resources) -> tuple[float, int]:
    """Passes through the text tower and back: those of single runs against one for all; and the number of classes."""
    from calprompt.runs import plan

    planned = plan(configs[0], resources=resources)
    names = planned.base.class_names
    tuners = [CoOp(load_backbone("pocket"), names, seed=config.seed) for config in configs]

    def passes(at_once: int) -> None:
        for start in range(0, len(tuners), at_once):
            CoOp.stacked_text_features(tuners[start : start + at_once]).sum().backward()

    passes(1)
    best = {most: min(timed(partial(passes, most)) for _ in range(10)) for most in (1, len(tuners))}
    return best[1] / best[len(tuners)], len(names)


if __name__ == "__main__":
    main()
