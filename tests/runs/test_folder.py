"""The run folder: whatever happens to its files, no command prints a number that was not measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import samples
from calprompt.cli import main
from calprompt.errors import DamagedFileError, NewerFormatError, NotFoundError
from calprompt.evaluation.output import write_evaluations
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.runs import execute
from calprompt.runs.config import Target
from calprompt.runs.execute import run
from calprompt.runs.folder import FORMAT, load_run, read_run_tensors
from calprompt.runs.transfer import evaluate_on
from calprompt.sealed_files import read_tensor_file, tensor_file

RECORD, EVALUATION, TRANSFER = "run.json", "evaluation.json", "transfer/drawings/transfer.json"
PROMPTS, LOGITS, METRICS, HISTORY = "prompts.safetensors", "logits.safetensors", "metrics.json", "history.jsonl"
TRANSFER_LOGITS, CHECKPOINT = "transfer/drawings/logits.safetensors", "checkpoint.safetensors"
READERS = {  # commands that read a file of a finished run, and so have to notice
    RECORD: ("show", "evaluate", "transfer", "predict", "train"),
    PROMPTS: ("transfer", "predict"),
    METRICS: ("show", "evaluate", "transfer", "predict"),
    HISTORY: ("transfer", "predict"),
    LOGITS: ("evaluate", "transfer", "predict"),
    EVALUATION: ("predict",),
    TRANSFER: ("show", "evaluate"),
    TRANSFER_LOGITS: ("evaluate",),
}


@cache
def finished(seed: int = 1) -> Path:
    """A finished run with an evaluation and a transfer; no test writes into it."""
    done = run(samples.config(samples.pictures(), epochs=2, seed=seed), samples.shared() / "folders")
    root = samples.picture_folder(samples.shared() / "sketches", samples.NAMES[:4], each=4)
    evaluate_on(done.folder, Target(str(root), name="drawings"))
    write_evaluations([evaluate_run(done.folder, EvaluationSettings(("vector",), bootstrap=0))])
    return done.folder


def flip(place: float) -> Callable[[bytes, bytes], bytes]:
    def flipped(data: bytes, other: bytes) -> bytes:
        at = min(len(data) - 1, int(place * len(data)))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return flipped


HARMS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "truncated": lambda data, other: data[: len(data) // 2],
    "last byte gone": lambda data, other: data[:-1] if data[-1:] != b"\n" else data[:-2],
    "empty": lambda data, other: b"",
    "flipped early": flip(0.1),
    "flipped in the middle": flip(0.5),
    "flipped late": flip(0.97),
    "noise": lambda data, other: bytes(torch.randint(256, (len(data),), dtype=torch.uint8).tolist()),
    "of another run": lambda data, other: other,
}


def command(name: str, folder: Path) -> list[str]:
    picture = str(samples.pictures() / "ant" / "0.png")
    words = {
        "show": ["show", str(folder)],
        "evaluate": ["evaluate", str(folder), "--bootstrap", "0", "--out", str(folder.parent / "all.csv")],
        "transfer": ["transfer", str(folder), "--data", str(samples.pictures()), "--quiet", "--no-cache"],
        "predict": ["predict", str(folder), picture, "--calibrator", "vector", "--quiet"],
    }
    return words[name]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_and_no_number_is_printed(
    name: str, harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    path = folder / name
    path.write_bytes(HARMS[harm](path.read_bytes(), (finished(seed=2) / name).read_bytes()))
    swapped = harm == "of another run" and name == RECORD  # whole: the other files are not those that it lists
    for reader in READERS[name]:
        if reader == "train":
            continue
        assert main(command(reader, folder)) == 2, reader
        output = capsys.readouterr()
        assert output.out == "", reader
        named = path.name if not swapped else ""
        assert named in output.err, (reader, output.err)
    assert not (tmp_path / "all.csv").exists()


@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm != "of another run"])
def test_a_damaged_record_is_named_by_train(harm: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    path = folder / RECORD
    path.write_bytes(HARMS[harm](path.read_bytes(), b""))
    with pytest.raises(DamagedFileError, match=r"run\.json"):
        run(samples.config(samples.pictures(), epochs=2), tmp_path)


@pytest.mark.parametrize("harm", ["truncated", "flipped in the middle", "of another run"])
@pytest.mark.parametrize("name", [PROMPTS, METRICS, HISTORY, LOGITS])
def test_train_names_a_damaged_result_and_computes_it_again(name: str, harm: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    path, whole = folder / name, (folder / name).read_bytes()
    path.write_bytes(HARMS[harm](whole, (finished(seed=2) / name).read_bytes()))
    with pytest.warns(UserWarning, match=f"{name} is damaged or of another run.*; it is computed again"):
        again = run(samples.config(samples.pictures(), epochs=2), tmp_path)
    assert not again.reused
    assert path.read_bytes() == whole


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_not_resumed(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(seed: int) -> Path:
        keep = execute.write_checkpoint

        def stop(folder: Path, state: object, *given: object) -> None:
            keep(folder, state, *given)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        monkeypatch.setattr(execute, "write_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            run(samples.config(seed=seed), tmp_path / str(seed))
        monkeypatch.setattr(execute, "write_checkpoint", keep)
        (path,) = (tmp_path / str(seed)).glob(f"*/{CHECKPOINT}")
        return path

    path, other = stopped(1), stopped(2)
    path.write_bytes(HARMS[harm](path.read_bytes(), other.read_bytes()))
    if harm == "of another run":  # which is whole: it is of no use here, and training starts over
        assert run(samples.config(seed=1), tmp_path / "1").record["resumed_after_epoch"] == 0
        return
    with pytest.raises(DamagedFileError, match=CHECKPOINT):
        run(samples.config(seed=1), tmp_path / "1")


@pytest.mark.parametrize("change", [{"format": FORMAT + 1}, {"versions": {"calprompt": "9.0.0"}}])
@pytest.mark.parametrize("name", [RECORD, EVALUATION, TRANSFER])
def test_what_a_newer_version_wrote_is_not_read(
    name: str, change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    payload = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(payload | change))
    for reader in (each for each in READERS[name] if each != "train"):
        assert main(command(reader, folder)) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert f"{Path(name).name} was written by " in output.err
        assert "update calprompt to read it" in output.err
    if name == RECORD:
        with pytest.raises(NewerFormatError):
            run(samples.config(samples.pictures(), epochs=2), tmp_path)


@pytest.mark.parametrize("missing", ["tuner", "training", "shots"])
def test_a_record_that_lacks_a_setting_is_damaged(missing: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    samples.edit_record(folder, lambda record: record["config"].pop(missing))
    with pytest.raises(DamagedFileError, match=rf"run\.json is damaged, it has no {missing} in 'config'"):
        load_run(folder)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished(), tmp_path / finished().name))
    (folder / METRICS).unlink()
    with pytest.raises(NotFoundError, match=r"metrics\.json is not there; its training command computes it again"):
        load_run(folder)


def test_image_names_are_stored_with_their_logits() -> None:
    """Which image was wrong? has an answer, of the run's own images and of those of other data."""
    done = load_run(finished())
    tensors, metadata = read_run_tensors(done.folder, LOGITS, done.record)
    for split in ("base", "novel", "val"):
        names, labels = metadata["image_names"][split], tensors[f"{split}/labels"].tolist()
        folders = metadata["class_names"][split]
        assert [name.split("/")[0] for name in names] == [folders[label] for label in labels]
        assert all((samples.pictures() / name).is_file() for name in names)
    (transfer,) = done.transfers
    tensors, metadata = read_run_tensors(transfer.folder, LOGITS, transfer.record)
    for part, names in metadata["image_names"].items():
        classes = metadata["class_names"][part]
        assert [classes[label] for label in tensors[f"{part}/labels"].tolist()] == [n.split("/")[0] for n in names]


def test_tensor_files_know_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensor_file({"x": torch.arange(6.0)}, {"epoch": 3}))
    tensors, metadata = read_tensor_file(path, checked=True)
    assert metadata == {"epoch": 3}
    assert tensors["x"].tolist() == [0, 1, 2, 3, 4, 5]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="its checksum is wrong"):
        read_tensor_file(path)
