"""Several hundred calls that cannot work: each is told in a sentence that names the value or the flag, none crashes."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import samples
from calprompt.cli import main
from calprompt.cli.app import COMMANDS, create_parser
from classifier.fits import saved
from report import reports

NOT_UTF8 = os.fsdecode(b"caf\xe9")
PLACES = ("nowhere", "", "a\0b", "x" * 300, NOT_UTF8, "a_file", "/proc/nothing", "empty")
NUMBERS = ("x", "", "nan", "-1", "1e999")
OUTPUTS = ("", "a_folder", "a_file/inside.csv", "a\0b", "x" * 300)

WORDS = {  # of each command, words that would work: the first positional argument is what bad places stand for
    "show": ["RUN"],
    "results": ["RUNS"],
    "table": ["main", "RUNS"],
    "figure": ["reliability", "RUNS", "--out", "figure.png"],
    "compare": ["RUN", "RUN2"],
    "report": ["RUN", "--out", "report.html"],
    "predict": ["MODEL", "IMAGE"],
    "suggest": ["MODEL", "IMAGE"],
    "evaluate": ["RUN"],
    "export": ["MODEL", "exported"],
    "serve": ["MODEL"],
    "fit": ["PHOTOS", "--out", "model", "--backbone", "BACKBONE"],
    "train": ["--backbone", "BACKBONE", "--data", "PHOTOS", "--out", "runs"],
    "transfer": ["RUN", "--data", "PHOTOS"],
    "sweep": ["SWEEP", "--dry-run", "--out", "runs"],
    "extract": ["PHOTOS", "--backbone", "BACKBONE"],
    "demo": ["--backbone", "BACKBONE", "--data", "PHOTOS", "--out", "demo"],
    "data check": ["PHOTOS"],
    "data info": ["dtd"],
    "data prepare": ["dtd", "--root", "PHOTOS"],
    "cache prune": [],
    "cache merge": ["STORE"],
    "list": [],
}
POSITIONS = {  # where in these words a place stands
    **dict.fromkeys(("show", "results", "compare", "report", "predict", "evaluate", "export", "serve"), (0,)),
    "suggest": (0,),
    **dict.fromkeys(("transfer", "sweep", "extract", "data check", "data info", "data prepare", "cache merge"), (0,)),
    "table": (0, 1),
    "figure": (0, 1),
    "fit": (0, 4),
    "train": (1, 3),
    "demo": (1, 3),
}
POSITIONS |= {"predict": (0, 1), "transfer": (0, 2), "data prepare": (0, 2), "compare": (0, 1)}
LIMIT = 20  # seconds in which a call has to be refused


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words stand for."""
    folder = tmp_path_factory.mktemp("bad-calls")
    runs = reports.folders()
    (folder / "sweep.yaml").write_text(
        f"settings: {{backbone: {samples.backbone()}, data: {samples.pictures()}}}\naxes: {{seed: [1]}}\n",
        encoding="utf-8",
    )
    return {
        "RUN": str(runs[0]),
        "RUN2": str(runs[1]),
        "RUNS": str(reports.runs()),
        "MODEL": str(saved()),
        "PHOTOS": str(samples.pictures()),
        "IMAGE": str(shutil.copy(next(samples.pictures().rglob("*.png")), folder)),
        "BACKBONE": str(samples.backbone()),
        "SWEEP": str(folder / "sweep.yaml"),
        "STORE": str(folder),
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").write_text("nothing", encoding="utf-8")
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)  # whatever is not refused ends with status 0
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def bad_places(command: str) -> Iterator[tuple[list[str], str, str]]:
    for position in POSITIONS.get(command, ()):
        for place in PLACES:
            words = list(WORDS[command])
            words[position] = place
            yield words, words[position - 1] if position and words[position - 1].startswith("--") else "", place


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    def inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        found = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    found = inner(create_parser(complete=True))
    return {
        name: each
        for command, parser in found.items()
        for name, each in (
            {f"{command} {action}": one for action, one in inner(parser).items()} or {command: parser}
        ).items()
    }


def is_number(action: argparse.Action) -> bool:
    return action.type is not None and action.nargs != 0


def bad_options(command: str, parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], str, str]]:
    for action in parser._actions:
        if not action.option_strings or action.nargs == 0 or action.dest == "help":
            continue
        flag = action.option_strings[-1]
        rest = without(WORDS[command], flag)
        if action.choices is not None:
            values: tuple[str, ...] = ("zzz",)
        elif is_number(action):
            values = NUMBERS
        elif flag in ("--out", "--csv", "--json", "--parquet", "--marks", "--keep", "--move-into"):
            values = OUTPUTS
        else:
            values = BAD_TEXT.get(flag, ())
        for value in values:
            if (command, flag, value) not in FINE:
                yield [*rest, f"{flag}={value}"], flag, value


