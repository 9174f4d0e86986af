"""Runs: what they leave behind, that it can be trusted and recomputed, and what is said when they cannot be made."""

import json
import os
import time
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import samples
from calprompt import metrics, pocket, training, tuners
from calprompt.clip.backbone import unit
from calprompt.clip.load import load_backbone
from calprompt.data.load import load_dataset
from calprompt.data.split_files import save_split
from calprompt.errors import CalpromptError
from calprompt.features.frozen import encode
from calprompt.files import locked
from calprompt.runs import execute
from calprompt.runs.config import RunConfig, build_config
from calprompt.runs.execute import read_tensor_file, run
from calprompt.runs.folder import FORMAT, load_run
from calprompt.runs.planning import plan
from calprompt.runs.preparation import prepare
from calprompt.training import NonFiniteLossError, TrainingConfig
from data import trees

KEPT = ("prompts.safetensors", "metrics.json", "history.jsonl", "logits.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_a_run_leaves_its_folder_behind(tmp_path: Path) -> None:
    done = run(samples.config(samples.pictures()), tmp_path)
    assert done.folder.parent == tmp_path
    assert done.folder.name == f"coop-photos-4shot-seed1-{done.record['fingerprint'][:12]}"
    assert sorted(path.name for path in done.folder.iterdir()) == sorted(["run.json", *KEPT])
    record = json.loads((done.folder / "run.json").read_text())
    assert record.pop("format") == FORMAT
    assert len(record.pop("checksum")) == 64
    assert record == done.record
    assert set(record["files"]) == set(KEPT)
    assert record["status"] == "finished"
    assert set(record["versions"]) == {"calprompt", "torch", "open_clip", "python"}
    assert set(record["timings"]) == {"load", "features", "train", "evaluate"}
    assert record["config"]["training"]["epochs"] == 3
    assert record["data"]["images"] == {"train": 12, "base": 9, "novel": 9, "val": 6}
    rows = done.history()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert set(rows[0]) == {"epoch", "lr", "loss", "accuracy", "ce", "margin", "moments"}
    prompts, about = read_tensor_file(done.folder / "prompts.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in prompts.items()} == {"context": (2, 64)}
    assert about["class_names"] == ["ant", "bee", "cat"]
    assert (about["tuner"], about["options"], about["template"]) == ("coop", {"context": 2}, "a photo of a {}.")
    assert load_run(done.folder) == done


def test_metrics_can_be_recomputed_from_the_logits(tmp_path: Path) -> None:
    done = run(samples.config(samples.pictures()), tmp_path)
    tensors, about = read_tensor_file(done.folder / "logits.safetensors")
    assert about["class_names"] == {
        "base": ["ant", "bee", "cat"],
        "novel": ["dog", "elk", "fox"],
        "val": ["ant", "bee", "cat"],
    }
    assert set(done.metrics) == {"base", "novel", "val", "zero_shot"}
    for name in ("base", "novel", "val"):
        for which, values in (("logits", done.metrics[name]), ("zero_shot_logits", done.metrics["zero_shot"][name])):
            logits, labels = tensors[f"{name}/{which}"], tensors[f"{name}/labels"]
            assert (logits.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert values["images"] == len(labels)
            assert values["classes"] == logits.shape[1] == 3
            again = metrics.evaluate(logits, labels, from_logits=True)
            assert again == {name: value for name, value in values.items() if name not in ("images", "classes")}
            assert set(again) == set(metrics.metrics.available())


def test_logits_follow_from_the_stored_prompts(tmp_path: Path) -> None:
    done = run(samples.config(), tmp_path)
    tensors, about = read_tensor_file(done.folder / "logits.safetensors")
    prompts, told = read_tensor_file(done.folder / "prompts.safetensors")
    backbone = load_backbone(samples.backbone())
    assert told["backbone"] == backbone.fingerprint
    tuner = tuners.create(told["tuner"], backbone, told["class_names"], template=told["template"], **told["options"])
    tuner.load_state_dict(prompts)
    held = samples.tensors()
    base = held["test_labels"] < 3
    assert torch.equal(tensors["base/labels"], held["test_labels"][base])
    assert torch.equal(tensors["novel/labels"], held["test_labels"][~base] - 3)
    near = {"atol": samples.rounding(samples.SCALE, samples.EMBED), "rtol": 0}
    torch.testing.assert_close(tuner.predict([held["test_features"][base]]), tensors["base/logits"], **near)
    novel = tuner.with_classes(about["class_names"]["novel"])
    torch.testing.assert_close(novel.predict([held["test_features"][~base]]), tensors["novel/logits"], **near)
    torch.testing.assert_close(novel.text_features(), tensors["novel/text"])
    torch.testing.assert_close(novel.frozen_text, tensors["novel/frozen_text"])
    torch.testing.assert_close(
        about["logit_scale"] * unit(held["test_features"][base]) @ tensors["base/frozen_text"].T,
        tensors["base/zero_shot_logits"],
        **near,
    )


def test_training_helps(tmp_path: Path) -> None:
    done = run(samples.config(epochs=20, shots=None, lr=0.05, loss="ce", options={"context": 8}), tmp_path)
    assert done.metrics["base"]["accuracy"] > done.metrics["zero_shot"]["base"]["accuracy"] + 0.2


@pytest.mark.parametrize("kind", ["pictures", "features", "images"])
@pytest.mark.parametrize("tuner", ["coop", "maple"])
def test_the_same_run_twice_has_the_same_bits(tmp_path: Path, tuner: str, kind: str) -> None:
    if kind == "pictures":
        data = samples.pictures()
    else:
        data = samples.tensor_file(tmp_path / "toys.safetensors", samples.tensors(kind))
    config = samples.config(data, tuner=tuner, options={})
    if tuner == "maple" and kind == "features":
        with pytest.raises(CalpromptError, match="learns from pixels, and toys holds features only"):
            run(config, tmp_path)
        return
    assert contents(run(config, tmp_path / "1").folder) == contents(run(config, tmp_path / "2").folder)


def test_a_small_clip_trains_in_one_thread_and_leaves_the_others_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for each other made a run of the embedded model take ten times as long on a busy machine."""
    seen: list[int] = []
    step = training.train

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(torch.get_num_threads())
        return step(*given, **named)

    monkeypatch.setattr(import_module("calprompt.runs.execute"), "train", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(samples.config(samples.pictures()), tmp_path / "small")
        assert torch.get_num_threads() == 2
        monkeypatch.setattr(import_module("calprompt.clip.backbone"), "SMALL_TOWERS", 0)
        run(samples.config(samples.pictures()), tmp_path / "large")
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_a_finished_run_is_not_computed_again(tmp_path: Path) -> None:
    done = run(samples.config(), tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in done.folder.iterdir()}
    told: list[str] = []
    again = run(samples.config(), tmp_path, progress=lambda what, *_: told.append(what))
    assert (done.reused, again.reused) == (False, True)
    assert again == replace(done, reused=True)
    assert {path.name: path.stat().st_mtime_ns for path in done.folder.iterdir()} == before
    assert set(told) == {"reading images"}


def test_a_run_that_lost_a_file_is_computed_again(tmp_path: Path) -> None:
    done = run(samples.config(), tmp_path)
    before = contents(done.folder)
    (done.folder / "logits.safetensors").unlink()
    assert not run(samples.config(), tmp_path).reused
    assert contents(done.folder) == before


def test_the_fingerprint_is_of_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = samples.picture_folder(tmp_path / "photos")
    config = samples.config(root)
    first = plan(config).fingerprint
    moved = root.rename(tmp_path / "moved")
    assert plan(replace(config, data=str(moved))).fingerprint == first
    spelled = "ce + margin(alpha=0.1, beta=0.01) + 5*moments"
    assert plan(replace(config, data=str(moved), loss=spelled)).fingerprint == first
    samples.picture(moved / "ant" / "0.png", seed=9)
    other = plan(replace(config, data=str(moved), shots=None)).fingerprint
    samples.picture(moved / "ant" / "0.png", seed=10)
    assert len({first, other, plan(replace(config, data=str(moved), shots=None)).fingerprint}) == 3
    first = plan(replace(config, data=str(moved))).fingerprint
    changes: list[dict[str, Any]] = [
        {"options": {"context": 3}},
        {"loss": "ce"},
        {"views": 1},
        {"crop": 0.5},
        {"shots": 2},
        {"protocol": "few-shot"},
        {"tuner": "kgcoop"},
        {"template": "{}."},
        {"training": replace(config.training, seed=2)},
        {"training": replace(config.training, lr=0.1)},
        {"training": replace(config.training, autocast="bfloat16")},
        {"dtype": "float64"},
    ]
    found = {plan(replace(config, data=str(moved), **change)).fingerprint for change in changes}
    assert len(found | {first}) == len(changes) + 1
    planned = plan(replace(config, data=str(moved)))
    squashed = replace(planned.backbone.preprocessing, resize_mode="squash")
    other = replace(planned, backbone=replace(planned.backbone, preprocessing=squashed))
    assert other.fingerprint not in found | {first}


@pytest.mark.parametrize(("views", "epochs", "drawn"), [(2, 5, 2), (8, 5, 5), (None, 5, 5)])
def test_epochs_see_as_many_crops_as_asked_for(tmp_path: Path, views: int | None, epochs: int, drawn: int) -> None:
    prepared = plan(samples.config(samples.pictures(), views=views, epochs=epochs))
    assert prepared.views == drawn
    assert RunConfig.record(prepared.config)["views"] == views


def test_images_of_novel_classes_and_beyond_the_shots_do_not_train(tmp_path: Path) -> None:
    prepared = plan(samples.config(samples.pictures(), shots=2))
    assert prepared.base.train.labels == (0, 0, 1, 1, 2, 2)
    assert {prepared.base.train.images.name(index).split("/")[0] for index in range(6)} == {"ant", "bee", "cat"}


def test_zero_shot_trains_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    done = run(samples.config(tuner="zero-shot"), tmp_path, progress=lambda what, *_: told.append(what))
    assert "training" not in told
    assert done.history() == []
    assert read_tensor_file(done.folder / "prompts.safetensors")[0] == {}
    for name in ("base", "novel"):
        assert done.metrics[name]["accuracy"] == done.metrics["zero_shot"][name]["accuracy"]


def test_prompts_of_classes_cannot_be_evaluated_on_others(tmp_path: Path) -> None:
    done = run(samples.config(options={"context": 2, "class_specific": True}), tmp_path)
    assert "learned class by class" in done.metrics["novel"]["not_applicable"]
    assert done.metrics["zero_shot"]["novel"]["images"] == 24
    assert done.metrics["base"]["images"] == 24
    tensors, _ = read_tensor_file(done.folder / "logits.safetensors")
    assert "novel/logits" not in tensors
    assert "novel/zero_shot_logits" in tensors


def test_datasets_without_val_have_no_validation(tmp_path: Path) -> None:
    held = {name: tensor for name, tensor in samples.tensors().items() if not name.startswith("val")}
    done = run(samples.config(samples.tensor_file(tmp_path / "toys.safetensors", held)), tmp_path)
    assert set(done.metrics) == {"base", "novel", "zero_shot"}


def test_the_template_is_the_runs_or_the_datasets_or_the_usual_one(tmp_path: Path) -> None:
    path = samples.tensor_file(tmp_path / "toys.safetensors", template="a toy {}.")
    assert plan(samples.config(path)).template == "a toy {}."
    assert plan(samples.config(path, template="{}!")).template == "{}!"
    assert plan(samples.config()).template == "a photo of a {}."


def test_of_the_published_templates_a_tuner_takes_those_of_its_table(tmp_path: Path) -> None:
    trees.make(tmp_path, "dtd")
    own = {"kgcoop": "a photo of a {}, a type of texture.", "prograd": "a texture of {}."}
    config = replace(samples.config(shots=1, options={}), data="dtd", root=str(tmp_path))
    for tuner in tuners.available():
        assert plan(replace(config, tuner=tuner)).template == own.get(tuner, "{} texture."), tuner
    assert plan(replace(config, tuner="kgcoop", template="{}!")).template == "{}!"
    save_split(load_dataset("dtd", root=tmp_path), tmp_path / "split.json")
    saved = replace(config, data=str(tmp_path / "split.json"), root=str(tmp_path / "dtd" / "images"))
    assert plan(replace(saved, tuner="prograd")).template == own["prograd"]
    trees.write(tmp_path / "classes.json", json.dumps({"template": "the texture {}."}))
    told = replace(config, tuner="kgcoop", classes=str(tmp_path / "classes.json"))
    assert plan(told).template == "the texture {}.", "what the user says is for all tuners"


@pytest.mark.parametrize("lr", [1e30, 1e38])
def test_non_finite_loss_fails_the_run_and_keeps_good_prompts(tmp_path: Path, lr: float) -> None:
    with pytest.raises(NonFiniteLossError, match="epoch") as caught:
        run(samples.config(lr=lr, shots=None), tmp_path)
    failed = load_run(next(tmp_path.iterdir()))
    assert failed.status == "failed"
    assert failed.record["reason"] == str(caught.value)
    assert "step" in failed.record["reason"]
    assert failed.metrics == {}
    assert sorted(path.name for path in failed.folder.iterdir()) == ["history.jsonl", "prompts.safetensors", "run.json"]
    prompts, about = read_tensor_file(failed.folder / "prompts.safetensors")
    tuner = tuners.create("coop", load_backbone(samples.backbone()), about["class_names"], **about["options"])
    tuner.load_state_dict(prompts)
    assert torch.isfinite(tuner.predict([samples.tensors()["test_features"]])).all()


def test_a_failed_run_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("calprompt.runs.execute.measure_parts", refuse)
        with pytest.raises(MemoryError):
            run(samples.config(), tmp_path)
    folder = next(tmp_path.iterdir())
    assert (load_run(folder).status, load_run(folder).record["reason"]) == ("failed", "MemoryError")
    epochs = []
    done = run(
        samples.config(), tmp_path, progress=lambda what, done, *_: epochs.append(done) if what == "training" else None
    )
    assert epochs == [3]  # trained before: only the evaluation was missing
    assert contents(done.folder) == contents(run(samples.config(), tmp_path / "other").folder)


def test_autocast_reaches_all_of_a_run(tmp_path: Path) -> None:
    plain = samples.config(samples.pictures())
    half = replace(plain, training=replace(plain.training, autocast="bfloat16"))
    first, second = run(plain, tmp_path), run(half, tmp_path)
    tensors = [read_tensor_file(done.folder / "logits.safetensors")[0] for done in (first, second)]
    assert not torch.equal(tensors[0]["base/zero_shot_logits"], tensors[1]["base/zero_shot_logits"])
    torch.testing.assert_close(tensors[0]["base/text"], tensors[1]["base/text"], atol=0.05, rtol=0)
    prepared, loaded = prepare(half), load_backbone(half.backbone)
    tuner = prepared.tuner
    tuner.load_state_dict(read_tensor_file(second.folder / "prompts.safetensors")[0])
    test = prepared.plan.base.test.images
    pixels = torch.stack([samples.pixels(test, index, loaded.preprocessing) for index in range(len(test))])
    assert prepared.backbone.autocast == torch.bfloat16
    # in one thread and in the batches of a run: sums in another order can be the next number of bfloat16, far away
    with torch.no_grad(), prepared.backbone.limited_threads():
        features, text = encode(prepared.backbone, pixels), tuner.text_features()
    torch.testing.assert_close(tensors[1]["base/text"], text, atol=1e-6, rtol=0)
    torch.testing.assert_close(tensors[1]["base/logits"], tuner.logits(unit(features.float()), text), atol=1e-4, rtol=0)


def test_one_process_at_a_time_works_on_a_run(tmp_path: Path) -> None:
    folder = tmp_path / plan(samples.config()).id
    folder.mkdir()
    holder = os.fork()
    if holder == 0:
        with locked(folder):
            (tmp_path / "held").touch()
            time.sleep(60)
        os._exit(0)
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        with pytest.raises(CalpromptError, match=f"process {holder} is working in"):
            run(samples.config(), tmp_path)
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
    assert run(samples.config(), tmp_path).status == "finished"


def test_a_folder_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / plan(samples.config()).id
    done = run(samples.config(seed=2), tmp_path)
    done.folder.rename(folder)
    with pytest.raises(CalpromptError, match="holds another run than its name says"):
        run(samples.config(), tmp_path)


@pytest.mark.parametrize(
    ("tuner", "loss", "wanted"),
    [("coop", "ce", True), ("maple", "tcpt", False), ("maple", "penalty", True), ("promptsrc", "ce", True)],
)
def test_frozen_features_of_views_are_computed_for_those_who_ask(
    tmp_path: Path, tuner: str, loss: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    config = samples.config(samples.pictures(), tuner=tuner, loss=loss)
    done = run(config, tmp_path / "1", progress=lambda what, *_: told.append(what))
    assert ("training features" in told) is wanted
    monkeypatch.setattr(tuners.get(tuner), "uses_frozen_images", True)
    assert contents(run(config, tmp_path / "2").folder) == contents(done.folder), "the same with all of them computed"


@pytest.mark.parametrize("tuner", ["coop", "maple", "promptsrc"])
def test_unreadable_images_are_named_before_training(tmp_path: Path, tuner: str) -> None:
    root = samples.picture_folder(tmp_path / "photos")
    for name in ("ant/0.png", "bee/1.png", "elk/2.png", "fox/3.png"):
        (root / name).write_bytes(b"\x89PNG\r\n\x1a\n broken")
    told: list[str] = []
    with pytest.raises(CalpromptError, match="cannot be read") as caught:
        run(
            samples.config(root, shots=None, tuner=tuner),
            tmp_path / "runs",
            progress=lambda what, *_: told.append(what),
        )
    assert "training" not in told
    assert all(name in str(caught.value) for name in ("ant/0.png", "bee/1.png"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tuner": "coopp"}, "unknown tuner 'coopp'. Did you mean 'coop'"),
        ({"options": {"contxt": 2}}, "Did you mean 'context'"),
        ({"options": {"context": "four"}}, "context must be a whole number or None, got 'four'"),
        ({"options": {"words": 4}}, "words must be text or None, got 4"),
        ({"options": {"class_specific": "yes"}}, "class_specific must be True or False, got 'yes'"),
        ({"options": {"context": True}}, "context must be a whole number or None, got True"),
        ({"options": {"seed": 2}}, "seed is a setting of the run"),
        ({"options": {"template": "{}"}}, "template is a setting of the run"),
        ({"tuner": "zero-shot", "options": {"context": 2}}, "unknown option of tuner 'zero-shot'"),
        ({"loss": "ce + marginn"}, "Did you mean 'margin'"),
        ({"shots": 0}, "shots must be at least 1, got 0"),
        ({"views": -1}, "views must be at least 0, got -1"),
        ({"dtype": "int8"}, "dtype must be one of float32"),
        ({"template": "a photo"}, "exactly once"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        RunConfig(backbone="nothing", data="nowhere", **settings)


def test_data_that_does_not_suit_the_backbone(tmp_path: Path) -> None:
    held = {name: t[:, :20].clone() if "features" in name else t for name, t in samples.tensors().items()}
    path = samples.tensor_file(tmp_path / "toys.safetensors", held)
    with pytest.raises(CalpromptError, match="features have 20 dimensions, but backbone 'tiny-clip' has 32"):
        run(samples.config(path), tmp_path / "runs")
    held = {name: t[..., :20].clone() if "images" in name else t for name, t in samples.tensors("images").items()}
    path = samples.tensor_file(tmp_path / "pictures.safetensors", held)
    with pytest.raises(CalpromptError, match=r"images are \[3, 32, 20\], but backbone 'tiny-clip' takes \[3, 32, 32\]"):
        run(samples.config(path), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_novel_class_name_that_is_too_long_is_reported_before_training(tmp_path: Path) -> None:
    for options in ({"context": 2}, {"context": 2, "class_specific": True}):
        path = samples.tensor_file(tmp_path / "toys.safetensors", names=[*samples.NAMES[:5], "x y " * 40])
        with pytest.raises(CalpromptError, match=r"takes 8\d tokens"):
            run(samples.config(path, options=options), tmp_path / "runs")


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match=r"there is no folder .*nothing; expected the folder of a run$"):
        load_run(tmp_path / "nothing")
    with pytest.raises(CalpromptError, match=r"is not the folder of a run, it has no run\.json$"):
        load_run(tmp_path)
    done = run(samples.config(epochs=1), tmp_path)
    with pytest.raises(CalpromptError, match=f"there are runs in it: {done.folder.name}"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(CalpromptError, match=r"run\.json is damaged, it has no settings by name; delete it"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text('{"status": "running"}')
    with pytest.raises(CalpromptError, match=r"run\.json is damaged, it has no backbone, config, data, fingerprint;"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CalpromptError, match=r"run\.json is not JSON: .*; delete it, and its training command"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*(("metrics.json", damage) for damage in ("", "{", None)), ("history.jsonl", "{"), ("history.jsonl", None)],
)
def test_the_training_command_mends_a_lost_or_damaged_file(tmp_path: Path, name: str, damage: str | None) -> None:
    done = run(samples.config(), tmp_path)
    whole = (done.folder / name).read_bytes()
    if damage is None:
        (done.folder / name).unlink()
    else:
        (done.folder / name).write_text(damage)
    if name == "metrics.json":
        with pytest.raises(CalpromptError, match=r"metrics\.json.* its training command computes it again"):
            load_run(done.folder)
    elif damage is not None:
        with pytest.raises(CalpromptError, match=r"history\.jsonl is damaged .*its training command"):
            load_run(done.folder).history()
    with warnings.catch_warnings(record=True) as warned:
        again = run(samples.config(), tmp_path)
    assert [str(each.message).endswith("; it is computed again") for each in warned] == [True] * (damage is not None)
    assert (done.folder / name).read_bytes() == whole
    assert again.metrics == done.metrics


@pytest.mark.parametrize("left", ["", '{"epoch": 1}\n', "[]\n[]\n", '{"epoch": 1}\n{"ep'])
def test_a_stopped_run_whose_history_is_damaged_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Going on would leave a history with epochs missing."""
    whole = run(samples.config(), tmp_path / "whole").folder / "history.jsonl"
    stop = execute.write_checkpoint

    def stopped(folder: Path, state: Any, *given: Any) -> None:
        if state.epoch == 3:
            raise KeyboardInterrupt
        stop(folder, state, *given)

    monkeypatch.setattr(execute, "write_checkpoint", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(samples.config(), tmp_path / "stopped")
    monkeypatch.setattr(execute, "write_checkpoint", stop)
    (history,) = (tmp_path / "stopped").glob("*/history.jsonl")
    history.write_text(left)
    assert run(samples.config(), tmp_path / "stopped").record["resumed_after_epoch"] == 0
    assert history.read_bytes() == whole.read_bytes()


def test_a_small_clip_gives_the_same_bits_with_any_number_of_threads(tmp_path: Path) -> None:
    names = pocket.sheet("signs").class_names  # sentences of lengths that two threads share otherwise than one
    data = str(samples.picture_folder(tmp_path / "signs", names, each=3))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            config = build_config(backbone="pocket", data=data, epochs=1, shots=1, views=1)
            found.append(run(config, tmp_path / str(threads)).folder)
    finally:
        torch.set_num_threads(before)
    one, two = (folder / "logits.safetensors" for folder in found)
    assert one.read_bytes() == two.read_bytes()


def test_predictor_seed_equals_the_training_seed() -> None:
    assert RunConfig(backbone="b", data="d", training=TrainingConfig(seed=7)).seed == 7
