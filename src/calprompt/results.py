"""What a run left behind, read back: its record and its metrics. Needs no model, and no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.files import is_locked, read_json

RECORD = "run.json"
PROMPTS = "prompts.safetensors"
METRICS = "metrics.json"
HISTORY = "history.jsonl"
LOGITS = "logits.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = "evaluation.json"
TRANSFERS = "transfer"  # folder of what the run was evaluated on afterwards, a folder each
TRANSFER = "transfer.json"
TRAINING = "the run's training command computes it again"


@dataclass(frozen=True)
class Transfer:
    """A run evaluated on other data; `reused` if it was found done and nothing was computed."""

    folder: Path
    record: dict[str, Any]
    reused: bool = False

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def metrics(self) -> dict[str, Any]:
        """Of base, novel and all, as far as there are, and zero_shot of each."""
        return dict(self.record["metrics"])


@dataclass(frozen=True)
class Run:
    """A run folder.

    record     run.json: config, versions, fingerprint, timings, status
    metrics    metrics.json: base, novel, val and zero_shot; empty until the run is finished
    reused     True if it was found finished and nothing was computed
    transfers  what it was evaluated on afterwards
    """

    folder: Path
    record: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    reused: bool = False
    transfers: tuple[Transfer, ...] = ()

    @property
    def status(self) -> str:
        """finished, failed, running, or interrupted: what says it is running while no process works on it."""
        status = str(self.record["status"])
        return "interrupted" if status == "running" and not is_locked(self.folder) else status

    @property
    def unfinished(self) -> str:
        """Why there is nothing to use in it, and what to do: the rest of a sentence that begins with its folder."""
        if self.status == "finished":
            return "has lost some of its files; its training command computes them again"
        if self.status == "failed":
            reason = f" ({self.record['reason']})" if self.record.get("reason") else ""
            return f"has failed{reason}; mend that and run its training command again"
        if self.status == "running":
            return "is still running; wait until it is finished"
        return "was interrupted; its training command goes on with it"

    @property
    def title(self) -> str:
        """What was run, in a line."""
        config = self.record["config"]
        shots = "all images" if config["shots"] is None else f"{config['shots']} shots"
        what = f"{config['tuner']} ({config['loss']}), {self.record['data']['name']}"
        return f"{what}, {shots}, seed {config['training']['seed']}"

    def history(self) -> list[dict[str, float]]:
        """One record an epoch."""
        return read_history(self.folder)


def load_run(folder: str | Path) -> Run:
    """The run in a folder, whatever its status."""
    folder = Path(folder).expanduser()
    if not (folder / RECORD).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RECORD}")) if folder.is_dir() else []
        hint = f"; there are runs in it: {', '.join(inside[:5])}{', …' if len(inside) > 5 else ''}" if inside else ""
        raise CalpromptError(f"{folder} is not a run folder, it has no {RECORD}{hint}")
    record = read_record(folder)
    if record["status"] != "finished":
        return Run(folder, record)
    places = sorted(path.parent for path in folder.glob(f"{TRANSFERS}/*/{TRANSFER}"))
    transfers = tuple(found for place in places if (found := read_transfer(place)) is not None)
    return Run(folder, record, _read(folder / METRICS, set(), TRAINING), transfers=transfers)


def read_record(folder: Path) -> dict[str, Any]:
    """run.json of a folder that has one."""
    return _read(folder / RECORD, {"status", "fingerprint", "config", "data", "backbone"}, f"delete it, and {TRAINING}")


def _read(path: Path, keys: set[str], advice: str) -> dict[str, Any]:
    """A JSON file that must have these keys."""
    try:
        held = read_json(path)
    except CalpromptError as error:
        raise CalpromptError(f"{error}; {advice}") from error
    missing = sorted(keys - set(held)) if isinstance(held, dict) else ["settings by name"]
    if missing:
        raise CalpromptError(f"{path} is damaged, it has no {', '.join(missing)}; {advice}")
    return dict(held)


def read_transfer(folder: Path) -> Transfer | None:
    """What a run was evaluated on, from its folder; None if it is not complete."""
    if not (folder / TRANSFER).is_file() or not (folder / LOGITS).is_file():
        return None
    keys, advice = {"name", "fingerprint", "data", "metrics"}, "delete it, and 'calprompt transfer' makes it again"
    return Transfer(folder, _read(folder / TRANSFER, keys, advice))


def is_complete(folder: Path) -> bool:
    """Whether a folder says its run is finished and has all it should, readable as far as JSON goes."""
    files = (RECORD, PROMPTS, METRICS, HISTORY, LOGITS)
    if not all((folder / name).is_file() for name in files) or read_record(folder)["status"] != "finished":
        return False
    try:
        read_json(folder / METRICS)
        read_history(folder)
    except CalpromptError:
        return False
    return True


def read_history(folder: Path) -> list[dict[str, float]]:
    """A record an epoch; none if there is no file."""
    path = folder / HISTORY
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise CalpromptError(f"{path} is damaged: {error}; {TRAINING}") from error
    if not all(isinstance(row, dict) and "epoch" in row for row in rows):
        raise CalpromptError(f"{path} is damaged: a line is not the record of an epoch; {TRAINING}")
    return rows
