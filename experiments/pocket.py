"""The paper on the pocket: every tuner x loss x dataset x seed on the embedded model, and every calibrator on each run.

    python experiments/pocket.py rates   --out runs/pocket                 rates chosen on datasets kept out of the rest
    python experiments/pocket.py run     --out runs/pocket [--settings pocket] [--worker 0/2]
    python experiments/pocket.py collect --out runs/pocket                 one tidy table, experiments/pocket.csv

Settings are the published ones; those for the pocket, where crops leave half of a picture and CoOp's vectors all stand
before the name (docs/pocket.md says why); or these with the rates chosen here ("tuned").

Stopped and started again, it goes on; several workers share the work. A job leaves one JSON file of numbers.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from calprompt.data.store import FeatureStore
from calprompt.errors import CalpromptError
from calprompt.evaluation import EvaluationSettings, evaluate_run
from calprompt.files import write_bytes, write_json
from calprompt.runs import run
from calprompt.runs.recipes import build_config, read_recipe

HERE = Path(__file__).parent
DATASETS = ("photos", "clothes", "food", "animals", "faces", "sketch_nature", "flags", "sketch_things", "objects")
KEPT_OUT = ("places", "events", "sketch_rest")
TUNERS = ("coop", "kgcoop", "maple", "prograd", "cocoop", "promptsrc", "proda")
LOSSES = ("ce", "tcpt", "margin_only", "moments_only", "mbls", "zs_norm", "penalty")
CALIBRATORS = ("temperature", "dac", "temperature -> dac", "sals", "vector", "isotonic", "histogram")
METRICS = ("accuracy", "ece", "ace", "mce", "nll", "brier", "mean_confidence")
SEEDS = (1, 2, 3, 4, 5)
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the published learning rate, of which one is chosen
DEPTH = {"maple": {"depth": 3}, "promptsrc": {"depth": 3, "visual_depth": 5}}  # as many blocks as the pocket has


@dataclass(frozen=True)
class Job:
    """One run and what to call it."""

    settings: str
    tuner: str
    loss: str
    dataset: str
    seed: int
    shots: int
    rate: float

    @property
    def name(self) -> str:
        return f"{self.settings}-{self.tuner}-{self.loss}-{self.dataset}-{self.shots}shot-seed{self.seed}-{self.rate:g}"


def published(tuner: str) -> dict[str, Any]:
    """The settings of a tuner with TCPT, base to novel, as far as the pocket has so many blocks."""
    _, settings = read_recipe(f"{tuner}-tcpt")
    return {**settings, "options": {**settings["options"], **DEPTH.get(tuner, {})}}


def for_pocket(tuner: str) -> dict[str, Any]:
    """The same, changed where the pocket needs it."""
    return read_recipe("coop-pocket")[1] if tuner == "coop" else {**published(tuner), "crop": 0.5}


def jobs(chosen: argparse.Namespace) -> Iterator[Job]:
    """What compares tuners and losses: all of a seed before the next."""
    rates = json.loads((HERE / "pocket_rates.json").read_text()) if chosen.settings == "tuned" else {}
    for seed in chosen.seeds:
        for loss in chosen.losses:
            for tuner in chosen.tuners:
                rate = rates[tuner]["rate"] if rates else published(tuner)["lr"]
                for dataset in chosen.datasets:
                    yield Job(chosen.settings, tuner, loss, dataset, seed, chosen.shots, rate)


def rate_jobs(chosen: argparse.Namespace) -> Iterator[Job]:
    """What the rates are chosen by: cross-entropy alone, on datasets that compare nothing."""
    for tuner in chosen.tuners:
        for factor in FACTORS:
            for dataset in KEPT_OUT:
                rate = float(f"{factor * published(tuner)['lr']:.3g}")
                yield Job("rates", tuner, "ce", dataset, 1, chosen.shots, rate)


def work(job: Job, out: Path, store: FeatureStore) -> None:
    """Run a job that is not done yet, and write its numbers."""
    done = out / "done" / f"{job.name}.json"
    if done.is_file():
        return
    base = published(job.tuner) if job.settings == "published" else for_pocket(job.tuner)
    settings = {**base, "loss": job.loss, "lr": job.rate, "shots": job.shots, "seed": job.seed}
    began = time.process_time()
    found = run(build_config(backbone="pocket", data=f"pocket_{job.dataset}", **settings), out / "runs", store=store)
    spent = time.process_time() - began
    evaluation = evaluate_run(found.folder, EvaluationSettings(calibrators=CALIBRATORS, bootstrap=0, zero_shot=True))
    rows = [
        {"model": each.model, "calibrator": each.calibrator, "split": split}
        | {metric: values[metric].value for metric in METRICS}
        for each in evaluation.calibrated
        for split, values in each.values.items()
        if each.model == "tuned" or each.calibrator == "none"
    ]
    write_json(
        done,
        {
            **asdict(job),
            "run": found.folder.name,
            "cpu_seconds": round(spent, 2),
            "rows": rows,
            "val": found.metrics.get("val"),
        },
    )


def perform(all_jobs: list[Job], chosen: argparse.Namespace) -> None:
    """This worker's share of the jobs, one after the other; a job that fails is named and does not stop the rest."""
    number, of = map(int, chosen.worker.split("/"))
    (chosen.out / "done").mkdir(parents=True, exist_ok=True)
    store = FeatureStore(chosen.out / "features")
    began, failed = time.monotonic(), 0
    for i, job in enumerate(all_jobs[number::of]):
        try:
            work(job, chosen.out, store)
        except CalpromptError:
            failed += 1
            traceback.print_exc()
        if time.monotonic() - began > 60 * chosen.minutes:
            print("time is up")
            break
        print(
            f"{i + 1} of {len(all_jobs[number::of])}: {job.name}  {(time.monotonic() - began) / 60:.1f} min", flush=True
        )
    if failed:
        raise SystemExit(f"{failed} jobs failed")


