"""What a new user does wrong: every mistake is told in a sentence that says what to do, and nothing is left behind."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

import calprompt
import samples
from calprompt import calibrators, tuners
from calprompt.calibrators import StoredLogits
from calprompt.cli import main
from calprompt.clip.load import load_backbone
from calprompt.data.images import ImageRows
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, SettingError
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.features.store import FeatureFile
from calprompt.runs import config as recipes
from calprompt.runs.config import build_config
from calprompt.runs.restoring import restore

NESTED = "[" * 100_000 + "]" * 100_000
ROWS = [(f"{name}/{n}.png", name, "train" if n < 6 else "test") for name in samples.NAMES for n in range(10)]
LABELS = {name: label for label, name in enumerate(samples.NAMES)}

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command that must fail and returns what it says."""

    def run(*given: object, status: int = 2) -> str:
        capsys.readouterr()
        assert main([str(each) for each in given]) == status
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return text

    return run


def training(out: Path, *more: object, data: object = None, backbone: object = None) -> list[object]:
    given: dict[str, object] = {
        "--backbone": backbone or samples.backbone(),
        "--data": data or samples.feature_file(),
        "--out": out,
        "--set": "context=2",
        "--shots": 4,
        "--epochs": 1,
        "--batch-size": 8,
        "--views": 1,
    }
    return ["train", *(each for pair in given.items() for each in pair), *more]


