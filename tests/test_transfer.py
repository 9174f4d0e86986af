"""Runs on other data: what is base and novel there, that logits are those of the prompts, and what is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import samples
from calprompt import files, tuners
from calprompt.calibrators import DistanceAware
from calprompt.cli import main
from calprompt.data.dataset import Dataset, Split
from calprompt.data.images import FeatureRows
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.evaluation.models import stored_models
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.runs.config import Target
from calprompt.runs.execute import run
from calprompt.runs.folder import load_run
from calprompt.runs.restoring import restore
from calprompt.runs.transfer import evaluate_on, matched_parts
from calprompt.sealed_files import read_tensor_file
from data import trees

DRAWN = ("elk", "cat", "ant", "fox")  # base: cat, ant; novel: elk, fox
ROOMS = ("Kitchen", "cellar", "attic")


@cache
def trained(tuner: str = "coop", **settings: Any) -> Path:
    """Folder of a run on pictures; no test writes into it."""
    options = {"prompts": 4, "prompt_batch": 2, "context": 2} if tuner == "proda" else {}
    config = samples.config(samples.pictures(), tuner=tuner, options=options, epochs=1, **settings)
    return run(config, samples.shared() / "transfer").folder


@cache
def drawings() -> Path:
    """Some of the run's classes in other images; a table says their order."""
    root = samples.picture_folder(samples.shared() / "drawings", DRAWN, each=6)
    trees.write(root / "classes.txt", "\n".join(DRAWN))
    return root


