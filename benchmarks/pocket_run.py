"""Where the time of a CoOp run on the pocket goes: 50 epochs, 16 shots, one thread.

    python benchmarks/pocket_run.py                                  signs, food and objects
    python benchmarks/pocket_run.py --data pocket_photos --loss ce

Seconds are CPU time of the process, which other work on the machine changes less than the clock. "Features" are those
of training views and test pictures, computed by the first run and read from the store by the next. Shares of a training
step are of torch's own operators, by its profiler, over ten more epochs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from calprompt.features.store import FeatureStore
from calprompt.runs.config import build_config, read_recipe
from calprompt.runs.execute import _Execution, run

KINDS = {
    "matrix products": ("mm", "matmul", "linear"),
    "attention": ("scaled_dot_product", "flash_attention", "softmax"),
    "activation and normalisation": ("gelu", "silu", "layer_norm"),
}


@contextmanager
def cpu_clock(timings: dict[str, float], name: str):
    """In place of the runs' own clock, which is that on the wall."""
    began = time.process_time()
    yield
    timings[name] = time.process_time() - began


def measured(data: str, loss: str, epochs: int, folder: Path, store: FeatureStore) -> dict[str, float]:
    """CPU seconds of the phases of one run."""
    _, settings = read_recipe("coop-pocket")
    config = build_config(**{**settings, "backbone": "pocket", "data": data, "loss": loss, "epochs": epochs})
    with patch("calprompt.runs.execute.clock", cpu_clock), tempfile.TemporaryDirectory(dir=folder) as out:
        return run(config, out, store=store).record["timings"]


def shares(data: str, loss: str, folder: Path, store: FeatureStore) -> dict[str, float]:
    """What training consists of, as fractions of the time of torch's operators."""
    spent: Counter[str] = Counter()
    train = _Execution.train

    def profiled(*args):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            history = train(*args)
        for event in seen.key_averages():
            name = event.key.removeprefix("aten::")
            kind = next((kind for kind, stems in KINDS.items() if any(stem in name for stem in stems)), "all else")
            if event.key.startswith("aten::"):
                spent[kind] += event.self_cpu_time_total
        return history

    with patch.object(_Execution, "train", profiled):
        measured(data, loss, 10, folder, store)
    return {kind: value / spent.total() for kind, value in spent.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["pocket_signs", "pocket_food", "pocket_objects"])
    parser.add_argument("--loss", default="tcpt")
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for data in args.data:
            store = FeatureStore(folder / "features")
            for attempt in ("first", "again"):
                timings = measured(data, args.loss, args.epochs, folder, store)
                parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in timings.items())
                print(f"{data}, {attempt}: {sum(timings.values()):.1f} s: {parts}", flush=True)
            print("  " + ", ".join(f"{k} {v:.0%}" for k, v in shares(data, args.loss, folder, store).items()))


if __name__ == "__main__":
    main()