def without(words: list[str], flag: str) -> list[str]:
    if flag not in words:
        return list(words)
    at = words.index(flag)
    return [*words[:at], *words[at + 2 :]]


BAD_TEXT = {
    "--device": ("zzz", "", "cuda:x"),
    "--backbone": ("zzz", "", "a\0b", "./nowhere"),
    "--data": ("nowhere", ""),
    "--root": ("nowhere", "a_file"),
    "--classes": ("nowhere",),
    "--base": ("nowhere",),
    "--runs": ("nowhere",),
    "--filter": ("zzz", "=1", "zzz=1"),
    "--calibrator": ("zzz", "temperature ->", "dac(k=x)"),
    "--calibrators": ("zzz", "temperature -> zzz"),
    "--convention": ("zzz",),
    "--import": ("nowhere.py", "a_file"),
    "--set": ("zzz", "zzz=1", "=1"),
    "--tuner": ("zzz",),
    "--loss": ("zzz", "ce +", "margin(alpa=0.1)", "ce + 1e400*moments"),
    "--recipe": ("zzz", "nowhere.yaml"),
    "--template": ("no slot", "{} {}"),
    "--protocol": ("zzz",),
    "--validation": ("zzz", "train:2"),
    "--dtype": ("zzz",),
    "--autocast": ("zzz",),
    "--group-by": ("(",),
    "--budget": ("zzz", "0", "-2m", ""),
    "--metric": ("zzz",),
    "--method": ("zzz",),
    "--methods": ("zzz",),
    "--split": ("zzz",),
    "--baseline": ("zzz",),
    "--ray": ("zzz", "127.0.0.1:1"),
    "--check": ("nowhere", "a_file", "a_folder", ""),
    "--max-body": ("zzz", "-1"),
    "--max-memory": ("zzz", "1B"),
    "--token": ("short", "with blanks in it"),
    "--formats": ("zzz",),
    "--replicas": ("zzz", "0"),
    "--host": ("not a host!",),
    "--merge": ("nowhere",),
    "--into": ("a_file", ""),
    "--older-than": ("zzz", "-1d", ""),
    "--max-size": ("zzz", "-1", ""),
}
FINE = {  # what some commands take
    *((command, "--out", "a_folder") for command in ("train", "demo", "fit", "sweep")),
    ("predict", "--move-into", "a_folder"),
    ("serve", "--keep", "a_folder"),
    ("extract", "--backbone", "zzz"),  # which workers are asked, as they have open_clip loaded
    *((command, "--classes", "nowhere") for command in ("predict", "export", "serve")),
}


def too_long(*_: object) -> None:
    raise AssertionError(f"still at work after {LIMIT} seconds")


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    try:
        status = main(words)
    except SystemExit as error:
        status = int(error.code or 0)
    finally:
        signal.alarm(0)
    return status, capsys.readouterr().err


def named(err: str, flag: str, value: str) -> bool:
    """Whether a message names what was wrong: the flag, or the value, or the part of it that is wrong."""
    line = " ".join(err.split())
    shown = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    parts = [part for part in ("zzz", "alpa", "nowhere", "x" * 300) if part in value]
    wanted = [flag, flag.lstrip("-").replace("-", " "), shown, *parts, repr(value)]
    return any(each and each in line for each in wanted)


@cache
def bad_calls(command: str) -> list[tuple[list[str], str, str]]:
    """Words after a command, with the flag and the value that are wrong."""
    return [*bad_places(command), *bad_options(command, parsers()[command])]


def test_bad_calls_cover_every_command() -> None:
    assert {name.partition(" ")[0] for name in WORDS} | {"doctor"} == set(COMMANDS)
    assert sum(len(bad_calls(command)) for command in WORDS) >= 600


@pytest.mark.parametrize("command", WORDS)
def test_bad_calls(command: str, places: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name for path in here.iterdir()} | {"cache"}
    for words, flag, value in bad_calls(command):
        status, err = call([*command.split(), *(places.get(word, word) for word in words)], capsys)
        assert status in (1, 2), words
        assert "Traceback" not in err
        assert named(err, flag, value), (words, err)
        assert {path.name for path in here.iterdir()} <= before, f"{words} leaves something behind"


def test_commands_without_arguments_refuse_them(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["doctor", "zzz"], ["doctor", "--zzz"], ["cache"], ["cache", "zzz"], ["data", "zzz"], ["zzz"], []):
        status, err = call(words, capsys)
        assert status == 2
        assert "zzz" in err or "required" in err
