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
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or "status" not in record:
        raise CalpromptError(f"{folder / RECORD} is not the record of a run")
    finished = record["status"] == "finished"
    if not finished:
        return Run(folder, record)
    places = sorted(path.parent for path in folder.glob(f"{TRANSFERS}/*/{TRANSFER}"))
    transfers = tuple(found for place in places if (found := read_transfer(place)) is not None)
    return Run(folder, record, read_json(folder / METRICS), transfers=transfers)


def read_transfer(folder: Path) -> Transfer | None:
    """What a run was evaluated on, from its folder; None if it is not complete."""
    if not (folder / TRANSFER).is_file() or not (folder / LOGITS).is_file():
        return None
    record = read_json(folder / TRANSFER)
    if not isinstance(record, dict) or not {"name", "fingerprint", "data", "metrics"} <= set(record):
        raise CalpromptError(f"{folder / TRANSFER} is not the record of an evaluation; delete it to start over")
    return Transfer(folder, record)


def is_complete(folder: Path) -> bool:
    """Whether a folder says its run is finished and has all it should."""
    files = (RECORD, PROMPTS, METRICS, HISTORY, LOGITS)
    return all((folder / name).is_file() for name in files) and read_json(folder / RECORD)["status"] == "finished"


def read_history(folder: Path) -> list[dict[str, float]]:
    try:
        lines = (folder / HISTORY).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
