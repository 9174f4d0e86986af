"""Metrics of a finished run under calibrators: read from its evaluation.json if that has them, else measured.

A measurement counts only for the logits it was made from, by this version of calprompt. One with bootstrap intervals,
which somebody waited for, is never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import calprompt
from calprompt.errors import BusyError, CalpromptError
from calprompt.evaluation.settings import NONE, EvaluationSettings, normalized_spec
from calprompt.extensions import imported_files
from calprompt.runs.folder import Run, load_run, read_evaluation


def measure_run(folder: str | Path | Run, calibrators: Sequence[str]) -> dict[str, Any]:
    """What evaluation.json of a run says, or would say, about some calibrators."""
    run = folder if isinstance(folder, Run) else load_run(folder)
    specs = tuple(dict.fromkeys((NONE, *map(normalized_spec, calibrators))))
    known: dict[str, Any] | None = None
    with suppress(CalpromptError):
        known = read_evaluation(run.folder)
    if known is not None and _serves(known, run, specs):
        return known
    import torch

    from calprompt.evaluation.output import evaluation_record, write_evaluations
    from calprompt.evaluation.run_evaluation import evaluate_run

    keep = known is None or not known["settings"].get("bootstrap")
    if keep and known is not None:  # what it had stays in it
        specs = tuple(dict.fromkeys((*specs, *known["settings"].get("calibrators", ()))))
    settings = EvaluationSettings(
        calibrators=specs[1:], bootstrap=0, zero_shot=True, imports=tuple(imported_files(run.record.get("imports", ())))
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums whoever measures
    try:
        evaluation = evaluate_run(run.folder, settings)
    finally:
        torch.set_num_threads(threads)
    if keep:
        with suppress(BusyError, CalpromptError, OSError):  # a folder that can only be read, or is in use
            write_evaluations([evaluation])
    return evaluation_record([evaluation])


def _serves(record: Mapping[str, Any], run: Run, specs: Sequence[str]) -> bool:
    """Whether a record has what is asked for, measured on these logits in the usual way."""
    settings = record["settings"]
    usual = EvaluationSettings.__dataclass_fields__
    return (
        len(record["runs"]) == 1
        and record["runs"][0].get("fingerprint") == run.record["fingerprint"]
        and record["runs"][0].get("logits") == run.logits_digests
        and record.get("versions", {}).get("calprompt") == calprompt.__version__
        and set(specs) <= set(settings.get("calibrators", ()))
        and all(settings.get(name) == usual[name].default for name in ("bins", "convention"))
        and bool(settings.get("zero_shot"))
    )
