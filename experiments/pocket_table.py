"""What experiments/pocket.csv says, as Markdown: means over seeds by dataset, and paired differences between losses.

    python experiments/pocket_table.py --tuner coop --settings pocket

A difference is taken between runs of one dataset and seed, then averaged over the seeds. The interval of the mean over
datasets is Student's, with datasets as the unit: what would happen on other datasets like these.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

TABLE = Path(__file__).with_name("pocket.csv")
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 11: 2.23, 12: 2.20}
SPLITS, METRICS = ("base", "novel"), ("accuracy", "ece", "nll")

Values = dict[tuple[str, str, str], dict[int, float]]  # (dataset, split, metric) -> seed -> value


def read(settings: str, tuner: str, shots: int) -> dict[tuple[str, str], Values]:
    """By (loss, calibrator); zero-shot is a loss of that name."""
    found: dict[tuple[str, str], Values] = defaultdict(lambda: defaultdict(dict))
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["settings"], row["tuner"], int(row["shots"])) != (settings, tuner, shots):
                continue
            loss = row["loss"] if row["model"] == "tuned" else "zero-shot"
            for metric in METRICS:
                scale = 1 if metric == "nll" else 100
                key = (row["dataset"], row["split"], metric)
                found[loss, row["calibrator"]][key][int(row["seed"])] = scale * float(row[metric])
    return found


def interval(values: list[float]) -> str:
    """Mean and 95 % interval."""
    half = STUDENT[len(values)] * stdev(values) / math.sqrt(len(values))
    star = "*" if abs(mean(values)) > half else ""
    return f"{mean(values):+.2f}{star} [{mean(values) - half:+.2f}, {mean(values) + half:+.2f}]"


def means(found: dict[tuple[str, str], Values], losses: list[str]) -> list[str]:
    """Accuracy / ECE of every dataset and loss."""
    datasets = sorted({dataset for values in found.values() for dataset, _, _ in values})
    lines = ["| dataset | half | " + " | ".join(losses) + " |", "|---|---|" + "---|" * len(losses)]
    for dataset in datasets:
        for split in SPLITS:
            cells = [
                " / ".join(
                    f"{mean(found[loss, 'none'][dataset, split, metric].values()):.1f}" for metric in METRICS[:2]
                )
                for loss in losses
            ]
            lines.append(f"| {dataset} | {split} | " + " | ".join(cells) + " |")
    return lines


def differences(
    found: dict[tuple[str, str], Values], pairs: list[tuple[tuple[str, str], tuple[str, str]]]
) -> list[str]:
    """Mean paired difference over datasets, for each pair of (loss, calibrator)."""
    columns = [(split, metric) for metric in METRICS for split in SPLITS]
    lines = ["| first - second | " + " | ".join(f"{metric}, {split}" for split, metric in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for first, second in pairs:
        cells = []
        for split, metric in columns:
            by_dataset = []
            for (dataset, of, name), values in found[first].items():
                other = found[second].get((dataset, of, name), {})
                shared = sorted(values.keys() & other.keys())
                if (of, name) == (split, metric) and shared:
                    by_dataset.append(mean(values[seed] - other[seed] for seed in shared))
            cells.append(interval(by_dataset) if len(by_dataset) > 1 else "")
        lines.append(f"| {_say(first)} - {_say(second)} | " + " | ".join(cells) + " |")
    return lines


def _say(which: tuple[str, str]) -> str:
    loss, calibrator = which
    return loss if calibrator == "none" else f"{loss}, {calibrator}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="pocket")
    parser.add_argument("--tuner", default="coop")
    parser.add_argument("--shots", type=int, default=16)
    chosen = parser.parse_args()
    found = read(chosen.settings, chosen.tuner, chosen.shots)
    tuned = [loss for loss, calibrator in found if calibrator == "none" and loss != "zero-shot"]
    print("\n".join(means(found, ["zero-shot", *tuned])), end="\n\n")
    plain = ("ce", "none")
    pairs = [(plain, ("zero-shot", "none"))]
    pairs += [((loss, "none"), plain) for loss in tuned if loss != "ce"]
    calibrators = [calibrator for loss, calibrator in found if loss == "ce" and calibrator != "none"]
    pairs += [((loss, calibrator), (loss, "none")) for loss in ("ce", "tcpt") for calibrator in calibrators]
    print("\n".join(differences(found, pairs)))


if __name__ == "__main__":
    main()
