"""The folder of a run: the only code that knows the names and the format of what a run leaves behind.

    <out>/<id>/run.json                 format, config, versions, fingerprint, timings, status, checksums of the files
               prompts.safetensors      what was learned
               metrics.json             base and novel, or all; val; and zero_shot of each
               history.jsonl            a line per epoch
               steps.csv                if steps are diagnosed: a row for each, with gradient norms and their ratios
               logits.safetensors       of every evaluated split: logits, zero_shot_logits, labels, names of the images;
                                        text, frozen_text
               checkpoint.safetensors   while it trains: a killed run goes on from it to the same bits
               evaluation.json          what `calprompt evaluate` measured, and what calibrators learned
               transfer/<name>/         what it was evaluated on afterwards: transfer.json, logits.safetensors

Every file is verified when it is read. run.json, evaluation.json and transfer.json have a checksum of themselves, the
other files stand with theirs in run.json (or transfer.json), and a checkpoint has one inside.

Format 1 is that of version 0.1, which had no checksums and no format number; it is still read.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calprompt.data.splits import TEST
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from calprompt.files import (
    RECORDS,
    RUN,
    csv_bytes,
    file_digest,
    is_locked,
    read_json,
    require_kind,
    write_bytes,
    write_json,
)
from calprompt.notebook import card
from calprompt.sealed_files import read_sealed, require, sealed

FORMAT = 2
RECORD = RECORDS[RUN]
PROMPTS = "prompts.safetensors"
METRICS = "metrics.json"
HISTORY = "history.jsonl"
STEPS = "steps.csv"
LOGITS = "logits.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = "evaluation.json"
TRANSFERS = "transfer"
TRANSFER = "transfer.json"
RESULTS = (PROMPTS, METRICS, HISTORY, LOGITS)  # files of a finished run, besides its record; STEPS if diagnosed

ON_TEST_IMAGES = "validated on test images"
RECOMPUTE = "its training command computes it again"
RECORD_KEYS = {"status", "fingerprint", "config", "data", "backbone"}
CONFIG_KEYS = {"tuner", "loss", "shots", "training", "data", "backbone"}
TRANSFER_KEYS = {"name", "fingerprint", "data", "metrics"}


@dataclass(frozen=True)
class Transfer:
    """A run evaluated on other data.

    Attributes:
        folder: Where it is kept.
        record: transfer.json.
        reused: Whether it was found done and nothing was computed.
    """

    folder: Path
    record: dict[str, Any]
    reused: bool = False

    @property
    def name(self) -> str:
        """The name of the results."""
        return str(self.record["name"])

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of base, novel and all, as far as there are, and zero_shot of each."""
        return dict(self.record["metrics"])


@dataclass(frozen=True)
class Run:
    """A run folder as it was read.

    Attributes:
        folder: Where it is.
        record: run.json: config, versions, fingerprint, timings, status.
        metrics: metrics.json: base, novel, val and zero_shot; empty until the run is finished.
        reused: Whether it was found finished and nothing was computed.
        transfers: What it was evaluated on afterwards.
    """

    folder: Path
    record: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    reused: bool = False
    transfers: tuple[Transfer, ...] = ()

    @property
    def status(self) -> str:
        """finished, failed, running, or interrupted: what claims to run while no process works on it."""
        status = str(self.record["status"])
        return "interrupted" if status == "running" and not is_locked(self.folder) else status

    @property
    def unfinished(self) -> str:
        """Why it cannot be used, and what to do: the rest of a sentence that begins with its folder."""
        if self.status == "finished":
            return "has lost some of its files; its training command computes them again"
        if self.status == "failed":
            reason = f" ({self.record['reason']})" if self.record.get("reason") else ""
            return f"has failed{reason}; correct that and run its training command again"
        if self.status == "running":
            return "is still running; wait until it is finished"
        return "was interrupted; its training command continues it"

    @property
    def title(self) -> str:
        """A description of the run, in a line."""
        config = self.record["config"]
        shots = "all images" if config["shots"] is None else f"{config['shots']} shots"
        anchored = ", anchored" if config.get("anchor") else ""
        what = f"{config['tuner']} ({config['loss']}{anchored}), {self.record['data']['name']}"
        return ", ".join(filter(None, (what, shots, f"seed {config['training']['seed']}", self.note)))

    @property
    def note(self) -> str | None:
        """A caveat about its results, if any."""
        return ON_TEST_IMAGES if self.record["config"].get("validation") == TEST else None

    @property
    def logits_digests(self) -> dict[str, str | None]:
        """Checksums of all logits that it is evaluated from: its own under an empty name, others by their data."""
        records = {"": self.record, **{transfer.name: transfer.record for transfer in self.transfers}}
        return {name: record.get("files", {}).get(LOGITS) for name, record in records.items()}

    def _repr_html_(self) -> str:
        names = {"accuracy": "accuracy", "ece": "ECE", "mean_confidence": "mean confidence"}
        splits = [split for split in ("base", "novel", "all") if split in self.metrics]
        models = {"": self.metrics, ", zero-shot": self.metrics.get("zero_shot", {})}
        rows = [
            (f"{names[metric]}, {split}{model}", float(values[split][metric]))
            for split in splits
            for metric in names
            for model, values in models.items()
            if metric in values.get(split, {})
        ]
        return card(self.title, rows, [str(self.folder)] if rows else [f"{self.folder} {self.unfinished}"])

    def history(self) -> list[dict[str, float]]:
        """One record per epoch."""
        return read_history(self.folder, self.record)

    def steps(self) -> list[dict[str, float]]:
        """One record per diagnosed step; none if there are no diagnostics."""
        return read_steps(self.folder, self.record)


