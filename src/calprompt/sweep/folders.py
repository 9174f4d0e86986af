"""The runs in a folder: which cells of a sweep are there, their status, and their measurements.

A run is found by its settings: a folder whose record has all of them, and whose backbone and imported files are what
they were as far as that is known without loading them. Its images are not read again.

Metrics of a finished run are read from its evaluation.json if that has them, else measured. A measurement counts only
for the logits it was made from, by this version of calprompt. One with bootstrap intervals, which took long,
is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import calprompt
from calprompt.clip.identity import BackboneIdentity, identify_backbone
from calprompt.errors import BusyError, CalpromptError
from calprompt.evaluation.settings import NONE, EvaluationSettings, normalized_spec
from calprompt.metrics import metrics
from calprompt.registry import imported_files
from calprompt.runs.config import Target
from calprompt.runs.folder import RECORD, TRANSFER, TRANSFERS, Run, load_run, read_evaluation, read_record, result_files
from calprompt.sweep.expansion import Cell, record_key
from calprompt.text import slug

FINISHED, FAILED, RUNNING, INTERRUPTED, MISSING, DAMAGED = (
    "finished",
    "failed",
    "running",
    "interrupted",
    "missing",
    "damaged",
)


@dataclass(frozen=True)
class Found:
    """A run folder."""

    run: Run  # as far as its record says; without metrics and transfers
    status: str  # finished, failed, running, interrupted or damaged
    reason: str | None = None  # why it failed, or cannot be read


@dataclass
class RunFolders:
    """All runs in a folder, by their settings."""

    out: Path  # the folder
    # digest of all settings -> the runs that have them; more than one if images or weights have changed
    by_key: dict[str, list[Found]] = field(default_factory=dict)
    damaged: list[Found] = field(default_factory=list)  # run folders whose record cannot be read
    _identify: Callable[..., BackboneIdentity | None] = field(default_factory=lambda: cache(identify_backbone))

    @classmethod
    def read(cls, out: str | Path) -> RunFolders:
        """Look at all run folders in a folder; none, if there is no such folder."""
        folders = cls(Path(out).expanduser())
        for found in run_folders(folders.out):
            if found.status == DAMAGED:
                folders.damaged.append(found)
            else:
                folders.by_key.setdefault(record_key(found.run.record["config"]), []).append(found)
        return folders

    def find(self, cell: Cell) -> Found | None:
        """The run of a sweep's cell: the finished one, if there is one; None if there is nothing of it."""
        from calprompt.runs.planning import is_up_to_date

        same = self.by_key.get(cell.key, [])
        known = [found for found in same if is_up_to_date(found.run.record, self._identify) is not False]
        finished = [found for found in known if found.status == FINISHED]
        return next(iter(finished or known), None)


def run_folders(out: Path) -> Iterator[Found]:
    """Every run folder in a folder, in the order of their names."""
    for path in sorted(out.glob(f"*/{RECORD}")):
        yield read_folder(path.parent)


def read_folder(folder: Path) -> Found:
    """One run folder, as far as its record says."""
    try:
        run = Run(folder, read_record(folder))
    except CalpromptError as error:
        return Found(Run(folder, {}), DAMAGED, str(error))
    status = run.status
    if status == FINISHED and not all((folder / name).is_file() for name in result_files(run.record)):
        status = INTERRUPTED
    return Found(run, status, run.record.get("reason"))


def missing_transfers(folder: Path, targets: Iterable[Target]) -> list[Target]:
    """Targets on which a finished run was not evaluated yet."""
    return [target for target in targets if not (folder / TRANSFERS / slug(str(target.name)) / TRANSFER).is_file()]


def measure_run(folder: str | Path | Run, calibrators: Sequence[str]) -> dict[str, Any]:
    """The evaluation of a run under some calibrators, read from evaluation.json or measured."""
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
        and {row["metric"] for row in record["rows"]}.issuperset(metrics.available())
        and bool(settings.get("zero_shot"))
    )