@cache
def finished(protocol: str = "base-to-novel") -> Path:
    """The folder of a finished run on pictures."""
    out = samples.shared() / f"front-door-{protocol}"
    given = training(out, "--protocol", protocol, "--quiet", data=samples.pictures())
    assert main([str(each) for each in given]) == 0
    return next(out.iterdir())


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A copy of a finished run."""
    place = tmp_path / "copied" / finished().name
    shutil.copytree(finished(), place)
    capsys.readouterr()
    return place


def image() -> Path:
    return samples.pictures() / "ant" / "0.png"


# names that are no text


@pytest.mark.parametrize("where", ["image", "class", "data"])
def test_names_that_are_not_utf8(tmp_path: Path, said: Said, where: str) -> None:
    root = tmp_path / "photos"
    shutil.copytree(samples.pictures(), root)
    old, new, shown = {
        "image": (root / "ant" / "0.png", os.fsencode(root / "ant") + b"/\xff.png", "ant/\\xff.png"),
        "class": (root / "ant", os.fsencode(root) + b"/caf\xe9", "caf\\xe9"),
        "data": (root, os.fsencode(tmp_path) + b"/caf\xe9", "caf\\xe9"),
    }[where]
    try:
        os.rename(os.fsencode(old), new)
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    data = os.fsdecode(new) if where == "data" else root
    for command in (training(tmp_path / "runs", data=data), ["data", "check", data]):
        text = said(*command)
        assert shown in text
        assert "is not UTF-8; rename it" in text
    assert not (tmp_path / "runs").exists()


def test_an_image_of_any_name_is_predicted(run: Path, tmp_path: Path) -> None:
    """As a process of its own: its standard output is strict about what it can encode."""
    place = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        shutil.copy(image(), place)
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    done = samples.command(tmp_path, "predict", run, place, "--csv", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\udce9.png,ant," in done.stdout


# numbers, names and files that make no sense


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--loss", "1e400*ce"], "is not a finite number"),
        (["--loss", "ce + margin(alpha=1e400)"], "option alpha in 'margin(alpha=1e309)' is not a finite number"),
        (["--set", "context=1e400"], "context must be a whole number or None, got inf"),
        (["--lr", "nan"], "--lr must be a positive number"),
        (["--weight-decay", "inf"], "--weight-decay must be a number"),
        (["--crop", "inf"], "--crop must be a share"),
        (["--device", "meta"], "--device must be cpu, cuda, cuda:1 or the like, got 'meta'"),
        (["--device", ""], "--device must not be empty, got ''"),
        (["--backbone", "pocket/openai"], "'pocket', 'pocket-photo', 'pocket-vit': they have no tags"),
        (["--backbone", " pocket"], "'pocket', 'pocket-photo', 'pocket-vit': without blanks"),
        (["--backbone", "Pocket"], "The models in the package are 'pocket', 'pocket-photo', 'pocket-vit'"),
    ],
)
def test_invalid_settings_raise(tmp_path: Path, said: Said, more: list[str], says: str) -> None:
    assert says in said(*training(tmp_path / "runs", *more))
    assert not (tmp_path / "runs").exists()


def test_a_run_that_does_not_begin_leaves_nothing(tmp_path: Path, said: Said) -> None:
    load_backbone(samples.backbone())  # so that it is known, and loaded only after the folder was made
    said(*training(tmp_path / "runs", "--device", "meta"))
    said(*training(tmp_path / "runs", "--tuner", "maple", "--set", "depth=0", data=samples.pictures()))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["split.json", "table.jsonl", "classes.json", "classes.yaml", "recipe.yaml", "b.json"])
def test_files_nested_too_deeply(tmp_path: Path, said: Said, name: str) -> None:
    path = tmp_path / name
    path.write_text({"table.jsonl": f'{{"path": {NESTED}}}', "recipe.yaml": f"tuner: {NESTED}"}.get(name, NESTED))
    given = {
        "recipe.yaml": training(tmp_path, "--recipe", path),
        "b.json": training(
            tmp_path, "--backbone-config", path, backbone=samples.backbone() / "open_clip_model.safetensors"
        ),
        "split.json": training(tmp_path, data=path),
        "table.jsonl": training(tmp_path, data=path),
    }.get(name, training(tmp_path, "--classes", path, data=samples.pictures()))
    text = said(*given)
    assert name in text
    assert "it is nested too deeply" in text


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit(7)", "SystemExit: 7"),
        ("raise SystemExit", "SystemExit"),
        ("class Stop(BaseException): pass\nraise Stop('enough')", "Stop: enough"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_import_that_ends_the_process(tmp_path: Path, said: Said, code: str, says: str) -> None:
    (tmp_path / "own.py").write_text(code)
    for command in (training(tmp_path / "runs", "--import", tmp_path / "own.py"), ["list", "--import", "own.py"]):
        given = [tmp_path / "own.py" if each == "own.py" else each for each in command]
        assert f"importing {tmp_path / 'own.py'} failed: {says}" in said(*given)


def test_more_bins_or_resamples_than_there_can_be(run: Path, said: Said) -> None:
    assert "--bins must be at most 10,000, got 1,000,000,000" in said("evaluate", run, "--bins", 1_000_000_000)
    assert "--bins must be a whole number of at least 1, got 0" in said("evaluate", run, "--bins", 0)
    assert "--bootstrap must be at most 1,000,000" in said("evaluate", run, "--bootstrap", 10**12)
    with pytest.raises(SettingError, match=r"^bins must be at most 10,000"):
        EvaluationSettings(bins=10**9)


# runs that are not what they were


def _without_tuner(folder: Path) -> None:
    samples.edit_record(folder, lambda record: record["config"].pop("tuner"))


def _a_list(folder: Path) -> None:
    (folder / "run.json").write_text("[]")


def _without_zero_shot(folder: Path) -> None:
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["zero_shot"]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    samples.edit_record(folder, lambda record: None)  # with the checksum of that


@pytest.mark.parametrize("command", ["show", "evaluate", "transfer", "predict"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without_tuner, "run.json is damaged, it has no tuner in 'config'"),
        (_a_list, "run.json is damaged"),
        (_without_zero_shot, "metrics.json is damaged, it has no zero_shot"),
    ],
)
def test_damaged_runs(run: Path, said: Said, command: str, damage: Callable[[Path], None], says: str) -> None:
    damage(run)
    more = {"transfer": ["--data", samples.pictures()], "predict": [image()]}.get(command, [])
    assert says in said(command, run, *more)
    with pytest.raises(DamagedFileError):
        calprompt.load_run(run)


@pytest.mark.parametrize("part", ["config", "training"])
def test_settings_of_a_newer_version(run: Path, said: Said, part: str) -> None:
    def add(record: dict[str, Any]) -> None:
        (record["config"] if part == "config" else record["config"]["training"])["sparkle"] = 3

    samples.edit_record(run, add)
    for command in (["transfer", run, "--data", samples.pictures()], ["predict", run, image()]):
        text = said(*command)
        assert f"run.json has the setting 'sparkle', which calprompt {calprompt.__version__} does not know" in text
    with pytest.raises(NewerFormatError):
        restore(run)


def test_unknown_settings_of_recipes_and_from_python(tmp_path: Path, said: Said) -> None:
    (tmp_path / "own.yaml").write_text("tuner: coop\nsparkle: 3\n")
    assert "own.yaml: 'sparkle'. Known: anchor, autocast" in said(
        *training(tmp_path, "--recipe", tmp_path / "own.yaml")
    )
    with pytest.raises(SettingError, match=r"unknown setting 'epoch'\. Did you mean 'epochs'"):
        build_config(backbone="pocket", data="photos", epoch=3)
    with pytest.raises(SettingError, match="the setting data is missing"):
        build_config(backbone="pocket")


# tables and lists of classes


def _table(path: Path, *, header: str = "path,label,split\n", change: Callable[..., Any] = lambda *row: row) -> Path:
    path.write_text(header + "".join(",".join(map(str, change(*row))) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize(
    ("header", "change", "says"),
    [
        ("path,label,\n", lambda *row: row, "column 3 of t.csv holds test and train, and has no name; name the column"),
        ("path,label\n", lambda *row: row, "name the column 'split' in the first line"),
        ("path,label,note\n", lambda p, c, s: (p, c, "hello", s), "column 4 of t.csv holds test and train"),
        ("path,label,split\n", lambda p, c, s: (p, c, s, "more"), "line 2 has 4 cells, and there are 3 columns"),
        ("", lambda p, c, s: (c, p, s), "has the image in the second column"),
        ("path,label,class,split\n", lambda p, c, s: (p, c, c, s), "two columns for the label, 'label' and 'class'"),
        (
            "path,label,split\n",
            lambda p, c, s: (p, LABELS[c] - 1, s),
            "the labels are the numbers -1, 0, 1, 2, 3 and 1",
        ),
        ("path,label,split\n", lambda p, c, s: (p, float(LABELS[c]), s), "the labels are the numbers 0.0, 1.0"),
    ],
)
def test_tables_with_other_columns_or_values(tmp_path: Path, said: Said, header: str, change: Any, says: str) -> None:
    table = _table(tmp_path / "t.csv", header=header, change=change)
    assert says in said("data", "check", table, "--root", samples.pictures())


def test_a_column_of_splits_under_another_name_is_warned_of(tmp_path: Path, said: Said) -> None:
    table = _table(tmp_path / "t.csv", header="path,label,phase\n")
    text = said("data", "check", table, "--root", samples.pictures(), status=0)
    assert "warning: column 3 of t.csv holds test and train and is called 'phase', so it is not used" in text


def test_one_image_under_two_spellings(tmp_path: Path, said: Said) -> None:
    table = _table(tmp_path / "t.csv")
    table.write_text(table.read_text() + "./ant/0.png,ant,test\n")
    assert "ant/0.png is listed 2 times" in said("data", "check", table, "--root", samples.pictures())


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (["ant"], 'line 1: label is ["ant"], expected text'),
        ({"name": "ant"}, 'line 1: label is {"name": "ant"}, expected text'),
        (True, "line 1: label is true, expected text"),
        (1.5, "the labels are the numbers 1.5"),
    ],
)
def test_labels_that_are_no_names(tmp_path: Path, said: Said, label: Any, says: str) -> None:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"path": p, "label": label}) + "\n" for p, _, _ in ROWS))
    assert says in said("data", "check", tmp_path / "t.jsonl", "--root", samples.pictures())


def test_missing_images_suggest_root(tmp_path: Path, said: Said) -> None:
    assert "or say where they are with --root DIR" in said(*training(tmp_path / "r", data=_table(tmp_path / "t.csv")))


@pytest.mark.parametrize(("name", "text"), [("c.txt", ""), ("c.txt", " \n\n"), ("c.json", "[]"), ("c.json", "{}")])
def test_an_empty_list_of_classes(tmp_path: Path, said: Said, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    given = ["data", "check", samples.pictures(), "--classes", tmp_path / name]
    assert f"{tmp_path / name} is empty; expected " in said(*given)


# folders


@pytest.mark.parametrize(
    ("folders", "given", "meant"),
    [
        (["photos"], ".", ["photos"]),
        (["a/photos"], ".", ["a/photos"]),
        (["a", "b"], ".", ["a", "b"]),
        (["train/train", "train/test"], ".", ["train"]),
        (["photos"], "photos/ant", ["photos"]),
    ],
)
def test_the_wrong_level_of_a_tree(
    tmp_path: Path, said: Said, folders: list[str], given: str, meant: list[str]
) -> None:
    for folder in folders:
        samples.picture_folder(tmp_path / "data" / folder, each=2)
    text = said("data", "check", tmp_path / "data" / given)
    assert f"did you mean {' or '.join(str(tmp_path / 'data' / each) for each in meant)}?" in text


def test_training_images_without_test_images(tmp_path: Path, said: Said) -> None:
    samples.picture_folder(tmp_path / "train", each=2)
    assert f"or give {tmp_path / 'train'} to have its images split" in said("data", "check", tmp_path)


def test_three_classes(tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    root = samples.picture_folder(tmp_path / "three", ("ant", "bee", "cat"), each=4)
    assert "or tune on all classes with --protocol few-shot" in said(*training(tmp_path / "runs", data=root))
    assert main(["data", "check", str(root)]) == 0
    assert "or tune on all classes with --protocol few-shot" in capsys.readouterr().out
    with pytest.raises(CalpromptError, match="protocol=few-shot"):
        calprompt.plan(samples.config(root))


# class names and images from Python


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("cat", r"class_names must be a list of names such as \['cat'\], got the text 'cat'"),
        ([], "class_names is empty"),
        (["cat", ""], "class_names must be names, got ''"),
        (["cat", 3], "class_names must be names, got 3"),
        (None, "class_names must be a list of names, got None"),
        (["cat", "Cat "], "the model reads these alike: 'cat' and 'Cat '"),
    ],
)
def test_class_names(names: Any, says: str) -> None:
    backbone = samples.loaded()
    with pytest.raises(SettingError, match=says):
        calprompt.create_tuner("coop", backbone, names)
    with pytest.raises(SettingError, match=says):
        calprompt.Predictor.from_run(finished(), class_names=names) if names is not None else backbone.zero_shot(names)
    if names != ["cat", "Cat "]:  # two classes of ImageNet share a name
        for use in (backbone.zero_shot, calprompt.create_tuner("coop", backbone, ["a", "b"]).with_classes):
            with pytest.raises(SettingError, match=says):
                use(names)


def test_other_arguments_from_python() -> None:
    backbone = samples.loaded()
    for call, says in (
        (lambda: backbone.layout("cat", 4), "such as \\['cat'\\], got the text 'cat'"),  # type: ignore[arg-type]
        (lambda: backbone.encode_strings("cat"), "texts must be a list of sentences"),
        (lambda: backbone.encode_strings([]), "texts must be a list of sentences"),
        (lambda: backbone.zero_shot(["cat"], []), "template is empty"),
        (lambda: backbone.to("warp"), "unknown device 'warp'"),
        (lambda: backbone.view(autocast="int3"), "autocast must be bfloat16, float16 or None, got 'int3'"),
        (lambda: backbone.view(chunk=0), "chunk must be at least 1"),
        (lambda: calprompt.plan({"data": "photos"}), "config must be a RunConfig, got dict"),  # type: ignore[arg-type]
        (lambda: calprompt.create_tuner("coop", "pocket", ["cat"]), "must be what load_backbone returns"),  # type: ignore[arg-type]
        (lambda: calprompt.create_tuner("coop", backbone, ["cat"], context="2"), "context must be a whole number"),
    ):
        with pytest.raises(SettingError, match=says):
            call()


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        torch.zeros(3, 32, 32),
        torch.zeros(2, 3, 33, 33),
        np.zeros((2, 3, 32, 32), dtype=np.float32),
    ],
)
def test_images_that_are_not_preprocessed(images: Any) -> None:
    backbone = samples.loaded()
    says = r"images must be a tensor of normalised pixels \[n, 3, 32, 32\] in floating point, as backbone.preprocessing"
    with pytest.raises(SettingError, match=says):
        backbone.encode_image(images)
    with pytest.raises(SettingError, match=says):
        calprompt.create_tuner("maple", backbone, ["cat", "dog"]).predict([images])
    with pytest.raises(SettingError, match=r"CoOp takes frozen image features \[n, 32\] in floating point"):
        calprompt.create_tuner("coop", backbone, ["cat", "dog"]).predict([images])


def test_arguments_of_load_backbone() -> None:
    assert load_backbone(samples.backbone(), dtype="float64").dtype == torch.float64
    for given, says in (({"dtype": "float3"}, "dtype must be float32"), ({"spec": None}, "a backbone is a name")):
        with pytest.raises(CalpromptError, match=says):
            load_backbone(**{"spec": samples.backbone(), **given})


def test_an_array_with_its_channels_first() -> None:
    predictor = calprompt.Predictor.from_run(finished())
    with pytest.raises(SettingError, match="put the channels last, or give a list of images"):
        predictor.predict(np.zeros((3, 40, 36), dtype=np.uint8))
    assert len(predictor.predict(np.zeros((40, 36, 3), dtype=np.uint8))) == 1


def test_rows_of_8_bit_pixels() -> None:
    with pytest.raises(CalpromptError, match=r"normalised pixels .* got torch.uint8 \[2, 3, 32, 32\]"):
        ImageRows(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))


# disks that are full, folders that can only be read


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Makes it impossible to write files whose path has a word in it."""

    def begin(code: int, word: str = "") -> None:
        real = open

        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if mode == "wb" and word in str(file):
                raise OSError(code, os.strerror(code), str(file))
            return real(file, mode, *more, **named)

        monkeypatch.setattr("builtins.open", opened)

    return begin