def load_run(folder: str | Path) -> Run:
    """Read a run, whatever its status.

    Args:
        folder: Folder of the run, such as runs/coop-photos-16shot-seed1-0123456789ab.

    Raises:
        NotFoundError: if it is no folder of a run.
        DamagedFileError: if a file in it is not what was written, or of a newer version of calprompt.
    """
    folder = Path(folder).expanduser()
    require_kind(folder, RUN)
    record = read_record(folder)
    if record["status"] != "finished":
        return Run(folder, record)
    places = sorted(path.parent for path in folder.glob(f"{TRANSFERS}/*/{TRANSFER}"))
    transfers = tuple(found for place in places if (found := read_transfer(place)) is not None)
    for transfer in transfers:
        if transfer.record.get("run") != record["fingerprint"]:
            raise DamagedFileError(
                f"{transfer.folder / TRANSFER} is of another run; delete it, and 'calprompt transfer' makes it again"
            )
    return Run(folder, record, read_metrics(folder, record), transfers=transfers)


def read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    record = read_sealed(path, FORMAT, RECORD_KEYS, f"delete it, and {RECOMPUTE}")
    parts = {
        "config": CONFIG_KEYS,
        "data": {"name", "class_names"},
        "backbone": {"name", "fingerprint"},
    }
    for part, keys in parts.items():
        require(path, record[part], keys, f"delete it, and {RECOMPUTE}", within=part)
    return record