@cache
def rooms() -> Path:
    return samples.picture_folder(samples.shared() / "rooms", ROOMS, each=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of its own."""
    return copied(trained(), tmp_path)


def copied(source: Path, to: Path) -> Path:
    return Path(shutil.copytree(source, to / source.name))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("tuner", tuners.available())
def test_every_tuner_on_all_kinds_of_data(tuner: str, tmp_path: Path) -> None:
    folder = copied(trained(tuner), tmp_path)
    before = contents(folder)
    restored = restore(folder)
    again, drawn, other = (
        evaluate_on(restored, Target(str(data))) for data in (samples.pictures(), drawings(), rooms())
    )
    assert contents(folder) == before, "nothing of the run is touched"
    own, _ = read_tensor_file(folder / "logits.safetensors")
    tensors, _ = read_tensor_file(again.folder / "logits.safetensors")
    text = set() if tuners.get(tuner).text_depends_on_image else {"text"}  # which would be that of both halves' images
    for part in ("base", "novel"):  # the run's own images, evaluated once more
        for kind in {"labels", "logits", "zero_shot_logits", "frozen_text"} | text:
            near = samples.rounding(samples.SCALE if "logits" in kind else 1, samples.EMBED)
            torch.testing.assert_close(
                tensors[f"{part}/{kind}"], own[f"{part}/{kind}"], atol=near, rtol=0, msg=f"{part}/{kind}"
            )
    assert again.metrics["base"]["accuracy"] == load_run(folder).metrics["base"]["accuracy"]
    assert {part: drawn.metrics[part]["classes"] for part in ("base", "novel", "all")} == {
        "base": 2,
        "novel": 2,
        "all": 4,
    }
    assert set(other.metrics) == {"all", "zero_shot"}
    assert other.metrics["all"]["classes"] == 3
    assert [each.name for each in load_run(folder).transfers] == ["drawings", "photos", "rooms"]
    found = evaluate_run(folder, EvaluationSettings(("sals", "dac"), bootstrap=0, zero_shot=True))
    for each in found.calibrated:
        assert not each.reasons
        assert {"base", "novel", "drawings/base", "drawings/novel", "drawings/all", "rooms/all"} <= set(each.values)
        assert each.values["rooms/all"]["accuracy"].value == pytest.approx(
            (other.metrics if each.model == "tuned" else other.metrics["zero_shot"])["all"]["accuracy"]
        )


def test_text_features_of_the_runs_own_classes_are_the_runs_own(tmp_path: Path) -> None:
    """CoCoOp's depend on images, and yet a base class in other pictures is a base class."""
    folder = copied(trained("cocoop"), tmp_path)
    done = evaluate_on(folder, Target(str(drawings())))
    own, _ = read_tensor_file(folder / "logits.safetensors")
    drawn, _ = read_tensor_file(done.folder / "logits.safetensors")
    unshifted = restore(folder).tuner.text_features().detach()  # as no image sees them
    for other, far in ((unshifted[[2, 0]], 1e-4), (drawn["base/text"], 1e-5)):
        assert float((other - own["base/text"][[2, 0]]).abs().max()) > far
    records = stored_models(load_run(folder))["tuned"].tests
    assert torch.equal(records["drawings/base"].given("text"), own["base/text"][[2, 0]])
    assert torch.equal(records["drawings/novel"].given("text"), own["novel/text"][[1, 2]])
    assert torch.equal(DistanceAware().factors(records["drawings/base"]), torch.ones(4, dtype=torch.float64))


def test_other_prompts_or_other_reading_is_another_result(tmp_path: Path) -> None:
    folder = copied(trained(), tmp_path)
    root = samples.picture_folder(tmp_path / "turned", DRAWN, each=4)
    tag = Image.Exif()
    tag[0x0112] = 6  # taken with the camera on its side
    for path in root.rglob("*.png"):
        Image.open(path).save(path, exif=tag)
    lying = evaluate_on(folder, Target(str(root)))
    assert evaluate_on(folder, Target(str(root))).reused
    before, _ = read_tensor_file(lying.folder / "logits.safetensors")
    standing = evaluate_on(folder, Target(str(root), exif=True))
    assert not standing.reused
    after, _ = read_tensor_file(standing.folder / "logits.safetensors")
    assert not torch.equal(after["all/logits"], before["all/logits"])
    shutil.copy(trained(seed=2) / "prompts.safetensors", folder / "prompts.safetensors")
    with pytest.raises(CalpromptError, match=r"prompts\.safetensors is damaged or of another run"):
        evaluate_on(folder, Target(str(root), exif=True))
    samples.edit_record(folder, lambda record: None)
    assert not evaluate_on(folder, Target(str(root), exif=True)).reused


def test_parts_are_cut_as_in_the_run_and_all_is_over_all_classes(folder: Path) -> None:
    done = evaluate_on(folder, Target(str(drawings())))
    tensors, about = read_tensor_file(done.folder / "logits.safetensors")
    assert about["class_names"] == done.record["data"]["class_names"]
    assert about["class_names"] == {"base": ["cat", "ant"], "novel": ["elk", "fox"], "all": list(DRAWN)}
    labels = torch.tensor(load_dataset(drawings()).test.labels)
    assert torch.equal(tensors["all/labels"], labels)
    columns = {"base": [1, 2], "novel": [0, 3]}
    for part, own in columns.items():
        rows = torch.isin(labels, torch.tensor(own))
        assert torch.equal(tensors[f"{part}/logits"], tensors["all/logits"][rows][:, own])
        assert torch.equal(torch.tensor(own)[tensors[f"{part}/labels"]], labels[rows])
        assert torch.equal(tensors[f"{part}/text"], tensors["all/text"][own])
    own, _ = read_tensor_file(folder / "logits.safetensors")
    torch.testing.assert_close(tensors["base/text"], own["base/text"][[2, 0]])


def test_a_run_on_all_classes_has_all(tmp_path: Path) -> None:
    folder = copied(trained(protocol="few-shot", template="one {}."), tmp_path)
    done = evaluate_on(folder, Target(str(drawings())))
    assert (set(done.metrics), done.record["template"]) == ({"all", "zero_shot"}, "one {}.")
    assert evaluate_on(folder, Target(str(rooms()))).record["template"] == "a photo of a {}."
    assert evaluate_on(folder, Target(str(rooms()), template="a {}.")).record["template"] == "a {}."


def test_prompts_of_classes_are_for_those_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"context": 2, "class_specific": True}
    base = run(samples.config(options=options, epochs=1), tmp_path).folder
    done = evaluate_on(base, Target(str(drawings())))
    assert "learned class by class" in done.metrics["base"]["not_applicable"]
    assert done.metrics["zero_shot"]["all"]["classes"] == 4
    assert main(["show", str(base)]) == 0
    assert "drawings/all: these prompts were learned class by class" in capsys.readouterr().out
    assert main(["evaluate", str(base), "--calibrators", "dac", "--bootstrap", "0"]) == 0
    assert "drawings/novel, dac" in capsys.readouterr().out
    everything = run(samples.config(options=options, epochs=1, protocol="few-shot"), tmp_path).folder
    assert evaluate_on(everything, Target(str(samples.pictures()))).metrics["all"]["classes"] == 6


