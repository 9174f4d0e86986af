"""A Ray cluster that loses a node: the sweep's table and the stored features must be those of this machine alone.

    python benchmarks/ray_cluster.py
    python benchmarks/ray_cluster.py --runs 12 --epochs 6

Starts a cluster of two nodes here, each with one worker. A sweep is done once by local processes and once by the
cluster, of which the second node is killed when a third of the runs is finished; then again with a new node, with runs
that are sent back instead of written to the folder. The tables are compared byte for byte, without the columns of time
and memory.
Then features are extracted, again with a node killed in the middle, and each is compared with one computed here.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

MEMORY = 80_000_000  # bytes of the object store of a node


def start(folder: str) -> Any:
    """Two nodes with a worker each; they end with this process."""
    os.environ |= {
        "RAY_TMPDIR": folder,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    return cluster


def lose_node(cluster: Any) -> None:
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    print("  a node was killed", flush=True)


def sweep(cluster: Any, file: Path, out: Path, *, lose_after: int, send_back: bool = False) -> tuple[bytes, int, float]:
    """The table of a sweep on the cluster, how many runs were begun again, and seconds."""
    from calprompt.executors.ray import RayExecutor
    from calprompt.results.collecting import results
    from calprompt.sweep.driver import run_sweep
    from calprompt.sweep.sweep_file import read_sweep
    from calprompt.sweep.sweep_plan import plan_sweep

    def watch(state: Any, outcome: Any) -> None:
        if len(state.done) >= lose_after and len(state.running) == 2 and cluster.worker_nodes:  # both are at work
            lose_node(cluster)

    with RayExecutor(cluster.address) as executor:
        state = run_sweep(plan_sweep(read_sweep(file), out), executor=executor, send_back=send_back, watch=watch)
    assert not state.failures, state.failures
    return results(out).to_csv(times=False), executor.retries, state.seconds


def extraction(cluster: Any, store: Path, views: int) -> tuple[int, int, float, bool]:
    """How many features were extracted with a node lost, how often a portion was begun again, seconds, and whether
    all are what is computed here without a store."""
    import torch

    from calprompt.clip.load import load_backbone
    from calprompt.data.checks import UnreadableImages
    from calprompt.data.load import load_dataset
    from calprompt.executors.ray import RayExecutor
    from calprompt.extraction import ExtractionSettings, extract, plan_extraction
    from calprompt.features.frozen import frozen_features
    from calprompt.features.store import FeatureStore

    plan = plan_extraction(ExtractionSettings("pocket_photos", ("pocket",), ("train", "val"), views), store=store)
    seen: list[int] = []

    def progress(what: str, done: int, total: int, note: str = "") -> None:
        seen.append(done)
        if len(seen) == 2 and cluster.worker_nodes:
            lose_node(cluster)

    with RayExecutor(cluster.address) as executor:
        state = extract(plan, executor=executor, progress=progress)
    backbone, dataset, same = load_backbone("pocket").view(crop=0.08), load_dataset("pocket_photos"), True
    for split, number in ((dataset.train, 0), (dataset.train, views), (dataset.val, 0)):
        unreadable, steps = UnreadableImages(), []
        stored = frozen_features(
            backbone,
            split.images,
            number,
            unreadable=unreadable,
            store=FeatureStore(store),
            progress=lambda *words, steps=steps: steps.append(words[-1]),
        )
        same = same and torch.equal(stored, frozen_features(backbone, split.images, number, unreadable=unreadable))
        same = same and not any("images/s" in step for step in steps)  # all were in the store
    return state.computed + state.found, executor.retries, state.seconds, same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12, help="of the sweep; a multiple of 4")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--views", type=int, default=4)
    args = parser.parse_args()
    content = {
        "settings": {"backbone": "pocket", "epochs": args.epochs, "crop": 1.0, "shots": 4},
        "axes": {"data": ["pocket_photos", "pocket_digits"], "loss": ["ce", "tcpt"]},
        "seeds": list(range(1, args.runs // 4 + 1)),
        "calibrators": ["temperature", "dac"],
    }
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        cluster = start(folder)
        try:
            good = compare(cluster, content, Path(place), args)
        finally:
            cluster.shutdown()
    sys.exit(0 if good else 1)


def compare(cluster: Any, content: dict[str, Any], place: Path, args: argparse.Namespace) -> bool:
    """Print all comparisons; returns whether everything is the same."""
    from calprompt.results.collecting import results
    from calprompt.sweep.driver import run_sweep
    from calprompt.sweep.sweep_file import read_sweep
    from calprompt.sweep.sweep_plan import plan_sweep

    file = place / "grid.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    begin = time.perf_counter()
    run_sweep(plan_sweep(read_sweep(file), place / "local", workers=2))
    expected = results(place / "local").to_csv(times=False)
    rows = expected.count(b"\n") - 1
    print(f"local processes: {rows} rows, {len(expected)} bytes, {time.perf_counter() - begin:.0f} s", flush=True)
    good = True
    for name, send_back in (("shared folder", False), ("sent back", True)):
        if not cluster.worker_nodes:
            cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        out = place / name.replace(" ", "-")
        table, retries, seconds = sweep(cluster, file, out, lose_after=args.runs // 3, send_back=send_back)
        same = table == expected
        good = good and same
        print(
            f"Ray, {name}: {table.count(bytes([10])) - 1} rows, {retries} runs begun again, {seconds:.0f} s; "
            f"table {'identical' if same else 'DIFFERENT'} without time and memory",
            flush=True,
        )
    cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    count, retries, seconds, same = extraction(cluster, place / "store", args.views)
    print(
        f"Ray, extraction: {count} features, {retries} portions begun again, {seconds:.0f} s; "
        f"{'all identical' if same else 'DIFFERENT'}, and none is computed again"
    )
    return good and same


if __name__ == "__main__":
    main()
