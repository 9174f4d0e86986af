"""What would be wrong for long or lost without a word is told first, in a sentence that says what to do."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

import calprompt
import samples
from calprompt.cli import main
from calprompt.data import decoding
from calprompt.errors import DataError, Parameter, SettingError, UnknownNameError
from calprompt.executors.protocol import shared_marker
from calprompt.files import folder_kind, require_kind
from calprompt.losses import losses
from calprompt.sweep import expansion
from classifier.fits import picture_paths, saved
from report import reports

FIT = ["--backbone", str(samples.backbone()), "--epochs", "1", "--folds", "2", "--tuner", "zero-shot", "--quiet"]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command in an empty folder; gives its exit status and what it says on standard error, as one line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return status, " ".join(capsys.readouterr().err.split())

    return run


def test_lists_separated_by_nul_and_names_that_are_not_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(stdin: bytes, status: int = 0) -> list[str]:
        """Names that are predicted of a list on standard input."""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert main(["predict", str(saved()), "-", "--json", "--quiet"]) == status
        return [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]

    odd, plain = (tmp_path / os.fsdecode(name) for name in (b"caf\xe9\nau lait.png", b"caf\xe9.png"))
    first = picture_paths()[1]
    for path in (odd, plain):
        shutil.copyfile(picture_paths()[0], path)
    listed = [os.fsencode(first), os.fsencode(odd)]
    assert predicted(b"\0".join(listed) + b"\0") == [first, str(odd)], "a name of other bytes comes back as it was"
    assert predicted(os.fsencode(first) + b"\r\n\n" + os.fsencode(plain) + b"\n") == [first, str(plain)]
    assert predicted(os.fsencode(first) + b"\n" * 70_000 + b"\0", status=2) == []


@pytest.mark.parametrize("size", [1e308, 1e200])
def test_files_without_logits_are_refused(size: float) -> None:
    logits = size * np.array([[1.0, -1.0], [-1.0, 1.0]])
    for measure in (calprompt.evaluate, calprompt.expected_calibration_error):
        with pytest.raises(SettingError, match=r"logits must be at most 1e\+100 in size, got 1e"):
            measure(logits, [0, 0], from_logits=True)
    assert np.isfinite(calprompt.evaluate(logits / size * 1e100, [0, 0], from_logits=True)["nll"])


def test_files_that_are_left_out_are_counted(tmp_path: Path, told, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = samples.picture_folder(tmp_path / "photos", each=6)
    for number in range(3):
        (photos / "ant" / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (photos / "bee" / "notes.txt").write_text("notes")
    monkeypatch.setattr(decoding, "SUFFIXES", tuple(each for each in decoding.SUFFIXES if each != ".heic"))
    count = "left out, 4 files that cannot be read as images (3 .heic, 1 .txt); .heic needs pip install pillow-heif"
    status, err = told("fit", photos, "--out", "model", *FIT)
    assert status == 0
    assert count in err
    status, err = told("predict", "model", photos, "--csv", "--quiet")
    assert status == 0
    assert count in err
    fresh = samples.picture_folder(tmp_path / "fresh", each=2)
    for number, path in enumerate(sorted(fresh.rglob("*.png"))):
        samples.picture(path, seed=9000 + number)
    shutil.copy(photos / "ant" / "0.heic", fresh / "ant")
    assert "left out, 1 file that cannot be read as an image (1 .heic)" in told("evaluate", "model", fresh)[1]
    for path in (photos / "ant").glob("*.png"):
        path.unlink()
    status, err = told("fit", photos, "--out", "again", *FIT)
    assert status == 2
    assert "it has 3 files that cannot be read as images (3 .heic); .heic needs pip install pillow-heif" in err


def test_avif_is_read_where_pillow_can(tmp_path: Path) -> None:
    pixels = np.full((40, 36, 3), (200, 60, 20), dtype=np.uint8)
    if features.check("avif"):
        Image.fromarray(pixels).save(tmp_path / "a.avif")
        found = np.asarray(decoding.decode((tmp_path / "a.avif").read_bytes()))
        assert np.abs(found.astype(int) - pixels).max() <= 8, "AVIF is lossy"
        assert ".avif" in decoding.SUFFIXES
    else:
        assert ".avif" not in decoding.SUFFIXES
    with pytest.raises(
        calprompt.errors.ImageError, match="HEIC, which needs a decoder: pip install pillow-heif; or save it"
    ):
        decoding.decode(b"\0\0\0\x18ftypheic" + bytes(100))


def test_the_same_file_in_two_classes_is_named(tmp_path: Path, told, capsys: pytest.CaptureFixture[str]) -> None:
    photos = samples.picture_folder(tmp_path / "photos", each=6)
    shutil.copy(photos / "ant" / "1.png", photos / "bee" / "copy.png")
    status, err = told("fit", photos, "--out", "model", *FIT)
    assert status == 0
    assert "one image is in more than one class, byte for byte; one label must be wrong:" in err
    assert "ant/1.png (ant) = bee/copy.png (bee)" in err.replace(f"{photos}/", "")
    main(["data", "check", str(photos)])
    said = capsys.readouterr().out.replace(f"{photos}/", "")
    assert "note: in two classes, byte for byte: " in said
    assert "bee/copy.png (bee)" in said


def test_settings_without_effect_are_refused(told) -> None:
    run, photos = reports.folders()[0], samples.pictures()
    train = ("train", "--backbone", samples.backbone(), "--data", photos, "--epochs", 1, "--lr", 0.5)
    for words, says in (
        (("predict", saved(), picture_paths()[0], "--move-into", ""), "--move-into must not be empty, got ''"),
        (("evaluate", saved(), photos, "--bins", 5), f"--bins is for runs, and {saved()} is the folder of a model"),
        (("evaluate", saved(), photos, "--calibrators", "dac"), "--calibrators is for runs"),
        (("evaluate", saved(), photos, "--target-error", 0.1), "--target-error is for runs"),
        (("fit", photos, "--out", "m", "--epochs", 1, "--lr", 1e30), "--lr is never used: training has 1 epoch"),
        (train, "--lr is never used: training has 1 epoch, and warm-up takes 1 with a rate of its own"),
        (("fit", photos, "--out", "m", "--chunk", 0), "--chunk must be at least 1, got 0"),
        (("results", "."), "has no runs in it, and no sweep was begun there"),
        (("results", reports.runs(), "--calibrators", "nope"), "unknown calibrator 'nope'. Known: "),
        (("table", "main", reports.runs(), "--method", "zzz"), "unknown method 'zzz'. Known: "),
        (("evaluate", run, "--json"), "--json is for models"),
    ):
        status, err = told(*words)
        assert (status, says in err) == (2, True), err


def test_evaluations_of_a_model_are_written_as_their_names_say(tmp_path: Path, told) -> None:
    fresh = samples.picture_folder(tmp_path / "fresh", each=2)
    for number, path in enumerate(sorted(fresh.rglob("*.png"))):
        samples.picture(path, seed=9100 + number)
    assert told("evaluate", saved(), fresh, "--out", "x.csv")[0] == 0
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "metric,calibrated,uncalibrated"
    assert any(line.startswith("ece,") for line in lines)
    assert told("evaluate", saved(), fresh, "--out", "x.txt") == (
        2,
        "error: --out must end in .json or .csv, got 'x.txt'",
    )


def test_dry_run_checks_every_input(told, tmp_path: Path) -> None:
    sweep, typo = tmp_path / "sweep.yaml", tmp_path / "typo.yaml"
    settings = f"settings: {{backbone: {samples.backbone()}, data: {samples.pictures()}"
    sweep.write_text(f"{settings}}}\naxes: {{seed: [1, 2]}}\n")
    typo.write_text(f"{settings}}}\naxes: {{loss: [ce, 'ce + margin(alpa=0.1)']}}\n")
    (tmp_path / "file").touch()
    dry = ("sweep", sweep, "--dry-run")
    for words, says in (
        ((*dry, "--out", "file"), "--out must be a folder, and file is a file"),
        ((*dry, "--out", "file/runs"), "--out must be a folder, and file/runs lies in"),
        ((*dry, "--device", "warp"), "must be cpu, cuda, cuda:1 or the like, got 'warp'"),
        ((*dry, "--ray", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
        ((*dry, "--ray", "zzz"), "got 'zzz'"),
        ((*dry, "--root", "nowhere"), "--root must be a folder that is there, got 'nowhere'"),
        (("sweep", typo, "--dry-run"), "unknown option of loss 'margin': 'alpa'. Did you mean 'alpha'?"),
    ):
        status, err = told(*words)
        assert (status, says in err) == (2, True), err
    assert told(*dry, "--out", "runs")[0] == 0


def test_sweep_options_are_checked_against_the_files() -> None:
    from inspect import signature

    from calprompt.calibrators import calibrators

    for kind, registry in (("losses", losses), ("calibrators", calibrators)):
        found = expansion._options(kind)
        assert {name: set(signature(registry.get(name)).parameters) for name in registry.available()} == {
            name: set(options) for name, options in found.items()
        }


def test_leftovers_of_a_killed_sweep_are_removed(tmp_path: Path) -> None:
    script = "import os, sys; from pathlib import Path; from calprompt.executors.protocol import shared_marker\n"
    script += "with shared_marker(Path(sys.argv[1])): os._exit(9)"
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert len(list(tmp_path.glob(".shared-*"))) == 1
    with shared_marker(tmp_path) as first, shared_marker(tmp_path) as second:
        assert {path.name for path in tmp_path.glob(".shared-*")} == {Path(first).name, Path(second).name}
    assert not list(tmp_path.glob(".shared-*"))


def test_errors_carry_their_parameter() -> None:
    flags = {"skip_bad": "--skip-bad", "coverage": "--coverage", "tuner": "--tuner"}
    error = SettingError("must be a share, got coverage-1.0 such as tuner=coop", parameter="coverage")
    assert error.parameter == "coverage"
    assert error.spelled(flags) == "--coverage must be a share, got coverage-1.0 such as tuner=coop"
    advice = DataError("leave them out with ", Parameter("skip_bad", True), ": ", error)
    assert advice.parameter is None
    assert str(advice).startswith("leave them out with skip_bad=True: coverage must be")
    assert advice.spelled(flags).startswith("leave them out with --skip-bad: --coverage must be")


def test_values_are_never_rewritten(told) -> None:
    _, err = told("results", reports.runs(), "--filter", "template")
    assert err == "error: --filter takes KEY=VALUE, such as tuner=coop; got 'template'"
    _, err = told("fit", samples.pictures(), "--out", "m", "--coverage", "-1.0")
    assert err == "error: --coverage must be a share, at least 0 and below 1; got -1.0"


def test_only_near_names_are_offered() -> None:
    for name, hint in (("temprature", "Did you mean 'temperature'?"), ("zzz", ""), ("nope", ""), ("main", "")):
        with pytest.raises(UnknownNameError) as caught:
            calprompt.calibrators.get(name)
        assert (hint in str(caught.value)) == bool(hint) or not hint
        assert ("Did you mean" in str(caught.value)) == bool(hint)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict", "MODEL", "nothing.jpg"), "there is no image nothing.jpg"),
        (("predict", "nowhere", "IMAGE"), "there is no folder nowhere; expected the folder of a model or of a run"),
        (("evaluate", "MODEL", "nowhere"), "there is no data at nowhere"),
        (("export", "MODEL", "file"), "file exists already"),
        (("compare", "MODEL", "MODEL", "--data", "nowhere"), "there is no data at nowhere"),
        (("compare", "MODEL", "MODEL", "--out", "x.jpg"), "--out must end in .png or .svg or .pdf, got 'x.jpg'"),
    ],
)
def test_a_wrong_path_is_reported_before_a_model_is_read(words, says: str, told, monkeypatch, tmp_path: Path) -> None:
    from calprompt.classifier import model_folder

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a model was read")

    monkeypatch.setattr(model_folder, "read_sealed", read)
    (tmp_path / "file").touch()
    places = {"MODEL": saved(), "IMAGE": picture_paths()[0]}
    status, err = told(*(places.get(word, word) for word in words))
    assert (status, says in err) == (2, True), err


def test_a_model_is_read_and_verified_once(told, monkeypatch: pytest.MonkeyPatch) -> None:
    from calprompt.classifier import model_folder

    seen: list[str] = []
    digest = model_folder.file_digest

    def noted(path: Path) -> str:
        seen.append(path.name)
        return digest(path)

    monkeypatch.setattr(model_folder, "file_digest", noted)
    assert told("predict", saved(), picture_paths()[0], "--json", "--quiet")[0] == 0
    assert sorted(seen) == ["model.safetensors", "predictions.safetensors"]


def test_the_kind_of_a_folder(tmp_path: Path) -> None:
    run = reports.folders()[0]
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.json").touch()
    kinds = [folder_kind(place) for place in (run, saved(), tmp_path / "exported", samples.pictures(), "nowhere")]
    assert kinds == ["run", "model", "export", "data", None]
    with pytest.raises(
        calprompt.errors.NotFoundError, match=f"{run.name} is the folder of a run; expected the folder of"
    ):
        require_kind(run, "model")


def test_a_full_disk_names_the_file_and_what_helps(told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calprompt import files

    runs = reports.runs()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    status, err = told("results", runs, "--csv", "table.csv")
    assert status == 2
    assert err == "error: table.csv: No space left on device; make room on that disk, or write to another one"
    status, err = told(
        "fit", samples.pictures(), "--out", "m", "--work-dir", "work", *FIT[:4], "--folds", "2", "--quiet"
    )
    assert status == 2
    assert "No space left on device; make room there, or choose another place with --work-dir FOLDER" in err


def test_a_parser_is_built_for_the_command_that_is_chosen() -> None:
    script = "import sys; from calprompt.cli import main\ntry: main({})\nexcept SystemExit: pass\n"
    script += "print(*sorted(name for name in sys.modules if name.startswith('calprompt.cli.')), file=sys.stderr)"
    for words, modules in (
        (["--help"], {"app", "shared"}),
        (["show", "--help"], {"app", "shared", "show"}),
        (["cache", "prune", "--help"], {"app", "shared", "cache"}),
    ):
        done = subprocess.run([sys.executable, "-c", script.format(words)], capture_output=True, text=True, check=True)
        assert {name.removeprefix("calprompt.cli.") for name in done.stderr.split()} == modules
        assert all(name in done.stdout for name in (("fit", "doctor", "sweep") if words == ["--help"] else ("usage",)))
