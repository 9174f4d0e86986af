"""Runs as contenders of a comparison: their stored logits, and a name that tells their settings apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calprompt.evaluation.models import TUNED, ZERO_SHOT, stored_models
from calprompt.metrics import predictions
from calprompt.report.tables.names import VANILLA, method_label, method_of, tuner_label
from calprompt.results.collecting import setting_columns
from calprompt.results.compare import Answers, Contender
from calprompt.results.table import cell
from calprompt.runs.folder import LOGITS, Run, read_run_tensors

SHARED = {"data", "seed", "root", "device", "imports"}  # settings that runs of one method may differ in
UNTUNED = "zero-shot"


def run_contenders(runs: Sequence[Run], *, zero_shot: bool = False) -> list[Contender]:
    """Finished runs, ready to be compared.

    Args:
        runs: Finished runs, in the order of the comparison.
        zero_shot: With the untuned model, which every run has stored.

    Raises:
        CalpromptError: if a run is not finished or its files are damaged.
    """
    names = method_names([run.record["config"] for run in runs])
    found, untuned = [], dict[tuple[str, int], Contender]()
    for name, run in zip(names, runs, strict=True):
        seed, dataset = int(run.record["config"]["training"]["seed"]), str(run.record["data"]["name"])
        found.append(Contender(name, dataset, seed, dict(_answers(run, TUNED))))
        if zero_shot and (dataset, seed) not in untuned:
            untuned[dataset, seed] = Contender(UNTUNED, dataset, seed, dict(_answers(run, ZERO_SHOT)))
    return [*found, *untuned.values()]


def method_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run: tuner and loss, and as many other settings as tell them apart.

    Args:
        configs: Settings as the records of runs have them.
    """
    rows = [{name: cell(value) for name, value in setting_columns(each).items()} for each in configs]
    names = [_short(row) for row in rows]
    for short in dict.fromkeys(names):
        same = [row for row, name in zip(rows, names, strict=True) if name == short]
        apart = [key for key in same[0] if key not in SHARED and len({row.get(key) for row in same}) > 1]
        if apart:
            names = [
                f"{name} ({', '.join(f'{key} {row.get(key) or None}' for key in apart)})" if name == short else name
                for row, name in zip(rows, names, strict=True)
            ]
    return names


def _short(row: Mapping[str, str]) -> str:
    method = method_of({"model": "tuned", "loss": row["loss"]})
    tuner = tuner_label(row["tuner"])
    return tuner if method == VANILLA else f"{tuner} + {method_label(method)}"


def _answers(run: Run, model: str) -> Iterator[tuple[str, Answers]]:
    """The answers of a run's model to the test images of every split, from its stored logits."""
    stored = stored_models(run)[model]
    files = {"": (run.folder, run.record)}
    files |= {f"{each.name}/": (each.folder, each.record) for each in run.transfers}
    for prefix, (folder, record) in files.items():
        _, metadata = read_run_tensors(folder, LOGITS, record)
        for split, logits in stored.tests.items():
            part = split.removeprefix(prefix)
            if not split.startswith(prefix) or "/" in part:
                continue
            sample = predictions(logits.logits, logits.labels, from_logits=True)
            images = metadata.get("image_names", {}).get(part) or [f"image {row}" for row in range(len(sample.labels))]
            yield split, Answers(sample.probs, sample.labels, images, metadata["class_names"][part])
