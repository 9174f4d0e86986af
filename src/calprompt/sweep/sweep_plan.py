"""What there is of a sweep: runs on disk and their measurements, what is left to do, and the journal of earlier passes.

    <out>/sweep-<name>.json     settings of all cells, calibrators, transfers, failures by cell, each time it worked

Results are in the run folders; the journal only knows what a run folder cannot: that a run is missing, or why nothing
could be begun. A run is found by its settings: a folder whose record has all of them, and whose backbone and imported
files are what they were as far as that is known without loading them. Its images are not read again.

Metrics of a finished run are read from its evaluation.json if that has them, else measured. A measurement counts only
for the logits it was made from, by this version of calprompt. One with bootstrap intervals, which took long,
is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import calprompt
from calprompt.clip.identity import BackboneIdentity, identify_backbone
from calprompt.errors import BusyError, CalpromptError, DamagedFileError
from calprompt.evaluation.settings import NONE, EvaluationSettings, normalized_spec
from calprompt.files import write_json
from calprompt.hardware import processor_name
from calprompt.metrics import metrics
from calprompt.parallel import available_cores
from calprompt.registry import imported_files
from calprompt.runs.config import Target
from calprompt.runs.folder import (
    CHECKPOINT,
    RECORD,
    TRANSFER,
    TRANSFERS,
    Run,
    load_run,
    read_evaluation,
    read_record,
    result_files,
)
from calprompt.sealed_files import read_sealed, sealed
from calprompt.sweep.expansion import Cell, record_key
from calprompt.sweep.sweep_file import Sweep
from calprompt.text import slug

FORMAT = 1
PREFIX = "sweep-"
FINISHED, FAILED, RUNNING = "finished", "failed", "running"
INTERRUPTED, MISSING, DAMAGED = "interrupted", "missing", "damaged"


@dataclass(frozen=True)
class Found:
    """A run folder."""

    run: Run  # as far as its record says; without metrics and transfers
    status: str  # finished, failed, running, interrupted or damaged
    reason: str | None = None  # why it failed, or cannot be read


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


@dataclass
class Journal:
    """The file of a sweep in its folder."""

    name: str  # name of the sweep
    cells: dict[str, dict[str, Any]]  # key of a cell -> its settings
    calibrators: list[str] = field(default_factory=list)  # what finished runs are measured with
    transfer: list[str] = field(default_factory=list)  # what finished runs are evaluated on
    failures: dict[str, str] = field(default_factory=dict)  # key of a cell that failed -> why
    # one entry for each time the sweep worked: begin, end, estimated and real seconds, and counts
    passes: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, sweep: Sweep, out: Path) -> Journal:
        """The journal of a sweep: what it was, with the failures and passes of before that are still of use."""
        new = cls(
            sweep.name,
            {cell.key: cell.record for cell in sweep.cells},
            list(sweep.calibrators),
            [str(target.name) for target in sweep.transfer],
        )
        path = out / f"{PREFIX}{sweep.name}.json"
        if path.is_file():
            try:
                old = read_journal(path)
            except DamagedFileError:
                return new  # runs are found again by themselves; only past failures and times are lost
            new.failures = {key: reason for key, reason in old.failures.items() if key in new.cells}
            new.passes = old.passes
        return new

    def write(self, out: Path) -> None:
        """Write it into the folder of the runs."""
        write_json(out / f"{PREFIX}{self.name}.json", sealed(asdict(self), FORMAT))


def read_journal(path: Path) -> Journal:
    """The journal in a file."""
    keys = set(Journal.__dataclass_fields__)
    payload = read_sealed(path, FORMAT, keys, "delete it, and the sweep writes it again")
    return Journal(**{key: payload[key] for key in keys})


def read_journals(out: Path) -> list[Journal]:
    """All journals in a folder that can be read, by name."""
    found = []
    for path in sorted(out.glob(f"{PREFIX}*.json")):
        try:
            found.append(read_journal(path))
        except CalpromptError:
            continue
    return found


KINDS: tuple[tuple[str, ...], ...] = (  # of runs that take as long as each other, the nearest first
    ("backbone", "data", "tuner", "loss", "options", "shots", "views", "crop", "protocol", "dtype"),
    ("backbone", "data", "tuner", "shots", "protocol", "dtype"),
    ("backbone", "data", "tuner"),
)


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a sweep, and what there is of it."""

    cell: Cell  # its settings
    status: str  # finished, failed, interrupted, running, missing, or transfer: finished but for other data
    folder: Path | None = None  # folder of its run, if there is one
    reason: str | None = None  # why it failed
    seconds: float | None = None  # that it may take; None if nothing like it was measured on this machine
    memory: int | None = None  # bytes of memory that it may take; None if nothing like it was measured
    device_memory: int | None = None  # bytes of GPU memory that it may take; None if not measured


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will do.

    Attributes:
        sweep: The sweep.
        out: Folder of its runs.
        planned: All cells and what there is of them.
        workers: Runs at a time.
        damaged: Run folders in `out` whose record cannot be read.
    """

    sweep: Sweep
    out: Path
    planned: tuple[PlannedCell, ...]
    workers: int
    damaged: tuple[Found, ...] = ()

    def to_do(self, *, retry_failed: bool = False, verify: bool = False) -> list[PlannedCell]:
        """The cells that have to be worked on.

        Args:
            retry_failed: Those that failed before as well.
            verify: Finished ones as well, to see that their images and files are what they were.
        """
        skipped = {FAILED: not retry_failed, FINISHED: not verify}
        return [each for each in self.planned if not skipped.get(each.status, False)]

    def count(self, status: str) -> int:
        """How many cells have a status."""
        return sum(each.status == status for each in self.planned)

    def estimate(self, cells: Iterable[PlannedCell]) -> float | None:
        """Seconds by the clock that some cells may take; None if there is one of a kind that was never measured."""
        seconds = [each.seconds for each in cells]
        known = [each for each in seconds if each is not None]
        if len(known) < len(seconds):
            return None
        return max(sum(known) / self.workers, max(known, default=0.0))


def plan_sweep(sweep: Sweep, out: str | Path, *, workers: int | None = None) -> SweepPlan:
    """Look at what there is of a sweep, without data or weights.

    Args:
        sweep: What `read_sweep` returned.
        out: Folder of its runs.
        workers: Runs at a time, on each of its devices if it has any, instead of what the sweep says.

    Returns:
        What is there and what is to be done.
    """
    out = Path(out).expanduser()
    journal, every = Journal.of(sweep, out), list(run_folders(out))
    by_key: dict[str, list[Found]] = {}
    for found in every:
        if found.status != DAMAGED:
            by_key.setdefault(record_key(found.run.record["config"]), []).append(found)
    costs, identify = Costs(every), cache(identify_backbone)
    planned = []
    for cell in sweep.cells:
        there = _latest(by_key.get(cell.key, []), identify)
        cost, reason = costs.of(cell.record), journal.failures.get(cell.key)
        if there is None:
            planned.append(PlannedCell(cell, FAILED if reason else MISSING, None, reason, **cost))
            continue
        status, folder = there.status, there.run.folder
        if status == FINISHED and missing_transfers(folder, sweep.transfer):
            status, cost["seconds"] = FAILED if reason else "transfer", None
        else:
            reason = there.reason
            if status == FINISHED and (folder / CHECKPOINT).is_file():
                status = INTERRUPTED  # killed between its last two steps: one look is left to do
        planned.append(PlannedCell(cell, status, folder, reason, **cost))
    usual = max(1, available_cores() // sweep.threads)
    if any(str(cell.settings.get("device", "cpu")) != "cpu" for cell in sweep.cells):
        usual = 1  # an accelerator is shared only on demand
    at_a_time = (workers or sweep.workers or usual) * max(1, len(sweep.devices))
    return SweepPlan(sweep, out, tuple(planned), at_a_time, tuple(each for each in every if each.status == DAMAGED))


def _latest(same: Sequence[Found], identify: Callable[..., BackboneIdentity | None]) -> Found | None:
    """Of the runs with the settings of a cell the finished one, if there is one; None if there is nothing of it."""
    from calprompt.runs.planning import is_up_to_date

    known = [found for found in same if is_up_to_date(found.run.record, identify) is not False]
    return next((found for found in known if found.status == FINISHED), next(iter(known), None))


class Costs:
    """Seconds and memory of runs, from those that were measured."""

    def __init__(self, measured: Iterable[Found]) -> None:
        self.known: dict[tuple[str, str], list[float]] = {}
        for found in measured:
            if found.status != FINISHED:
                continue
            record = found.run.record
            here = record.get("hardware", {}).get("processor") == processor_name()
            training = record.get("training") or {}
            peaks = [each["peak_memory"] for each in (record, training) if each.get("peak_memory")]
            values = {
                "seconds": total_seconds(record) if here and not record.get("resumed_after_epoch") else None,
                "memory": max(peaks, default=None),
                "device_memory": training.get("peak_device_memory"),
            }
            for kind in _kinds(record["config"]):
                for name, value in values.items():
                    if value is not None:
                        self.known.setdefault((name, kind), []).append(value)

    def of(self, config: dict[str, Any]) -> dict[str, Any]:
        """Expected cost of a run: mean seconds, maximal memory; None if not measured."""
        found: dict[str, Any] = {}
        for name, combine in (("seconds", mean), ("memory", max), ("device_memory", max)):
            near = (self.known[name, kind] for kind in _kinds(config) if (name, kind) in self.known)
            found[name] = next((combine(values) for values in near), None)
        return found


def _kinds(config: dict[str, Any]) -> list[str]:
    training = {name: config["training"].get(name) for name in ("epochs", "batch_size", "autocast")}
    return [repr(([config.get(name) for name in names], config.get("device"), training)) for names in KINDS]


def total_seconds(record: dict[str, Any]) -> float:
    """Seconds a run took, from its record: loading, features, training and evaluation together."""
    return round(sum(record.get("timings", {}).values()), 3)