def write_record(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write run.json; that of a finished run gets the checksums of its files. Returns the record as written."""
    record = dict(record)
    if record["status"] == "finished":
        more = (STEPS,) if (folder / STEPS).is_file() else ()
        record["files"] = {name: file_digest(folder / name) for name in (*RESULTS, *more)}
    write_json(folder / RECORD, sealed(record, FORMAT))
    return record


def is_finished(folder: Path) -> bool:
    """Whether a run is finished and has all of its files."""
    if not (folder / RECORD).is_file():
        return False
    record = read_record(folder)
    names = result_files(record)
    if record["status"] != "finished" or not all((folder / name).is_file() for name in names):
        return False
    for name in names:
        verify_file(folder, name, record)
    read_metrics(folder, record)
    read_history(folder, record)
    return True


def result_files(record: Mapping[str, Any]) -> list[str]:
    """Names of the files that a finished run has besides its record."""
    return list(dict.fromkeys((*RESULTS, *record.get("files", {}))))


def verify_file(folder: Path, name: str, record: Mapping[str, Any]) -> None:
    """Compare a file's checksum with the one in the record of a finished run; format 1 has none."""
    expected = record.get("files")
    if expected is None:
        return
    path = folder / name
    try:
        wrong = file_digest(path) != expected.get(name)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is not there; {RECOMPUTE}") from error
    if wrong:
        raise DamagedFileError(
            f"{path} is damaged or of another run: it is not the file that was written; delete it, and {RECOMPUTE}"
        )


def read_metrics(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    verify_file(folder, METRICS, record)
    path = folder / METRICS
    advice = f"delete it, and {RECOMPUTE}"
    try:
        metrics = read_json(path)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; {RECOMPUTE}") from error
    except CalpromptError as error:
        raise DamagedFileError(f"{error}; {advice}") from error
    require(path, metrics, {"zero_shot"}, advice)
    parts = set(metrics) - {"zero_shot"}
    require(path, metrics["zero_shot"], parts, advice, within="zero_shot")
    for part in parts:
        require(path, metrics[part], set(), advice, within=part)
    return dict(metrics)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_json(folder / METRICS, dict(metrics))


def read_history(folder: Path, record: Mapping[str, Any] | None = None) -> list[dict[str, float]]:
    """A record per epoch; none if there is no file."""
    if record is not None and record["status"] == "finished":
        verify_file(folder, HISTORY, record)
    rows = _read_rows(folder / HISTORY, lambda text: [json.loads(line) for line in text.splitlines()])
    if not all(isinstance(row, dict) and "epoch" in row for row in rows):
        raise DamagedFileError(f"{folder / HISTORY} is damaged: a line is not the record of an epoch; {RECOMPUTE}")
    return rows


def read_steps(folder: Path, record: Mapping[str, Any] | None = None) -> list[dict[str, float]]:
    """A record per diagnosed step, of what was measured in it; none if there is no file."""
    if record is not None and STEPS in record.get("files", {}):
        verify_file(folder, STEPS, record)
    whole = ("epoch", "step")
    return _read_rows(
        folder / STEPS,
        lambda text: [
            {name: (int if name in whole else float)(cell) for name, cell in row.items() if cell}
            for row in csv.DictReader(text.splitlines())
        ],
    )


def _read_rows(path: Path, read: Callable[[str], list[Any]]) -> list[Any]:
    try:
        return read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError, csv.Error) as error:
        raise DamagedFileError(f"{path} is damaged: {error}; {RECOMPUTE}") from error


def rows_bytes(name: str, rows: Sequence[Mapping[str, float]]) -> bytes:
    """The contents of history.jsonl or steps.csv; numbers have all of their digits, so that reading restores them."""
    if name == HISTORY:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    columns = list(dict.fromkeys(("epoch", "step", *(name for row in rows for name in row))))
    return csv_bytes(columns, [{name: repr(value) for name, value in row.items()} for row in rows])


def rows_digest(name: str, rows: Sequence[Mapping[str, float]]) -> str:
    """sha256 that history.jsonl or steps.csv would have with these rows."""
    return hashlib.sha256(rows_bytes(name, rows)).hexdigest()


def write_rows(folder: Path, name: str, rows: Sequence[Mapping[str, float]]) -> str:
    """Write history.jsonl or steps.csv; returns its checksum, which goes into the checkpoint."""
    write_bytes(folder / name, rows_bytes(name, rows))
    return rows_digest(name, rows)


def read_run_tensors(
    folder: Path, name: str, record: Mapping[str, Any], framework: str = "pt"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prompts or logits of a finished run, or logits of a transfer, with their metadata; as "numpy", without torch."""
    from calprompt.sealed_files import read_tensor_file

    verify_file(folder, name, record)
    return read_tensor_file(folder / name, checked="files" in record, framework=framework)


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """evaluation.json, or None if there is none."""
    if not (folder / EVALUATION).is_file():
        return None
    advice = "delete it, and 'calprompt evaluate' writes it again"
    return read_sealed(folder / EVALUATION, FORMAT, {"settings", "runs", "rows"}, advice)


def write_evaluation(folder: Path, evaluation: Mapping[str, Any]) -> Path:
    write_json(folder / EVALUATION, sealed(evaluation, FORMAT))
    return folder / EVALUATION


def read_transfer(folder: Path) -> Transfer | None:
    """Read the folder of an evaluation on other data; None if it is not complete."""
    if not (folder / TRANSFER).is_file() or not (folder / LOGITS).is_file():
        return None
    path, advice = folder / TRANSFER, "delete it, and 'calprompt transfer' makes it again"
    record = read_sealed(path, FORMAT, TRANSFER_KEYS, advice)
    require(path, record["metrics"], {"zero_shot"}, advice, within="metrics")
    return Transfer(folder, record)


def write_transfer(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write transfer.json beside its logits; returns the record as written."""
    record = {**record, "files": {LOGITS: file_digest(folder / LOGITS)}}
    write_json(folder / TRANSFER, sealed(record, FORMAT))
    return record
