"""`calprompt doctor`: what it prints, how it ends, and that nothing stops it."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import calprompt
from calprompt.cli import main
from calprompt.doctor.examination import Finding

SOURCE = Path(calprompt.__file__).parents[1]
FINE = Finding("torch", "ok", "2.15.0", section="packages")
NOTED = Finding("ViT-B-16", "note", "not on this machine", "Give it with --backbone PATH.", "backbones")
BROKEN = Finding("cache folder", "problem", "[red] caf\udce9: Not a directory", "Mend it.", "storage")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the doctor finds."""
    findings: list[Finding] = []
    monkeypatch.setattr("calprompt.doctor.examination.examine", lambda checks: iter(findings))
    return findings


def command(*given: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "calprompt"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **environment}
    return subprocess.run(
        [sys.executable, *start, *given], capture_output=True, text=True, env=env, timeout=300, check=False
    )


def test_lines_in_sections_with_advice_as_flags(examined: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    examined += [FINE, NOTED]
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed[:2]] == [["packages"], ["ok", "torch", "2.15.0"]]
    assert printed[2:4] == ["", "backbones"]
    assert printed[4].split(maxsplit=2) == ["note", "ViT-B-16", "not on this machine"]
    assert printed[5].strip() == "Give it with --backbone PATH."
    assert printed[5].index("Give") == printed[4].index("not on")
    assert printed[6:] == ["", "no problems, 1 note"]


def test_a_problem_is_exit_1(examined: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    examined += [FINE, BROKEN]
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "problem  cache folder" in printed
    assert "[red] caf\\xe9: Not a directory" in printed
    assert printed.endswith("\n1 problem\n")


def test_json_has_the_same_findings(examined: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    examined += [FINE, NOTED, BROKEN]
    assert main(["doctor", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["calprompt"], record["problems"], record["notes"]) == (calprompt.__version__, 1, 1)
    assert record["findings"][0] == {
        "name": "torch",
        "status": "ok",
        "value": "2.15.0",
        "advice": "",
        "section": "packages",
    }
    assert record["findings"][1]["advice"] == "Give it with --backbone PATH."


def test_long_lines_are_folded_on_a_terminal(
    examined: list[Finding], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examined.append(Finding("video", "ok", "word " * 40))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["doctor"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "word" in line]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 80
    assert len({line.index("word") for line in lines}) == 1


def test_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "The exit status is 1 if something is a problem, else 0." in capsys.readouterr().out


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A proxy that would notice whoever asks for the network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def test_as_a_user_runs_it_without_a_network(tmp_path: Path, listener: socket.socket) -> None:
    proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
    place = {"HOME": str(tmp_path), "CALPROMPT_CACHE": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = command("doctor", "--json", **place, HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    assert done.stderr == ""
    record = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in record["findings"]}
    assert (done.returncode, record["problems"]) == (0, 0), [each for each in found.values() if each["status"] != "ok"]
    for name in ("calprompt", "Python", "torch", "video", "processor", "threads", "cache folder", "self test"):
        assert name in found
    assert found["threads"]["value"].endswith("torch uses 1 thread (OMP_NUM_THREADS=1)")
    assert found["ViT-B-16-quickgelu/openai"]["status"] == "note"
    assert found["pocket model"]["status"] == "ok"
    assert found["ViT-B/16, images"]["value"].endswith("(estimated from two of its blocks)")
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not (tmp_path / "cache").exists()  # nothing is made that was not there
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("stub", "says"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "importing torch           libcudart.so.13: cannot open"),
        ("import os; os.abort()", "imports                   crashed the process of this check (SIGABRT)"),
    ],
)
def test_broken_torch_is_a_finding(tmp_path: Path, stub: str, says: str) -> None:
    (tmp_path / "torch.py").write_text(stub)
    done = command("doctor", CALPROMPT_CACHE=str(tmp_path), PYTHONPATH=f"{tmp_path}{os.pathsep}{SOURCE}")
    assert (done.returncode, done.stderr) == (1, "")
    assert says in done.stdout
    assert "1 problem" in done.stdout.splitlines()[-1]
    assert "ok       cache folder" in done.stdout
    assert "Traceback" not in done.stdout


WITHOUT = """
import sys
missing = sys.argv[1].split(",")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import calprompt.doctor.examination as examination
examination.examine.__defaults__ = (examination.CHECKS[:1],)
from calprompt.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "missing",
    [
        "yaml,numpy,rich,torch",
        pytest.param("rich", marks=pytest.mark.long),
        pytest.param("numpy", marks=pytest.mark.long),
    ],
)
def test_doctor_runs_without_required_packages(missing: str) -> None:
    done = command(missing, "doctor", code=WITHOUT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("installation\n  ok       calprompt ")
    assert re.search(r"\n\nno problems(, \d+ notes?)?\n$", done.stdout), "a busy machine is a note"


@pytest.mark.parametrize("missing", ["torch", "numpy,rich"])
def test_other_commands_name_the_doctor_where_a_package_is_broken(missing: str, tmp_path: Path) -> None:
    (tmp_path / "cat.png").touch()
    done = command(missing, "demo", "--out", str(tmp_path / "demo"), code=WITHOUT)
    assert done.returncode == 2
    reason = f"No module named '{missing.partition(',')[0]}"
    assert done.stderr.startswith(f"error: {reason}")
    assert done.stderr.endswith("'calprompt doctor' says what is wrong with this installation\n")
