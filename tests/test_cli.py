"""The command line: what it prints, where, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import calprompt
import samples
from calprompt.cli import main
from calprompt.cli.app import create_parser
from calprompt.cli.shared import attribute_help
from calprompt.cli.show import results_table
from calprompt.cli.train import option_value, run_settings
from calprompt.errors import CalpromptError
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.progress import show_progress
from calprompt.runs.config import RunConfig, Target, build_config
from calprompt.runs.folder import load_run
from calprompt.training_config import TrainingConfig

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def arguments(out: Path, *more: str, data: Path | None = None) -> list[str]:
    given = {
        "--backbone": samples.backbone(),
        "--data": data or samples.feature_file(),
        "--out": out,
        "--set": "context=2",
        "--shots": 4,
        "--epochs": 2,
        "--batch-size": 8,
        "--views": 2,
    }
    return ["train", *(str(each) for pair in given.items() for each in pair), *more]


def command(*given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calprompt", *given], capture_output=True, text=True, env=ENVIRONMENT, timeout=120
    )


@pytest.mark.parametrize(
    ("option", "words", "value"),
    [("views", "new", None), ("views", "3", 3), ("shots", "all", None), ("shots", "5", 5)],
)
def test_words_for_missing_numbers(option: str, words: str, value: int | None) -> None:
    chosen = create_parser().parse_args(["train", "--backbone", "b", "--data", "d", f"--{option}", words])
    assert getattr(build_config(**run_settings(chosen)), option) == value


def test_no_cache_keeps_no_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    given = arguments(tmp_path / "runs", "--quiet", data=samples.pictures())
    assert main([*given, "--no-cache"]) == 0
    assert not (tmp_path / "cache" / "features").exists()
    assert main([*given, "--seed", "2"]) == 0
    assert any((tmp_path / "cache" / "features").iterdir())


def test_unknown_words_for_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        create_parser().parse_args(["train", "--backbone", "b", "--data", "d", "--views", "fresh"])
    assert "--views: expected a number of crops of an image, or 'new'; got 'fresh'" in capsys.readouterr().err


def test_train_and_show_as_a_user_runs_them(tmp_path: Path) -> None:
    trained = command(*arguments(tmp_path, "--quiet", data=samples.pictures()))
    assert (trained.returncode, trained.stderr) == (0, "")
    folder = Path(trained.stdout.splitlines()[-1])
    run = load_run(folder)
    shown = samples.command(tmp_path, "show", folder)
    assert (shown.returncode, shown.stderr, shown.stdout) == (0, "", trained.stdout)
    rows = [
        line.split() for line in trained.stdout.splitlines() if line.strip().startswith(("base", "novel", "zero-shot"))
    ]
    metrics = run.metrics
    expected = [metrics["base"], metrics["zero_shot"]["base"], metrics["novel"], metrics["zero_shot"]["novel"]]
    assert [row[0] for row in rows] == ["base", "zero-shot", "novel", "zero-shot"]
    for row, values in zip(rows, expected, strict=True):
        measured = [f"{100 * values[metric]:.2f}" for metric in ("accuracy", "ece", "ace", "mce")]
        assert row[1:] == ["9", "3", *measured, f"{100 * values['confidence_gap']:+.2f}"]


def test_narrow_terminals_show_every_digit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path)) == 0
    run = load_run(next(tmp_path.iterdir()))
    for part in (run.metrics["base"], run.metrics["novel"]):
        part |= dict.fromkeys(("accuracy", "ece", "ace", "mce", "confidence_gap"), 1.0)
    capsys.readouterr()
    Console(width=80).print(results_table(run, "title"))
    printed = capsys.readouterr().out
    assert printed.count("100.00") == 10
    assert "…" not in printed
    assert "  zero-shot" in printed


def test_a_mistake_is_one_line_and_exit_2(tmp_path: Path) -> None:
    shown = command("show", str(tmp_path))
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"error: {tmp_path} is not the folder of a run, it has no run.json\n"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--data", "nowhere"], "there is no data at nowhere"),
        (["--backbone", "./nothing"], "no file or folder nothing"),
        (["--tuner", "coopp"], "Did you mean 'coop'"),
        (["--set", "contxt=2"], "Did you mean 'context'"),
        (["--set", "context"], "--set takes NAME=VALUE"),
        (["--set", "context=many"], "context must be a whole number or None, got 'many'"),
        (["--loss", "ce + [red]"], "cannot read"),
        (["--epochs", "0"], "epochs must be at least 1"),
        (["--lr", "1e30", "--epochs", "4", "--shots", "all"], "not finite at epoch"),
        (["--autocast", "int8"], "autocast must be bfloat16"),
        (["--device", "warp"], "--device must be cpu, cuda, cuda:1 or the like, got 'warp'"),
    ],
)
def test_errors_are_reported_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert main(arguments(tmp_path, *more)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert says in output.err


def test_output_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("")
    assert main(arguments(tmp_path / "runs")) == 2
    said = capsys.readouterr().err
    assert said == f"error: --out must be a folder, and {tmp_path / 'runs'} is a file\n"


def test_a_warning_is_one_line_and_shown_once(tmp_path: Path) -> None:
    """Of words in the names of classes, not of those in a tuner's own templates."""
    root = samples.picture_folder(tmp_path / "photos", ("cat", "dog", "immunohistochemistry", "fox"), each=4)
    given = ["train", "--backbone", "pocket", "--data", str(root), "--out", str(tmp_path / "runs"), "--epochs", "1"]
    given += ["--tuner", "promptsrc", "--views", "1", "--set", "depth=2", "--set", "visual_depth=2", "--quiet"]
    done = samples.command(tmp_path, *given)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("warning: backbone 'pocket' has never seen 'immunohistochemistry': its answers")