def test_calibrators_are_the_same_on_other_data(tmp_path: Path) -> None:
    config = samples.config(epochs=20, shots=None, lr=0.05, loss="ce", options={"context": 8})
    folder = run(config, tmp_path).folder
    evaluate_on(folder, Target(str(samples.pictures())))
    evaluate_on(folder, Target(str(drawings())))
    settings = EvaluationSettings(("temperature", "vector"), bootstrap=0)
    _, temperature, vector = evaluate_run(folder, settings).calibrated
    tensors, _ = read_tensor_file(folder / "transfer" / "drawings" / "logits.safetensors")
    assert temperature.state is not None
    scaled = tensors["novel/logits"].double() / temperature.state["temperature"]
    nll = torch.nn.functional.cross_entropy(scaled, tensors["novel/labels"])
    assert temperature.values["drawings/novel"]["nll"].value == pytest.approx(float(nll))
    assert set(vector.values) == {"base", "photos/base"}, "the classes it was fitted on, in their order"
    assert "does not apply to others" in vector.reasons["drawings/base"]


def test_finished_work_is_not_repeated(tmp_path: Path, folder: Path) -> None:
    data = samples.picture_folder(tmp_path / "drawings", DRAWN, each=4)
    first = evaluate_on(folder, Target(str(data)))
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    told: list[str] = []
    again = evaluate_on(folder, Target(str(data)), progress=lambda what, *_: told.append(what))
    assert (first.reused, again) == (False, replace(first, reused=True))
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    assert not any("features" in what for what in told)
    moved = data.rename(tmp_path / "moved")
    assert evaluate_on(folder, Target(str(moved), name="drawings")).reused
    named = evaluate_on(folder, Target(str(moved), name="more drawings"))
    assert (named.reused, named.folder.name, named.name) == (False, "more_drawings", "more drawings")
    for changed in (Target(str(moved), name="drawings", all_classes=True), Target(str(moved), name="drawings")):
        assert not evaluate_on(folder, changed).reused
    samples.picture(next((moved / "cat").iterdir()), seed=77)
    for path in (moved / "cat").iterdir():
        samples.picture(path, seed=78)
    assert not evaluate_on(folder, Target(str(moved), name="drawings")).reused
    (folder / "transfer" / "drawings" / "logits.safetensors").unlink()
    assert [each.name for each in load_run(folder).transfers] == ["more drawings"]
    assert not evaluate_on(folder, Target(str(moved), name="drawings")).reused


@pytest.mark.parametrize(("at", "half"), [(1, True), (1, False), (2, True), (2, False)])
def test_killed_at_any_write(folder: Path, at: int, half: bool) -> None:
    def work(target: Target) -> None:
        evaluate_on(folder, target)

    work(Target(str(drawings()), template="a {}."))
    before = contents(folder)
    child = os.fork()
    if child == 0:
        files.os.replace = samples.dying(at, half)  # type: ignore[assignment]
        try:
            work(Target(str(drawings())))
        finally:
            os._exit(1)
    assert samples.exit_code(child) == -signal.SIGKILL
    finished = (at, half) == (2, False)
    assert len(load_run(folder).transfers) == finished, "logits never stand beside the metrics of others"
    done = evaluate_on(folder, Target(str(drawings())))
    assert done.reused == finished
    assert sorted(path.name for path in done.folder.iterdir()) == ["logits.safetensors", "transfer.json"]
    assert contents(folder) == before


