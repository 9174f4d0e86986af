"""The paper on the pocket: every tuner x loss x dataset x seed on the embedded model, and every calibrator on each run.

    python experiments/pocket.py rates   --out runs/pocket                 rates, on datasets kept out of the rest
    python experiments/pocket.py run     --out runs/pocket [--settings pocket]
    python experiments/pocket.py collect --out runs/pocket                 one tidy table, experiments/pocket.csv

Settings are the published ones, with eight crops of every picture taken in turn; the same with a new crop in every
epoch ("fresh"), as published; those for the pocket, where pictures are shown whole, CoOp's vectors all stand before
the name (docs/pocket.md says why) and training is shorter; or these with the rates selected here ("tuned").
The others change one thing of "tuned", to see what the results depend on: "words" starts from a phrase instead of
random vectors, "long" trains for the published epochs, "few" takes as many steps as 16 shots do with the shots it is
given, "sharp" multiplies logits by 50 instead of 20, and "calibrated" by what makes zero-shot as confident as it is
accurate on the base half of the dataset's test pictures, an explanation that cannot be used in practice.
"depth1", "depth3", "depth6" and "depth12" take text towers of so many blocks, which `python -m pretrain.depths` trains.
With "shifted", runs of "tuned" on animals are tested on its shifts.

An interrupted experiment continues when it is started again; several processes at once share the work. A job writes
one JSON file of numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from pocket_numbers import FAR, LOSSES, NEAR, SHIFTED, SHIFTS, TABLE, TUNERS
from safetensors.torch import load_file, save_file

from calprompt.clip import load_backbone
from calprompt.data import UnreadableImages, base_novel, few_shot, load_dataset
from calprompt.errors import CalpromptError
from calprompt.evaluation import EvaluationSettings, evaluate_run
from calprompt.features import FeatureStore, frozen_features
from calprompt.files import locked, write_bytes, write_json
from calprompt.pocket.datasets import MODEL
from calprompt.runs import Target, evaluate_on, restore, run
from calprompt.runs.logits import split_tensors
from calprompt.runs.recipes import build_config, read_recipe

RATES = Path(__file__).with_name("pocket_rates.json")
RUN = ("settings", "tuner", "loss", "dataset", "shots", "seed", "rate")  # columns that name a run
ROW = ("model", "calibrator", "split")  # those that name a row of it
DATASETS = (*NEAR, *FAR)
KEPT_OUT = ("places", "events", "sketch_rest")
CALIBRATORS = ("temperature", "dac", "temperature -> dac", "sals", "vector", "isotonic", "histogram")
METRICS = ("accuracy", "ece", "ace", "mce", "nll", "brier", "mean_confidence")
ON_SHOTS = "accuracy_on_shots"
COLUMNS = ("cpu_seconds", *ROW, *METRICS, ON_SHOTS)  # after those that name a run
SEEDS = (1, 2, 3, 4, 5)
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the published learning rate, of which one is selected
FURTHER = (0.01, 0.03, 30.0, 100.0)  # those tried where the best of these is the first or the last
VIEWS = 8  # of a shot, taken in turn by the epochs; "fresh" says what that changes
DEPTH = {"maple": {"depth": 3}, "promptsrc": {"depth": 3, "visual_depth": 5}}  # as many blocks as the pocket has
SHORTER = {  # than the published ones, or in larger batches than 1 and 4, which a CPU needs
    "coop": {"epochs": 12},
    "kgcoop": {"epochs": 25},
    "maple": {"epochs": 5, "batch_size": 16},
    "prograd": {"epochs": 25},
    "cocoop": {"epochs": 3, "batch_size": 8},
    "promptsrc": {"epochs": 5, "batch_size": 16},
    "proda": {"epochs": 12, "batch_size": 32},
}
TOWERS = ("depth1", "depth3", "depth6", "depth12")
VARIANTS = ("words", "long", "few", "sharp", "calibrated", *TOWERS)
SETTINGS = ("published", "fresh", "pocket", "tuned", "shifted", *VARIANTS)
SHARP = 50.0
SMALL = ("photos", "clothes", "digits")  # five classes have few steps in an epoch, so they take all epochs


@dataclass(frozen=True)
class Job:
    """One run, by its settings."""

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
    """The settings of a tuner with TCPT, base to novel, with fewer crops and no more blocks than the pocket has."""
    _, settings = read_recipe(f"{tuner}-tcpt")
    return {**settings, "views": VIEWS, "options": {**settings["options"], **DEPTH.get(tuner, {})}}


def for_pocket(tuner: str, dataset: str) -> dict[str, Any]:
    """The same, changed where the pocket needs it, and shorter."""
    as_long = {"epochs": published(tuner)["epochs"]} if dataset in SMALL else {}
    settings = {**published(tuner), "crop": 1.0, **SHORTER[tuner], **as_long}
    options = {"coop": {"position": "end"}, "promptsrc": {"average": [0.75 * settings["epochs"], 1]}}
    return {**settings, "options": {**settings["options"], **options.get(tuner, {})}}


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The runs that compare tuners and losses: all of a seed before the next."""
    published_rates = args.settings in ("published", "fresh", "pocket")
    rates = {} if published_rates else json.loads(RATES.read_text("utf-8"))
    datasets = SHIFTS if args.settings == "shifted" else args.datasets
    if args.settings == "long":
        datasets = [name for name in datasets if name not in SMALL]
    for seed in args.seeds:
        for loss in args.losses:
            for tuner in args.tuners:
                rate = rates[tuner]["rate"] if rates else published(tuner)["lr"]
                for dataset in datasets:
                    yield Job(args.settings, tuner, loss, dataset, seed, args.shots, rate)


