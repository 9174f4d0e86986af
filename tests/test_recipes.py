"""Recipes: every published setting reads, fits its tuner and says the command that runs it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import samples
from calprompt.cli.app import create_parser
from calprompt.cli.train import run_settings
from calprompt.errors import CalpromptError
from calprompt.runs import config as recipes
from calprompt.runs.config import RunConfig, build_config
from calprompt.runs.execute import run
from calprompt.tuners import create
from tiny import tiny_backbone


@pytest.mark.parametrize("name", recipes.available())
def test_every_recipe_fits_its_tuner(name: str) -> None:
    about, settings = recipes.read_recipe(name)
    assert about
    config = recipes.build_config(backbone="b", data="d", **settings)
    depths = {"depth": 2, "visual_depth": 2}  # of a tower with three blocks
    options = {key: depths.get(key, value) for key, value in config.options.items()}
    create(config.tuner, tiny_backbone(), ["cat", "dog"], **options)


@pytest.mark.parametrize("name", recipes.available())
def test_every_recipe_says_its_command(name: str) -> None:
    text = (files("calprompt") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    command = next(line for line in text.splitlines() if line.startswith("# calprompt "))
    chosen = create_parser().parse_args(command.split()[2:])
    assert chosen.recipe == name
    assert build_config(**run_settings(chosen)).tuner == name.split("-")[0]


def test_every_prompt_tuner_has_recipes_for_both_protocols() -> None:
    for tuner in ("coop", "cocoop", "kgcoop", "maple", "proda", "prograd", "promptsrc"):
        own = [recipes.read_recipe(name)[1] for name in recipes.available() if name.startswith(f"{tuner}-")]
        assert {settings.get("protocol", "base-to-novel") for settings in own} == {"base-to-novel", "few-shot"}, tuner
        assert {settings["loss"] for settings in own} == {"ce", "tcpt"}, tuner


def test_published_recipes_draw_a_new_crop_in_every_epoch() -> None:
    """As the public code does; the package's models are shown pictures whole."""
    views = {name: recipes.read_recipe(name)[1].get("views", 8) for name in recipes.available()}
    assert {name for name, number in views.items() if number is not None} == {"coop-photo", "coop-pocket"}


def test_the_command_line_goes_over_the_recipe() -> None:
    given = ["train", "--backbone", "b", "--data", "d", "--recipe", "coop-tcpt", "--epochs", "3", "--set", "context=4"]
    config = build_config(**run_settings(create_parser().parse_args(given)))
    assert (config.training.epochs, config.training.batch_size) == (3, 32)
    assert config.options == {"context": 4, "position": "middle"}
    with pytest.raises(CalpromptError, match="recipe coop-tcpt is for tuner coop, not for maple"):
        build_config(**run_settings(create_parser().parse_args([*given, "--tuner", "maple"])))


def test_a_custom_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# mine\ntuner: kgcoop\nepochs: 7\n")
    assert recipes.read_recipe(str(tmp_path / "mine.yaml")) == ("mine", {"tuner": "kgcoop", "epochs": 7})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tuner: coop\nepoch: 3\n", "unknown setting in recipe .* 'epoch'. Did you mean 'epochs'"),
        ("- coop\n", "must be settings such as 'tuner: coop', got list"),
        ("tuner: [\n", "is not YAML"),
        ("epochs: three\n", r"recipe .*bad\.yaml: setting epochs must be a whole number, got 'three'"),
        ("lr: fast\n", r"recipe .*bad\.yaml: setting lr must be a number, got 'fast'"),
        ("options: context=4\n", r"setting options must be names with values, such as {context: 4}, got 'context=4'"),
        ("loss: caf\xe9\n", r"recipe .*bad\.yaml is not text in UTF-8"),
    ],
)
def test_bad_recipes_are_answered(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(CalpromptError, match=says):
        recipes.read_recipe(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize(("text", "lr"), [("2e-3", 0.002), ("2.0e-3", 0.002), ("1E+1", 10.0), ("0.5", 0.5), ("3", 3)])
def test_numbers_are_read_as_people_write_them(tmp_path: Path, text: str, lr: float) -> None:
    (tmp_path / "mine.yaml").write_text(f"lr: {text}\noptions: {{beta: {text}}}\nimports: []\n")
    settings = recipes.read_recipe(str(tmp_path / "mine.yaml"))[1]
    assert settings == {"lr": lr, "options": {"beta": lr}, "imports": ()}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"seed": 2**64}, "seed must be below 4294967296, got 18446744073709551616"),
        ({"lr": 1e300}, r"lr must be a positive number that float32 can hold, got 1e\+300"),
        ({"lr": float("nan")}, "lr must be a positive number that float32 can hold, got nan"),
        ({"momentum": -0.1}, r"momentum must be a number, 0 or more; got -0\.1"),
    ],
)
def test_settings_of_training_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        recipes.build_config(backbone="b", data="d", **settings)


def test_unknown_recipes_are_answered() -> None:
    with pytest.raises(CalpromptError, match=r"unknown recipe 'coop-tpct'\. Did you mean 'coop-tcpt'"):
        recipes.read_recipe("coop-tpct")
    with pytest.raises(CalpromptError, match=r"cannot read recipe none\.yaml"):
        recipes.read_recipe("none.yaml")


def test_settings_of_the_wrong_type_are_answered() -> None:
    with pytest.raises(CalpromptError, match="shots must be a whole number or None, got 'many'"):
        RunConfig("b", "d", shots="many")  # type: ignore[arg-type]
    with pytest.raises(CalpromptError, match=r"unknown protocol 'fewshot'\. Did you mean 'few-shot'"):
        RunConfig("b", "d", protocol="fewshot")


def test_few_shot_runs_train_and_test_on_all_classes(tmp_path: Path) -> None:
    config = samples.config(protocol="few-shot")
    done = run(config, tmp_path)
    both = run(samples.config(), tmp_path)
    assert set(done.metrics) >= {"all", "zero_shot"}
    assert done.metrics["all"]["classes"] == both.metrics["base"]["classes"] + both.metrics["novel"]["classes"]
    assert done.metrics["all"]["images"] == both.metrics["base"]["images"] + both.metrics["novel"]["images"]