def test_the_variants_of_imagenet_are_cut_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("imagenet", *trees.VARIANTS, "dtd"):
        trees.make(tmp_path, key)
    config = samples.config(tuner="kgcoop", options={}, epochs=1, shots=1)
    done = run(replace(config, data="imagenet", root=str(tmp_path)), tmp_path / "runs")
    given = ["transfer", str(done.folder), "--root", str(tmp_path), "--data", *trees.VARIANTS, "dtd"]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(done.folder)
    found = {each.name: each.record for each in load_run(done.folder).transfers}
    half = trees.BIRDS[:4]
    for key, (_, labels) in trees.VARIANTS.items():
        names = [trees.BIRDS[label] for label in labels]
        assert found[key]["data"]["class_names"] == {
            "base": [name for name in names if name in half],
            "novel": [name for name in names if name not in half],
            "all": names,
        }
        assert found[key]["template"] == "a photo of a {}."
    assert list(found["dtd"]["data"]["class_names"]) == ["all"]
    assert found["dtd"]["template"] == "a photo of a {}, a type of texture.", "KgCoOp's own"


def test_the_command_prints_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["transfer", str(folder), "--data", str(drawings()), str(rooms()), "--no-cache"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("base", "novel", "all", "drawings", "rooms")] == [
        *("base", "novel"),
        *("drawings", "base", "novel", "all"),
        *("rooms", "all"),
    ]
    values = json.loads((folder / "transfer" / "drawings" / "transfer.json").read_text())["metrics"]["novel"]
    measured = [f"{100 * values[metric]:.2f}" for metric in ("accuracy", "ece", "ace", "mce")]
    assert ["novel", "4", "2", *measured, f"{100 * values['confidence_gap']:+.2f}"] in rows
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out == printed
    assert main(given) == 0
    told = [f"{name}: already done, nothing was computed\n" for name in ("drawings", "rooms")]
    assert capsys.readouterr().out == "".join(told) + printed
    assert main(["evaluate", str(folder), "--target-error", "0.99", "--bootstrap", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert "On other data nothing is guaranteed, of whichever classes." in lines
    rows = json.loads((folder / "evaluation.json").read_text())["rows"]
    assert {row["split"] for row in rows} >= {"drawings/base", "drawings/novel", "drawings/all", "rooms/all"}


def test_bad_images_are_reported_or_skipped(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = samples.picture_folder(tmp_path / "drawings", DRAWN, each=6)
    name = load_dataset(data).test.images.name(0)
    (data / name).write_bytes(b"\x89PNG\r\n\x1a\n broken")
    given = ["transfer", str(folder), "--data", str(data)]
    assert main(given) == 2
    assert name in capsys.readouterr().err
    assert main([*given, "--skip-bad"]) == 0
    assert f"skipped {name}: " in capsys.readouterr().out


def damage(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    samples.edit_record(folder, change)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--data", "imagenet_skech"], "did you mean 'imagenet_sketch'"),
        (["--data", "imagenet_sketch"], "say where datasets are"),
        (["--data", "DRAWINGS", "ROOMS", "--name", "both"], "--name is for one dataset, and --data has 2"),
        (["--data", "DRAWINGS", "--name", ".."], "name must have letters or digits"),
        (["--data", "DRAWINGS", "--template", "a photo"], "exactly once"),
        (["--data", "DRAWINGS", "--backbone", "nothing.pt"], "nothing.pt"),
        (["--data", "DRAWINGS", "--device", "warp"], "--device must be cpu, cuda, cuda:1 or the like, got 'warp'"),
    ],
)
def test_invalid_input(folder: Path, given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"DRAWINGS": str(drawings()), "ROOMS": str(rooms())}
    assert main(["transfer", str(folder), *(places.get(each, each) for each in given)]) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "transfer").exists()


def test_only_finished_runs_with_their_own_weights(tmp_path: Path, folder: Path) -> None:
    weights = Path(shutil.copytree(samples.backbone(), tmp_path / "weights"))
    assert restore(folder, backbone=str(weights)).config.backbone == str(weights)
    held, _ = restore(folder), (folder / "prompts.safetensors").rename(folder / "kept")
    with pytest.raises(CalpromptError, match="has lost some of its files; its training command computes them again"):
        restore(folder)
    (folder / "kept").rename(folder / "prompts.safetensors")
    damage(folder, lambda record: record["backbone"].update(fingerprint="0"))
    with pytest.raises(CalpromptError, match=r"has other weights than .* was tuned on"):
        restore(folder)
    damage(folder, lambda record: record.update(status="failed"))
    with pytest.raises(CalpromptError, match="has failed; correct that and run its training command again"):
        restore(folder)
    with pytest.raises(CalpromptError, match="is not the folder of a run"):
        restore(tmp_path)
    assert torch.isfinite(held.tuner.text_features()).all()


def test_images_must_be_prepared_as_they_were(tmp_path: Path, folder: Path) -> None:
    weights = Path(shutil.copytree(samples.backbone(), tmp_path / "weights"))
    told = json.loads((weights / "open_clip_config.json").read_text())
    told["preprocess_cfg"] = {"mean": [0.0, 0.0, 0.0]}
    (weights / "open_clip_config.json").write_text(json.dumps(told))
    with pytest.raises(CalpromptError, match=r"prepares images in another way than when .* \(mean was \[.*\] and is"):
        restore(folder, backbone=str(weights))


def test_data_of_one_name_do_not_replace_each_other(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    twin = Path(shutil.copytree(drawings(), tmp_path / "a" / drawings().name))
    assert main(["transfer", str(folder), "--data", str(drawings()), str(twin), "--no-cache"]) == 2
    assert "--data has 2 of the name drawings, of which the last would replace the others" in capsys.readouterr().err
    assert not (folder / "transfer").exists()


def test_data_that_are_all_to_test_on(tmp_path: Path, folder: Path) -> None:
    root = samples.picture_folder(tmp_path / "sketches" / "test", DRAWN, each=3).parent
    found = evaluate_on(folder, Target(str(root)))
    assert found.record["data"]["images"] == 3 * len(DRAWN)
    rows = [f"test/{path.parent.name}/{path.name},{path.parent.name},test" for path in root.glob("test/*/*.png")]
    table = trees.write(root / "labels.csv", "\n".join(["path,label,split", *rows]))
    again = evaluate_on(folder, Target(str(table), name="table"))
    near = samples.rounding(samples.SCALE, samples.EMBED)  # the images come in another order
    assert again.metrics["all"] == pytest.approx(found.metrics["all"], abs=near)
    with pytest.raises(CalpromptError, match="sketches has no training split, which tuner 'coop' needs"):
        run(samples.config(root), tmp_path / "runs")


def test_a_run_is_used_from_another_folder_than_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare" / "model.safetensors"
    bare.parent.mkdir()
    shutil.copy(samples.backbone() / "open_clip_model.safetensors", bare)
    shutil.copy(samples.backbone() / "open_clip_config.json", tmp_path / "mine.json")
    monkeypatch.chdir(tmp_path)
    settings = replace(samples.config(epochs=1), backbone=str(bare), backbone_config="mine.json")
    done = run(settings, tmp_path / "runs")
    monkeypatch.chdir(bare.parent)
    assert restore(done.folder).config.backbone_config == str(tmp_path / "mine.json")
    assert restore(done.folder, backbone=str(samples.backbone())).config.backbone_config is None


def test_pixels_are_needed_by_those_who_see_them(tmp_path: Path) -> None:
    folder = copied(trained("maple"), tmp_path)
    with pytest.raises(CalpromptError, match="tuner 'maple' learns from pixels, and toys holds features only"):
        evaluate_on(folder, Target(str(samples.feature_file())))


def dataset(*names: str, base: tuple[int, ...] | None = None) -> Dataset:
    some = Split(FeatureRows(torch.zeros(len(names), 4)), tuple(range(len(names))))
    return Dataset("target", names, some, some, some, base=base, repeated_names=True)


def test_classes_are_matched_by_name() -> None:
    of_run = {"base": ["Maine_Coon", "pug", "crane"], "novel": ["beagle", "boxer", "crane"]}
    assert matched_parts(dataset("boxer", "maine coon"), of_run) == {"base": [1], "novel": [0]}
    assert matched_parts(dataset("boxer", "crane", "crane", base=(2,)), of_run) == {"base": [2], "novel": [0, 1]}
    with pytest.raises(CalpromptError, match="a base and a novel class of the name 'crane'"):
        matched_parts(dataset("boxer", "crane"), of_run)
    assert matched_parts(dataset("kitchen", "attic"), of_run) is None
    assert matched_parts(dataset("kitchen", "pug"), of_run) is None
    with pytest.raises(CalpromptError, match="2 of the 3 classes of target are classes of the run, and these are not"):
        matched_parts(dataset("pug", "boxers", "beagle"), of_run)