@pytest.mark.parametrize("name", ["run.json", "history.jsonl", "checkpoint", "prompts", "logits", "metrics.json"])
def test_a_full_disk_while_training(tmp_path: Path, said: Said, failing: Callable[..., None], name: str) -> None:
    failing(errno.ENOSPC, f".{name}")
    text = said(*training(tmp_path / "runs"))
    assert f"/{name}" in text
    assert "No space left on device; make room there, or choose another place with --out FOLDER" in text
    assert (tmp_path / "runs").exists() == (name != "run.json")


def test_a_full_disk_while_features_are_kept(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(self: FeatureFile, rows: dict[bytes, bytes]) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(FeatureFile, "insert", insert)
    text = said(*training(tmp_path / "runs", data=samples.pictures()), status=0)
    assert f"features are not stored: cannot write to {tmp_path / 'cache' / 'features'} (database or disk is" in text


def test_a_full_disk_while_pictures_are_made(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    def save(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Image.Image, "save", save)
    text = said("data", "check", "pocket_food")
    assert f"cannot write the pictures of 'pocket_food' to {tmp_path / 'cache' / 'pocket'}: No space left" in text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_run_that_cannot_be_written_to(
    run: Path, tmp_path: Path, said: Said, failing: Callable[..., None], code: int
) -> None:
    before = sorted(run.rglob("*"))
    failing(code)
    why = os.strerror(code)
    evaluation = said("evaluate", run, "--bootstrap", 0)
    assert f"cannot write {run / 'evaluation.json'}: {why}; write elsewhere with --out FILE" in evaluation
    assert f"{tmp_path / 'e.csv'}: {why}" in said("evaluate", run, "--bootstrap", 0, "--out", tmp_path / "e.csv")
    transfer = said("transfer", run, "--data", samples.feature_file())
    assert (
        f"transfer/toys/logits.safetensors: {why}; make room there, or copy {run} to a folder of your own" in transfer
    )
    assert [path for path in sorted(run.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]


def test_folders_that_can_only_be_read(run: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(self: FileLock, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", self.lock_file)

    def made(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(FileLock, "acquire", locked)
    assert "write elsewhere with --out FILE" in said("evaluate", run, "--bootstrap", 0)
    monkeypatch.setattr(Path, "mkdir", made)
    assert f"copy {run} to a folder of your own" in said("transfer", run, "--data", samples.feature_file())
    assert "choose another place with --out FOLDER" in said(*training(tmp_path / "runs"))


# backbones


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path: Path, said: Said, value: float) -> None:
    folder = tmp_path / "clip"
    shutil.copytree(samples.backbone(), folder)
    weights = folder / "open_clip_model.safetensors"
    tensors = load_file(weights)
    tensors["visual.proj"][3, 3] = value
    save_file(tensors, weights)
    text = said(*training(tmp_path / "runs", backbone=folder))
    assert f"{weights}: the tensor visual.proj holds values that are not finite" in text


def test_large_weights_are_finite(tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    shutil.copytree(samples.backbone(), folder)
    tensors = load_file(folder / "open_clip_model.safetensors")
    tensors["visual.proj"].fill_(3e38)  # whose sum is not
    save_file(tensors, folder / "open_clip_model.safetensors")
    load_backbone(folder)


def test_weights_without_a_config(tmp_path: Path, said: Said) -> None:
    shutil.copy(samples.backbone() / "open_clip_model.safetensors", tmp_path / "own.safetensors")
    text = said(*training(tmp_path / "runs", backbone=tmp_path / "own.safetensors"))
    assert "Say it with --backbone-config NAME: an open_clip model name, or the path of a JSON config" in text


def test_the_config_of_weights_that_are_not_there(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text = said(*training(tmp_path / "runs", backbone="ViT-B-16-quickgelu/openai"))
    assert "could not download the weights of ViT-B-16-quickgelu/openai: HF_HUB_OFFLINE is set" in text
    assert "give it with --backbone PATH and --backbone-config 'ViT-B-16-quickgelu/openai'" in text
    assert "--backbone pocket-photo is a small CLIP that comes with calprompt" in text


@pytest.mark.parametrize("recipe", recipes.available())
@pytest.mark.filterwarnings("ignore:prompts of depth")
def test_every_recipe_runs_on_the_pocket(recipe: str) -> None:
    config = build_config(**{"backbone": "pocket", "data": "photos", **recipes.read_recipe(recipe)[1]})
    tuner = tuners.create(config.tuner, _pocket(), ["cat", "dog", "fox"], **config.options)
    with torch.no_grad():
        assert tuner.text_features().isfinite().all()


@cache
def _pocket() -> calprompt.Backbone:
    return load_backbone("pocket")


def test_deep_prompts_are_limited_to_existing_blocks(tmp_path: Path, said: Said) -> None:
    with pytest.warns(UserWarning, match="they go into the first 3 blocks, as the option depth of 3 says"):
        tuner = tuners.create("maple", _pocket(), ["cat", "dog"], depth=9)
    assert len(tuner.deep) == 2  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="image tower; they go into the first 5 blocks.* the option visual_depth of 5"):
        tuners.create("promptsrc", _pocket(), ["cat", "dog"], visual_depth=9)
    for depth in (0, -1):
        with pytest.raises(SettingError, match="choose 1 to 3, such as depth=3"):
            tuners.create("maple", _pocket(), ["cat", "dog"], depth=depth)
    given = training(tmp_path, "--tuner", "maple", "--set", "depth=9", data=samples.pictures())
    assert "as the option depth of 2 says" in said(*given, status=0)


# calibrators


def test_calibrators_take_lists_and_arrays() -> None:
    logits = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]
    labels = [0, 0, 0, 1]
    expected = calibrators.Temperature().fit(torch.tensor(logits), torch.tensor(labels))
    for kind in (list, np.array, lambda values: np.asarray(values, dtype=np.float32 if values is logits else np.int32)):
        fitted = calibrators.Temperature().fit(kind(logits), kind(labels))
        assert fitted.temperature == pytest.approx(expected.temperature)
        calibrated = fitted(kind(logits))
        assert isinstance(calibrated, torch.Tensor)
        assert calibrated.dtype == torch.float64
        torch.testing.assert_close(calibrated, expected(torch.tensor(logits)))
    record = StoredLogits([[1, 2], [3, 4]], labels=np.array([0, 1]), zero_shot_logits=[[1.0, 2.0], [2.0, 1.0]])  # type: ignore[arg-type]
    assert record.logits.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert record.labels is not None
    assert record.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("logits", "labels", "says"),
    [
        ("logits", None, "logits must be a tensor, an array or nested lists of numbers"),
        ([[1.0, 2.0], [3.0]], None, "logits must be a tensor, an array or nested lists of numbers"),
        ([1.0, 2.0], None, r"logits must be floating-point numbers \[images, classes\]"),
        ([[1.0, float("nan")]], None, "logits must be finite"),
        ([[1.0, 2.0]], ["ant"], "labels must be a tensor, an array or nested lists of numbers"),
        ([[1.0, 2.0]], [0.5], "labels must be integers, got float64"),
        ([[1.0, 2.0]], [2], r"labels must lie in 0\.\.1"),
        ([[1.0, 2.0]], [0, 1], "labels must have the shape"),
    ],
)
def test_invalid_calibrator_arguments(logits: Any, labels: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        StoredLogits(logits, labels)
    with pytest.raises(SettingError, match=says):
        calibrators.Temperature().fit(logits, labels)


# predict


def test_images_to_predict(run: Path, tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "some").mkdir()
    shutil.copy(image(), tmp_path / "some" / "good.png")
    (tmp_path / "some" / "bad.png").write_text("no picture")
    assert "there is no image nothing.png" in said("predict", run, "nothing.png")
    assert "IMAGES must not be empty, got ''" in said("predict", run, "")
    assert f"{tmp_path / 'empty'} has no images" in said("predict", run, image(), tmp_path / "empty")
    text = said("predict", run, tmp_path / "some")
    assert (
        "one image cannot be read, and the others are answered; replace or remove, or leave out with --skip-bad:"
        in text
    )
    assert "bad.png (text, not an image)" in text
    assert "bad.png: text, not an image" in said("predict", run, tmp_path / "some", "--skip-bad", "--csv", status=0)
    assert "no image can be read" in said("predict", run, tmp_path / "some" / "bad.png", "--skip-bad")


def test_refusals_of_a_runs_predictor(run: Path, tmp_path: Path, said: Said) -> None:
    few = finished("few-shot")
    assert "has no novel classes, it was tuned on all of them; give --part all" in said(
        "predict", few, image(), "--part", "novel"
    )
    assert "say where the same weights are with --backbone SPEC" in said(
        "predict", run, image(), "--backbone", "pocket"
    )
    assert "unknown calibrator 'temprature'. Did you mean 'temperature'" in said(
        "predict", run, image(), "--calibrator", "temprature"
    )
    assert "--calibrator must not be empty, got ''" in said("predict", run, image(), "--calibrator", "")
    assert "--device must be cpu, cuda, cuda:1" in said("predict", run, image(), "--device", "meta")
    assert f"there are runs in it: {run.name}" in said("predict", run.parent, image())
    root = samples.picture_folder(tmp_path / "photos", ("ant", "bee", "cat", "dog"), each=2)  # none to validate
    assert main([str(each) for each in training(tmp_path / "runs", "--quiet", data=root)]) == 0
    folder = next((tmp_path / "runs").iterdir())
    assert "has no validation images to fit the calibrator temperature on" in said(
        "predict", folder, image(), "--calibrator", "temperature"
    )


# time


@pytest.mark.parametrize(
    ("given", "status"), [(["train", "--backbone", "pocket", "--data", "nowhere"], 2), (["list"], 0)]
)
def test_parts_that_need_no_torch(given: list[str], status: int) -> None:
    script = (
        "import sys, calprompt.cli; code = calprompt.cli.main(sys.argv[1:]); "
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, timeout=60)
    assert done.returncode == status, done.stderr