def rate_jobs(tuner: str, factor: float, shots: int) -> list[Job]:
    """The runs that a rate is selected by: cross-entropy alone, on datasets that are used for nothing else."""
    rate = float(f"{factor * published(tuner)['lr']:.3g}")
    return [Job("rates", tuner, "ce", dataset, 1, shots, rate) for dataset in KEPT_OUT]


def settings_of(job: Job) -> dict[str, Any]:
    """All settings of a run except the loss, the rate, the shots and the seed."""
    if job.settings in ("published", "fresh"):
        return {**published(job.tuner), **({"views": None} if job.settings == "fresh" else {})}
    settings = for_pocket(job.tuner, job.dataset)
    if job.settings == "long":
        return {**settings, "epochs": published(job.tuner)["epochs"]}
    if job.settings == "few":
        return {**settings, "epochs": settings["epochs"] * 16 // job.shots}
    if job.settings == "words":
        return {**settings, "options": {**settings["options"], "words": "a photo of a", "context": None}}
    return settings


def backbone_of(job: Job, out: Path, store: FeatureStore) -> str:
    """The pocket, or a folder of the pocket with another logit scale or text tower."""
    if job.settings in TOWERS:
        return str(out / job.settings)
    if job.settings not in ("sharp", "calibrated"):
        return "pocket"
    folder = out / (job.settings if job.settings == "sharp" else f"{job.settings}-{job.dataset}")
    if not folder.is_dir():
        scale = SHARP if job.settings == "sharp" else calibrated_scale(job.dataset, out, store)
        partial = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.copytree(MODEL, partial)
        weights = load_file(partial / "open_clip_model.safetensors")
        weights["logit_scale"] = torch.tensor(math.log(scale)).to(weights["logit_scale"])
        save_file(weights, partial / "open_clip_model.safetensors")
        with contextlib.suppress(OSError):  # another worker was first
            partial.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
    return str(folder)


def calibrated_scale(dataset: str, out: Path, store: FeatureStore) -> float:
    """The logit scale at which zero-shot's mean confidence on base test pictures is its accuracy, by bisection."""
    config = build_config(backbone="pocket", data=f"pocket_{dataset}", tuner="zero-shot", loss="ce")
    stored = load_file(run(config, out / "runs", store=store).folder / "logits.safetensors")
    cosines = stored["base/logits"].double() / load_backbone("pocket").logit_scale
    accuracy = (cosines.argmax(1) == stored["base/labels"]).double().mean()
    low, high = 1.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        sure = (middle * cosines).softmax(1).amax(1).mean() > accuracy
        low, high = (low, middle) if sure else (middle, high)
    return low


def on_shots(folder: Path, store: FeatureStore) -> dict[str, float]:
    """Accuracy of a run, and of the untuned model, on the pictures that it learned from."""
    restored, unreadable = restore(folder), UnreadableImages()
    config, backbone, tuner = restored.config, restored.backbone, restored.tuner
    shots = base_novel(few_shot(load_dataset(config.data), config.shots, config.seed))[0].train
    features = frozen_features(backbone, shots.images, unreadable=unreadable, store=store)[0]
    unreadable.report()
    tensors = split_tensors(backbone, tuner, tuner.frozen_text, shots, features)

    def accuracy(kind: str) -> float:
        return tensors[kind].argmax(1).eq(tensors["labels"]).double().mean().item()

    return {"tuned": accuracy("logits"), "zero-shot": accuracy("zero_shot_logits")}


def work(job: Job, out: Path, store: FeatureStore) -> None:
    """Run a job and write its numbers."""
    shifted = job.settings == "shifted"
    tuned = replace(job, settings="tuned", dataset=SHIFTED) if shifted else job
    settings = {**settings_of(tuned), "loss": job.loss, "lr": job.rate, "shots": job.shots, "seed": job.seed}
    backbone = backbone_of(tuned, out, store)
    began = time.process_time()
    result = run(build_config(backbone=backbone, data=f"pocket_{tuned.dataset}", **settings), out / "runs", store=store)
    rows = shifted_rows(result.folder, job.dataset, store) if shifted else []
    spent = time.process_time() - began
    write_json(
        out / "done" / f"{job.name}.json",
        {
            **asdict(job),
            "run": result.folder.name,
            "cpu_seconds": round(spent, 2),
            "on_shots": on_shots(result.folder, store),
            "rows": rows or calibrated_rows(result.folder),
            "val": result.metrics.get("val"),
        },
    )


def calibrated_rows(folder: Path) -> list[dict[str, Any]]:
    """Metrics of a run on base and novel classes: with every calibrator, and of zero-shot."""
    evaluation = evaluate_run(folder, EvaluationSettings(calibrators=CALIBRATORS, bootstrap=0, zero_shot=True))
    return [
        {"model": calibrated.model, "calibrator": calibrated.calibrator, "split": split}
        | {metric: values[metric].value for metric in METRICS}
        for calibrated in evaluation.calibrated
        for split, values in calibrated.values.items()
        if calibrated.model == "tuned" or calibrated.calibrator == "none"
    ]


def shifted_rows(folder: Path, shift: str, store: FeatureStore) -> list[dict[str, Any]]:
    """Metrics of a run and of zero-shot on base and novel classes in other pictures."""
    metrics = evaluate_on(folder, Target(f"pocket_{shift}"), store=store).record["metrics"]
    return [
        {"model": model, "calibrator": "none", "split": split} | {metric: values[split][metric] for metric in METRICS}
        for model, values in (("tuned", metrics), ("zero-shot", metrics["zero_shot"]))
        for split in ("base", "novel")
    ]


def perform(all_jobs: list[Job], args: argparse.Namespace) -> None:
    """Do every job that is not done and that no other process is doing; the error of one that fails is printed."""
    (args.out / "done").mkdir(parents=True, exist_ok=True)
    store = FeatureStore(args.out / "features")
    began, failed = time.monotonic(), 0
    for i, job in enumerate(all_jobs):
        if time.monotonic() - began > 60 * args.minutes:
            print("time is up")
            break
        with claimed(job, args.out) as ours:
            if not ours:
                continue
            try:
                work(job, args.out, store)
            except CalpromptError:
                failed += 1
                traceback.print_exc()
        print(f"{i + 1} of {len(all_jobs)}: {job.name}  {(time.monotonic() - began) / 60:.1f} min", flush=True)
    if failed:
        raise SystemExit(f"{failed} jobs failed")


@contextlib.contextmanager
def claimed(job: Job, out: Path) -> Iterator[bool]:
    """Claim a job for this process; yields False if it is done or another process has claimed it."""
    folder = out / "claims" / job.name
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except CalpromptError:
            yield False
            return
        yield not (out / "done" / f"{job.name}.json").is_file()


def choose_rates(args: argparse.Namespace) -> None:
    """The rate with the lowest negative log likelihood on validation images, a mean over the datasets kept out.

    If the best rate is the smallest or largest one tried, others are tried beyond it, up to a hundredth or 100 times
    the published one. Rates of tuners that are not in `args` do not change.
    """
    perform([job for name in args.tuners for factor in FACTORS for job in rate_jobs(name, factor, args.shots)], args)
    table = json.loads(RATES.read_text("utf-8")) if RATES.is_file() else {}
    for tuner in args.tuners:
        tried = {factor: _val_nll(tuner, factor, args) for factor in FACTORS}
        while factor := _beyond(tried):
            perform(rate_jobs(tuner, factor, args.shots), args)
            tried[factor] = _val_nll(tuner, factor, args)
        lr = published(tuner)["lr"]
        nlls = {f"{factor * lr:.3g}": nll for factor, nll in sorted(tried.items())}
        table[tuner] = {"rate": float(min(nlls, key=nlls.__getitem__)), "published": lr, "val_nll": nlls}
    write_json(RATES, table)


def _beyond(tried: dict[float, float]) -> float | None:
    """The next factor to try, if the best one is the first or the last of those that were."""
    best, untried = min(tried, key=tried.__getitem__), [factor for factor in FURTHER if factor not in tried]
    after = [factor for factor in untried if factor > best == max(tried)]
    before = [factor for factor in untried if factor < best == min(tried)]
    return min(after) if after else max(before, default=None)


def _val_nll(tuner: str, factor: float, args: argparse.Namespace) -> float:
    files = [args.out / "done" / f"{job.name}.json" for job in rate_jobs(tuner, factor, args.shots)]
    if not all(file.is_file() for file in files):
        raise SystemExit(f"{tuner} with {factor:g} times the published rate is not done; start again to continue")
    return mean(json.loads(file.read_text("utf-8"))["val"]["nll"] for file in files)


def collect(args: argparse.Namespace) -> None:
    """Write one row per run, calibrator and split; rows of runs that are not in this folder are kept."""
    runs: dict[tuple[str, ...], list[list[str]]] = {}
    if TABLE.is_file():
        with TABLE.open(newline="", encoding="utf-8") as file:
            for line in list(csv.reader(file))[1:]:
                runs.setdefault(tuple(line[: len(RUN)]), []).append(line)
    for path in sorted((args.out / "done").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        head = [_cell(record[name]) for name in RUN]
        rows = [
            {**row, "cpu_seconds": record["cpu_seconds"], ON_SHOTS: record["on_shots"][row["model"]]}
            for row in record["rows"]
        ]
        runs[tuple(head)] = [head + [_cell(row[name]) for name in COLUMNS] for row in rows]
    if not runs:
        raise SystemExit(f"{args.out} has no finished job")
    lines = [[*RUN, *COLUMNS], *(line for run in sorted(runs) for line in runs[run])]
    write_bytes(TABLE, "".join(",".join(line) + "\n" for line in lines).encode())
    print(f"{len(lines) - 1:,} rows of {len(runs):,} runs in {TABLE}")


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "run", "collect"))
    parser.add_argument("--out", type=Path, default=Path("runs/pocket"))
    parser.add_argument("--settings", choices=SETTINGS, default="published")
    parser.add_argument("--tuners", nargs="+", choices=TUNERS, default=TUNERS)
    parser.add_argument("--losses", nargs="+", default=LOSSES)
    parser.add_argument("--datasets", nargs="+", choices=(*DATASETS, *KEPT_OUT), default=DATASETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no job after so many")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch")
    if args.what == "rates":
        choose_rates(args)
    elif args.what == "run":
        perform(list(jobs(args)), args)
    else:
        collect(args)


if __name__ == "__main__":
    main()