def choose_rates(chosen: argparse.Namespace) -> None:
    """The rate with the lowest negative log likelihood on validation images, a mean over the datasets kept out."""
    perform(list(rate_jobs(chosen)), chosen)
    records = [json.loads(path.read_text()) for path in (chosen.out / "done").glob("rates-*.json")]
    table = {}
    for tuner in TUNERS:
        tried = {}
        for rate in sorted({record["rate"] for record in records if record["tuner"] == tuner}):
            nlls = [r["val"]["nll"] for r in records if (r["tuner"], r["rate"]) == (tuner, rate)]
            if len(nlls) == len(KEPT_OUT):
                tried[rate] = mean(nlls)
        if tried:
            table[tuner] = {
                "rate": min(tried, key=tried.__getitem__),
                "published": published(tuner)["lr"],
                "val_nll": tried,
            }
    write_json(HERE / "pocket_rates.json", table)


def collect(chosen: argparse.Namespace) -> None:
    """One row a (run, calibrator, split)."""
    rows = []
    for path in sorted((chosen.out / "done").glob("*.json")):
        record = json.loads(path.read_text())
        head = {
            key: record[key] for key in ("settings", "tuner", "loss", "dataset", "shots", "seed", "rate", "cpu_seconds")
        }
        rows += [{**head, **row} for row in record["rows"]]
    if not rows:
        raise SystemExit(f"{chosen.out} has no finished job")
    lines = [",".join(rows[0])]
    for row in rows:
        lines.append(",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()))
    write_bytes(HERE / "pocket.csv", ("\n".join(lines) + "\n").encode())
    print(f"{len(rows):,} rows of {len({tuple(row.values())[:7] for row in rows}):,} runs in {HERE / 'pocket.csv'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "run", "collect"))
    parser.add_argument("--out", type=Path, default=Path("runs/pocket"))
    parser.add_argument("--settings", choices=("published", "pocket", "tuned"), default="published")
    parser.add_argument("--tuners", nargs="+", choices=TUNERS, default=TUNERS)
    parser.add_argument("--losses", nargs="+", default=LOSSES)
    parser.add_argument("--datasets", nargs="+", choices=(*DATASETS, *KEPT_OUT), default=DATASETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--worker", default="0/1", help="this worker and how many there are, from 0")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no job after so many")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch")
    if chosen.what == "rates":
        choose_rates(chosen)
    elif chosen.what == "run":
        perform(list(jobs(chosen)), chosen)
    else:
        collect(chosen)


if __name__ == "__main__":
    main()