@pytest.mark.parametrize(
    "given", [[], ["fly"], ["train"], ["train", "--backbone", "b", "--data", "d", "--shots", "few"]]
)
def test_wrong_arguments_exit_2(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "usage: calprompt" in said
    assert "few" not in given or "expected a number of training images per class, or 'all'; got 'few'" in said


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for given, says in (
        (["--version"], f"calprompt {calprompt.__version__}"),
        (["--help"], "tune prompts on base classes"),
        (["train", "--help"], "calprompt train --backbone ViT-B-16-quickgelu/openai --data photos/"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(given)
        assert caught.value.code == 0
        assert says in capsys.readouterr().out


def test_help_and_show_need_no_torch() -> None:
    script = "import sys; from calprompt.cli.app import create_parser; create_parser(complete=True); "
    script += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in (
        "tuners",
        "coop",
        "zero-shot",
        "losses",
        "margin",
        "tcpt",
        "calibrators",
        "temperature",
        "metrics",
        "ece",
    ):
        assert name in printed.split()


def test_a_finished_run_is_reported_as_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path)) == 0
    first = capsys.readouterr().out
    assert main(arguments(tmp_path)) == 0
    assert capsys.readouterr().out == "already finished, nothing was computed:\n" + first


def test_not_applicable_is_shown_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "--set", "class_specific=True")) == 0
    printed = capsys.readouterr().out
    assert "n/a" in printed
    assert "novel: these prompts were learned class by class" in printed


def test_show_prints_the_status_of_an_unfinished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path, "--lr", "1e30", "--epochs", "4", "--shots", "all")) == 2
    folder = next(tmp_path.iterdir())
    capsys.readouterr()
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("failed after ")
    samples.edit_record(folder, lambda record: record.pop("reason") and record.update(status="running"))
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("interrupted after ")


def test_defaults_equal_the_library() -> None:
    chosen = create_parser().parse_args(["train", "--backbone", "b", "--data", "d"])
    assert build_config(**run_settings(chosen)) == RunConfig(backbone="b", data="d")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("context=4", ("context", 4)),
        ("words=a photo of a", ("words", "a photo of a")),
        ("words='a photo'", ("words", "a photo")),
        ("class_specific=True", ("class_specific", True)),
        ("weight=1e-3", ("weight", 1e-3)),
        ("words=a=b", ("words", "a=b")),
        ("words=", ("words", "")),
        ("words=None", ("words", None)),
    ],
)
def test_options_are_python_values_or_text(text: str, pair: tuple[str, Any]) -> None:
    assert option_value(text) == pair


@pytest.mark.parametrize("text", ["context", "=4", "con text=4", "4"])
def test_options_have_names(text: str) -> None:
    with pytest.raises(CalpromptError, match="NAME=VALUE"):
        option_value(text)


def test_ctrl_c_exits_130_and_says_how_to_resume(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 (the process ends with it)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(arguments(tmp_path, "--epochs", "100000"))
        sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("*/checkpoint.safetensors")) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(child, signal.SIGINT)
    assert samples.exit_code(child) == 130
    with open(reader) as file:
        said = file.read()
    assert said == "interrupted; run the same command to resume after the last finished epoch\n"
    assert load_run(next(tmp_path.iterdir())).status == "interrupted"


def test_progress_prints_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log says every few seconds where long work is, and is not filled with bars."""
    now = 0.0
    monkeypatch.setattr("calprompt.progress.time.monotonic", lambda: now)
    with show_progress() as progress:
        for done in range(1, 101):
            now += 0.5
            progress("training", done, 100, f"loss {1 / done:.2f}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "training: 10 of 100 (10 %), loss 0.10"
    with show_progress(quiet=True) as progress:
        progress("training", 1, 2)
    assert capsys.readouterr().err == ""


def test_flags_and_their_help_come_from_the_dataclasses() -> None:
    for command, kinds in (
        ("train", (RunConfig, TrainingConfig)),
        ("evaluate", (EvaluationSettings,)),
        ("transfer", (Target,)),
    ):
        (commands,) = (
            each.choices for each in create_parser(complete=True)._actions if hasattr(each, "choices") and each.choices
        )
        flags = {action.dest: action for action in commands[command]._actions}
        for kind in kinds:
            assert set(attribute_help(kind)) == {field.name for field in fields(kind)}
            for name in set(attribute_help(kind)) - {"training"}:
                assert name in flags
                if command == "train" or name != "data":
                    assert "if None" not in flags[name].help
