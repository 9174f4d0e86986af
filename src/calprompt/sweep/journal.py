"""What a sweep writes down beside its runs: which runs belong to it, what failed, and how long it was to take and took.

    <out>/sweep-<name>.json     settings of all cells, calibrators, transfers, failures by cell, each time it worked

Results are in the run folders; this file only knows what a run folder cannot: that a run is missing, or why nothing
could be begun.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError
from calprompt.files import write_json
from calprompt.sealed_files import read_sealed, sealed
from calprompt.sweep.sweep_file import Sweep

FORMAT = 1
PREFIX = "sweep-"


@dataclass
class Journal:
    """The file of a sweep in its folder.

    Attributes:
        name: Of the sweep.
        cells: Key of a cell -> its settings.
        calibrators: What finished runs are measured with.
        transfer: What finished runs are evaluated on.
        failures: Key of a cell that failed -> why.
        passes: Of each time the sweep worked: begin, end, estimated and real seconds, and counts.
    """

    name: str
    cells: dict[str, dict[str, Any]]
    calibrators: list[str] = field(default_factory=list)
    transfer: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
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
