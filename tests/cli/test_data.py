"""`calprompt data list | info | check | prepare`: what people see, and the exit code."""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import samples
from calprompt.cli.data import add_arguments
from calprompt.data import catalogue
from calprompt.errors import CalpromptError
from calprompt.runs.planning import plan
from data import trees


def run(*arguments: str) -> None:
    """As the command line does, without its handling of errors."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    chosen.command(chosen)


def test_list_has_every_dataset(capsys) -> None:
    run("list")
    shown = capsys.readouterr().out
    assert all(key in shown for key in catalogue.available())
    assert "15,880" in shown
    assert "199+198" in shown


@pytest.mark.parametrize("key", catalogue.available())
def test_info_says_everything(key: str, capsys) -> None:
    run("info", key)
    shown = capsys.readouterr().out
    entry = catalogue.get(key)
    assert all(words in shown for words in (entry.title, entry.templates["coop"], entry.source[:40], entry.licence))
    assert ("ProGrad" in shown) == (entry.templates["prograd"] != entry.templates["coop"])


def test_check_of_a_damaged_dataset(tmp_path: Path, capsys) -> None:
    trees.make(tmp_path, "eurosat")
    (tmp_path / "eurosat" / "2750" / "Forest" / "Forest_1.jpg").unlink()
    with pytest.raises(CalpromptError, match="EuroSAT: 7 problems, listed above"):
        run("check", "eurosat", "--root", str(tmp_path))
    shown = capsys.readouterr().out
    assert "wrong: classes: 4, expected 10; the split file is not the fixed one, get it again" in shown
    assert "wrong: 1 of 24 images are not in" in shown
    assert "Forest/Forest_1.jpg" in shown


def test_check_of_a_complete_dataset_and_its_images(tmp_path: Path, capsys) -> None:
    folder = trees.make(tmp_path, "digestpath")
    run("check", "digestpath", "--root", str(tmp_path), "--images")
    assert "no problems" in capsys.readouterr().out
    (folder / "patches" / "test" / "benign" / "benign-0.png").write_bytes(b"")
    run("check", "digestpath", "--root", str(tmp_path))
    with pytest.raises(CalpromptError, match="1 problem, listed above"):
        run("check", "digestpath", "--root", str(tmp_path), "--images")
    assert "wrong: patches/test/benign/benign-0.png: an empty file" in capsys.readouterr().out


def test_check_of_a_user_folder(tmp_path: Path, capsys) -> None:
    root = samples.picture_folder(tmp_path / "photos")
    (root / "ant" / "phone.heic").write_bytes(b"x")
    samples.picture(root / "ant" / "young" / "1.png", seed=1)
    samples.picture(root / "loose.png", seed=1)
    run("check", str(root))
    shown = capsys.readouterr().out
    assert "classes: 6, ant, bee, cat, dog, elk and 1 more" in shown
    assert "base and novel: 3 and 3 classes (the first half of the labels), 9 and 9 test images" in shown
    assert "note: left out, 1 file that cannot be read as an image (1 .heic)" in shown
    assert "note: left out, a folder inside a class folder: ant/young" in shown
    assert "note: left out, not in a class folder: loose.png" in shown
    assert "note: fewer than 16 training images" in shown
    run("check", "photos", "--root", str(tmp_path))
    assert "note: left out, not in a class folder: loose.png" in capsys.readouterr().out
    (root / "bee" / "3.png").write_text("no picture")
    with pytest.raises(CalpromptError, match="1 problem, listed above"):
        run("check", str(root))
    assert "wrong: bee/3.png: text, not an image" in capsys.readouterr().out


def test_check_of_a_user_table_with_class_list(tmp_path: Path, capsys) -> None:
    root = samples.picture_folder(tmp_path / "photos", names=("a", "b", "c", "d"), each=4)
    rows = "".join(f"{path.relative_to(root)},{path.parent.name}\n" for path in sorted(root.rglob("*.png")))
    table = trees.write(tmp_path / "labels.csv", rows)
    base = trees.write(tmp_path / "base.txt", "b\nd\n")
    run("check", str(table), "--root", str(root), "--base", str(base))
    assert "2 and 2 classes (by list)" in capsys.readouterr().out


def test_prepare(tmp_path: Path, capsys) -> None:
    (trees.make(tmp_path, "fgvc_aircraft") / "variants.txt").unlink()
    run("prepare", "aircraft", "--root", str(tmp_path))
    assert "variants.txt: 5 variants" in capsys.readouterr().out
    with pytest.raises(CalpromptError, match="nothing of Kather colon has to be prepared"):
        run("prepare", "kather", "--root", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["info", "dtt"], "Did you mean 'dtd'"),
        (["check", "dtd"], r"say where datasets are with root \(--root DIR\)"),
        (["check", "no/where"], "there is no data at no/where"),
        (["prepare", "eurosat", "--root", "no/where"], "there is no folder no/where"),
    ],
)
def test_invalid_input(arguments: list[str], says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        run(*arguments)


def test_the_catalogue_needs_no_torch() -> None:
    code = "import sys; import calprompt.cli.data, calprompt.data.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_train_on_a_catalogue_dataset(tmp_path: Path) -> None:
    trees.make(tmp_path, "dtd")
    config = replace(samples.config(tuner="zero-shot", shots=2), data="dtd", root=str(tmp_path))
    ready = plan(config)
    assert (ready.dataset, ready.template) == ("dtd", "{} texture.")
    assert plan(replace(config, data=str(tmp_path / "dtd"), root=None)).fingerprint == ready.fingerprint
    trees.make(tmp_path, "imagenet_a")
    test_only = replace(config, data="imagenet_a")
    assert plan(test_only).base.class_names == ("shark", "hen")
    with pytest.raises(CalpromptError, match="imagenet_a has no training split, which tuner 'coop' needs"):
        plan(replace(test_only, tuner="coop"))
