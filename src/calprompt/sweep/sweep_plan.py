"""The plan of a sweep: finished runs, runs to do, their estimated time, and the journal of earlier passes.

    <out>/sweep-<name>.json     settings of all cells, calibrators, transfers, failures by cell, each time it worked

Results are in the run folders; the journal only knows what a run folder cannot: that a run is missing, or why nothing
could be begun.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError
from calprompt.files import write_json
from calprompt.hardware import processor_name
from calprompt.parallel import available_cores
from calprompt.runs.folder import CHECKPOINT
from calprompt.sealed_files import read_sealed, sealed
from calprompt.sweep.expansion import Cell
from calprompt.sweep.folders import FAILED, FINISHED, INTERRUPTED, MISSING, Found, RunFolders, missing_transfers
from calprompt.sweep.sweep_file import Sweep

FORMAT = 1
PREFIX = "sweep-"


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
    folders, journal = RunFolders.read(out), Journal.of(sweep, out)
    costs = Costs(found for same in folders.by_key.values() for found in same)
    planned = []
    for cell in sweep.cells:
        found, cost, reason = folders.find(cell), costs.of(cell.record), journal.failures.get(cell.key)
        if found is None:
            planned.append(PlannedCell(cell, FAILED if reason else MISSING, None, reason, **cost))
            continue
        status, folder = found.status, found.run.folder
        if status == FINISHED and missing_transfers(folder, sweep.transfer):
            status, cost["seconds"] = FAILED if reason else "transfer", None
        else:
            reason = found.reason
            if status == FINISHED and (folder / CHECKPOINT).is_file():
                status = INTERRUPTED  # killed between its last two steps: one look is left to do
        planned.append(PlannedCell(cell, status, folder, reason, **cost))
    usual = max(1, available_cores() // sweep.threads)
    if any(str(cell.settings.get("device", "cpu")) != "cpu" for cell in sweep.cells):
        usual = 1  # an accelerator is shared only on demand
    at_a_time = (workers or sweep.workers or usual) * max(1, len(sweep.devices))
    return SweepPlan(sweep, out, tuple(planned), at_a_time, tuple(folders.damaged))


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
