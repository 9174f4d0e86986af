"""Sweep files: what they mean, what is wrong with them, and that reading them costs nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from calprompt.errors import CalpromptError, SettingError, UnknownNameError
from calprompt.sweep.sweep_file import Sweep, parse_sweep, read_sweep
from calprompt.sweep.sweep_plan import plan_sweep

BASE: dict[str, Any] = {"settings": {"backbone": "pocket", "data": "pocket_photos"}}


def parse(**content: Any) -> Sweep:
    return parse_sweep({**BASE, **content}, "mine", "mine.yaml")


def test_axes_multiply_and_seeds_go_fastest() -> None:
    sweep = parse(axes={"loss": ["ce", "tcpt"], "shots": [4, None]}, seeds=[1, 2])
    seen = [(each.settings["loss"], each.settings["shots"], each.settings["seed"]) for each in sweep.cells]
    assert seen == [(loss, shots, seed) for loss in ("ce", "tcpt") for shots in (4, None) for seed in (1, 2)]
    assert sweep.cells[0].title == "ce, shots 4, seed 1"
    assert (sweep.threads, sweep.workers, sweep.calibrators, sweep.transfer) == (1, None, (), ())


def test_zipped_settings_override_the_recipe_together() -> None:
    sweep = parse(
        settings={**BASE["settings"], "options.words": "a photo of a"},
        zip=[{"recipe": ["coop-tcpt", "kgcoop-tcpt"], "lr": [0.1, 0.2], "options": [{"position": "end"}, {}]}],
        axes={"loss": ["ce"]},
    )
    first, second = (cell.settings for cell in sweep.cells)
    assert (first["tuner"], first["lr"], first["loss"], first["epochs"]) == ("coop", 0.1, "ce", 50)
    assert first["options"] == {"context": 16, "position": "end", "words": "a photo of a"}
    assert (second["tuner"], second["lr"], second["batch_size"]) == ("kgcoop", 0.2, 128)
    assert [cell.title for cell in sweep.cells] == ["coop, ce", "kgcoop, ce"]


def test_recipes_and_devices_of_all_runs() -> None:
    sweep = parse(recipe="coop-pocket", device="cuda:1", threads=2, workers=3)
    assert sweep.cells[0].settings["crop"] == 1.0
    assert sweep.cells[0].settings["device"] == "cuda:1"
    assert (sweep.threads, sweep.workers) == (2, 3)
    assert parse_sweep({**BASE, "device": "cuda"}, "a", "a", root="/d").cells[0].settings["root"] == "/d"


def test_devices_of_the_file_and_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on any of the GPUs are the same run: its settings name the kind, the worker the number."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump({**BASE, "devices": ["cuda:0", "cuda:2"]}))
    for sweep in (read_sweep(file), read_sweep("paper/pocket-main", devices=["cuda:0", "cuda:2"])):
        assert sweep.devices == ("cuda:0", "cuda:2")
        assert {cell.settings["device"] for cell in sweep.cells} == {"cuda"}
    assert plan_sweep(read_sweep(file), tmp_path).workers == 2
    assert plan_sweep(read_sweep(file), tmp_path, workers=3).workers == 6
    moved = read_sweep(file, device="cpu")
    assert (moved.devices, moved.cells[0].settings["device"]) == ((), "cpu")
    with pytest.raises(SettingError, match="leave it out where devices are given"):
        read_sweep(file, device="cpu", devices=["cuda:0"])
    for devices, problem in (
        (["cpu"], "a.yaml: devices must be GPUs such as cuda:0 and cuda:1, got 'cpu'"),
        (["cuda:1", "cuda:1"], "has a GPU twice"),
        (["cuda:0"], "devices is given beside another device"),
    ):
        settings = {**BASE["settings"], "device": "cpu"} if "beside" in problem else BASE["settings"]
        file.write_text(yaml.safe_dump({**BASE, "settings": settings, "devices": devices}))
        with pytest.raises(SettingError, match=problem):
            read_sweep(file)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(SettingError, match="has cuda:1, but CUDA_VISIBLE_DEVICES is '5'"):
        read_sweep("paper/pocket-main", devices=["cuda:0", "cuda:1"])


def test_excluded_runs_are_left_out() -> None:
    axes = {"tuner": ["coop", "kgcoop"], "data": ["pocket_photos", "pocket_signs"], "loss": ["ce", "tcpt"]}
    settings = {"backbone": "pocket", "options.words": "a photo of a"}
    exclude = [
        {"tuner": "kgcoop", "data": ["pocket_signs", "pocket_flags"]},
        {"loss": "ce", "options.words": "a photo of a"},
    ]
    kept = parse(settings=settings, axes=axes, exclude=exclude).cells
    assert [cell.title for cell in kept] == [
        "coop, tcpt, pocket_photos",
        "coop, tcpt, pocket_signs",
        "kgcoop, tcpt, pocket_photos",
    ]


def test_targets_have_names_before_their_data_are_there() -> None:
    sweep = parse(
        transfer=["pocket_animals_line", {"data": "/x/my photos", "all_classes": True}, {"data": "b.csv", "name": "c"}]
    )
    assert [target.name for target in sweep.transfer] == ["pocket_animals_line", "my_photos", "c"]
    assert sweep.transfer[1].all_classes


@given(
    axes=st.lists(st.integers(1, 3), max_size=3),
    groups=st.lists(st.integers(1, 3), max_size=2),
    seeds=st.integers(1, 3),
    data=st.data(),
)
def test_counts(axes: list[int], groups: list[int], seeds: int, data: st.DataObject) -> None:
    """Product of the lengths, less those excluded."""
    names = iter(("lr", "epochs", "batch_size", "shots", "views", "momentum", "warmup_lr", "diagnose_every"))
    grid = {next(names): list(range(1, length + 1)) for length in axes}
    zipped = [{next(names): list(range(1, length + 1)), next(names): [1] * length} for length in groups]
    content: dict[str, Any] = {"axes": grid, "zip": zipped, "seeds": list(range(seeds))}
    whole = math.prod([*axes, *groups, seeds])
    cells = parse(**content).cells
    assert len({cell.key for cell in cells}) == len(cells) == whole
    if whole > 1:
        varied = data.draw(st.sampled_from([cell.varied for cell in cells]))
        some = data.draw(st.lists(st.sampled_from(sorted(varied)), min_size=1, unique=True))
        partial = {name: varied[name] for name in some}
        hit = sum(all(cell.settings[name] == value for name, value in partial.items()) for cell in cells)
        if hit < whole:
            kept = parse(**content, exclude=[partial]).cells
            assert len(kept) == whole - hit
            assert {cell.key for cell in kept} < {cell.key for cell in cells}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"axis": {}}, r"unknown key in mine\.yaml: 'axis'\. Did you mean 'axes'\?"),
    ({"axes": {"tunr": ["coop"]}}, r"unknown setting in mine\.yaml, axes: 'tunr'\. Did you mean 'tuner'\?"),
    ({"zip": [{"los": ["ce"]}]}, r"unknown setting in mine\.yaml, zip\[0\]: 'los'\. Did you mean 'loss'\?"),
    ({"exclude": [{"sed": 1}]}, r"unknown setting in mine\.yaml, exclude\[0\]: 'sed'\. Did you mean 'seed'\?"),
    ({"axes": {"loss": []}}, r"mine\.yaml: axes\.loss is empty"),
    ({"axes": {"loss": "ce"}}, r"mine\.yaml: axes\.loss must be a list of values, got 'ce'"),
    ({"axes": {"loss": ["ce", "ce"]}}, r"mine\.yaml: axes\.loss has 'ce' twice"),
    ({"axes": {"data": ["pocket_food"]}}, r"data is given under settings and under axes"),
    ({"axes": {"lr": [1.0]}, "zip": [{"lr": [2.0]}]}, r"lr is given under axes and under zip\[0\]"),
    ({"axes": {"seed": [1]}, "seeds": [1]}, r"seed is given under axes and under seeds"),
    ({"zip": [{"lr": [0.1, 0.2], "epochs": [1]}]}, r"zip\[0\] takes values side by side, and lr has 2, epochs has 1"),
    ({"zip": [{"lr": [0.1, 0.1], "epochs": [1, 1]}]}, r"zip\[0\] has the same values twice"),
    ({"zip": [[]]}, r"zip\[0\] must be names with lists of values"),
    ({"seeds": []}, r"mine\.yaml: seeds is empty"),
    ({"seeds": [1, 1]}, r"mine\.yaml: seeds has 1 twice"),
    ({"seeds": ["a"]}, r"seed must be a whole number, got 'a'"),
    ({"seeds": 3}, r"mine\.yaml: seeds must be a list, got 3"),
    ({"workers": 0}, r"workers must be a whole number of at least 1, got 0"),
    ({"threads": True}, r"threads must be a whole number of at least 1, got True"),
    ({"exclude": [{"loss": "ce"}]}, r"exclude\[0\] leaves out nothing"),
    ({"exclude": [{"data": "pocket_photos"}]}, r"exclude leaves out all runs"),
    ({"calibrators": ["temprature"]}, r"calibrators\[0\]: unknown .* 'temprature'\. Did you mean 'temperature'"),
    ({"calibrators": ["temperature -> dca"]}, r"unknown calibrator 'dca'\. Did you mean 'dac'"),
    ({"transfer": [{"dta": "a"}]}, r"transfer\[0\] must be data, or settings with data among them"),
    ({"transfer": [{"data": "a", "nme": "b"}]}, r"setting in mine\.yaml: transfer\[0\]: 'nme'\. Did you mean 'name'"),
    ({"transfer": ["a/x", "b/x"]}, r"transfer\[1\] has the name x of another"),
    ({"axes": {"tuner": ["copo"]}}, r"mine\.yaml: copo: unknown tuner 'copo'\. Did you mean 'coop'"),
    ({"axes": {"loss": ["ce + 5*momnts"]}}, r"unknown loss 'momnts'\. Did you mean 'moments'"),
    ({"axes": {"options.contxt": [4]}}, r"unknown option of tuner 'coop': 'contxt'\. Did you mean 'context'"),
    ({"axes": {"recipe": ["coop-tpct"]}}, r"mine\.yaml: recipe: unknown recipe 'coop-tpct'\. Did you mean 'coop-tcpt'"),
    ({"recipe": "coop-tcpt", "axes": {"tuner": ["maple"]}}, r"recipe coop-tcpt is for tuner coop, not for maple"),
    ({"axes": {"shots": [0]}}, r"shots must be at least 1, got 0"),
    ({"axes": {"protocol": ["fewshot"]}}, r"unknown protocol 'fewshot'\. Did you mean 'few-shot'"),
    ({"axes": {"lr": [-1.0]}}, r"mine\.yaml: lr -1\.0: lr must be a positive number"),
    ({"settings": {"data": "pocket_photos"}}, r"mine\.yaml: backbone is missing; put it under settings or axes"),
    ({"settings": {"backbone": "b", "data": "pocket_photo"}}, r"unknown dataset 'pocket_photo'\. Did you mean"),
    ({"axes": {"options.context": [4], "options": [{"context": 2}]}}, r"options\.context is given by itself and in"),
    ({"zip": [{"options": [{}, {"context": 16}], "recipe": ["coop-tcpt"] * 2}]}, "two runs are the same"),
    ({"device": "cpu", "settings": {**BASE["settings"], "device": "cuda"}}, r"device is given beside another device"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "says"), WRONG)
def test_invalid_files_are_reported(content: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        parse(**content)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("axes: {loss: [ce], loss: [tcpt]}", r"bad\.yaml: 'loss' is given twice, the second time in line 1"),
        ("- a", r"bad\.yaml must have keys such as 'axes:'"),
        ("a: [", r"bad\.yaml is not YAML"),
    ],
)
def test_files_that_are_not_sweeps_are_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(CalpromptError, match=says):
        read_sweep(tmp_path / "bad.yaml")


def test_unknown_sweeps_are_answered(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown sweep 'paper/mian'\. Did you mean 'paper/main'"):
        read_sweep("paper/mian")
    with pytest.raises(SettingError, match=r"cannot read sweep .*none\.yaml: No such file"):
        read_sweep(tmp_path / "none.yaml")


def test_names_of_imported_files_are_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    settings = {**BASE["settings"], "imports": [str(tmp_path / "own.py")], "tuner": "mine", "options.any": 1}
    assert parse(settings=settings, calibrators=["my_own"]).cells[0].settings["tuner"] == "mine"


def test_a_dry_run_needs_no_torch_and_no_data(tmp_path: Path) -> None:
    """And less than two seconds of the processor."""
    script = """
import resource, sys
from calprompt.cli import main
assert main(["sweep", "paper/main", "--dry-run", "--out", "runs"]) == 0
assert "torch" not in sys.modules
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0] == "main: 495 runs in runs"
    assert lines[1].split() == ["495", "not", "started"]
    assert sum(line.startswith("missing ") for line in lines) == 495
    assert "estimated time: unknown" in lines[-3]
    assert float(lines[-1]) < 2
    assert not list(tmp_path.iterdir())


def test_the_example_of_the_page_is_a_sweep() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    sweep = parse_sweep(yaml.safe_load(page.partition("```yaml")[2].partition("```")[0]), "doc", "doc")
    assert len(sweep.cells) == 2 * (2 * 2 - 1) * 3
    assert sweep.calibrators == ("temperature", "dac")
