"""Runs as contenders of a comparison: their stored logits, and a name that tells their settings apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calprompt.evaluation.models import TUNED, ZERO_SHOT, stored_models
from calprompt.metrics import predictions
from calprompt.results.collecting import setting_columns
from calprompt.results.compare import Answers, Contender
from calprompt.results.methods import methods_of
from calprompt.runs.folder import LOGITS, Run, read_run_tensors


def run_contenders(runs: Sequence[Run], *, zero_shot: bool = False) -> list[Contender]:
    """Finished runs, ready to be compared.

    Args:
        runs: Finished runs, in the order of the comparison.
        zero_shot: With the untuned model, which every run has stored.

    Raises:
        CalpromptError: if a run is not finished or its files are damaged.
    """
    rows = [
        {**setting_columns(run.record["config"]), "dataset": str(run.record["data"]["name"]), "model": model}
        for run in runs
        for model in (TUNED, ZERO_SHOT)
    ]
    methods = methods_of(rows)
    found, untuned = [], dict[tuple[str, str, int], Contender]()
    for run, row, tuned, plain in zip(runs, rows[::2], methods[::2], methods[1::2], strict=True):
        seed, dataset = int(row["seed"]), row["dataset"]
        found.append(Contender(tuned.name, dataset, seed, dict(_answers(run, TUNED))))
        if zero_shot and (plain.name, dataset, seed) not in untuned:
            untuned[plain.name, dataset, seed] = Contender(plain.name, dataset, seed, dict(_answers(run, ZERO_SHOT)))
    return [*found, *untuned.values()]


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
