"""Datasets from .safetensors files, and what is said about files that are not."""

import json
from pathlib import Path

import pytest
import torch

import samples
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError


def test_features_with_names_in_the_metadata(tmp_path: Path) -> None:
    held = samples.tensors()
    dataset = load_dataset(samples.tensor_file(tmp_path / "toys.safetensors", held, template="a toy {}."))
    assert (dataset.name, dataset.class_names, dataset.template) == ("toys", samples.NAMES, "a toy {}.")
    assert torch.equal(dataset.train.images.rows, held["train_features"])
    assert dataset.test.labels == tuple(held["test_labels"].tolist())


def test_tensors_with_a_names_file_and_no_validation_split(tmp_path: Path) -> None:
    held = {name: tensor for name, tensor in samples.tensors("images").items() if not name.startswith("val")}
    path = samples.tensor_file(tmp_path / "toys.safetensors", held, names=None)
    (tmp_path / "toys.json").write_text(json.dumps({"class_names": samples.NAMES, "template": "a toy {}."}))
    dataset = load_dataset(path)
    assert (dataset.class_names, dataset.template, len(dataset.val)) == (samples.NAMES, "a toy {}.", 0)
    assert dataset.test.images.has_pixels


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in samples.tensors().items() if name not in names}


def with_(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**samples.tensors(), **tensors}


@pytest.mark.parametrize(
    ("held", "names", "says"),
    [
        (without("train_features"), samples.NAMES, "has no train_features"),
        (without("train_features", "train_labels"), samples.NAMES, "has no train_features"),
        (without("test_labels"), samples.NAMES, "has no test_labels"),
        (without("val_labels"), samples.NAMES, "has no val_labels"),
        (without("val_features"), samples.NAMES, "has no val_features"),
        (with_(test_images=torch.zeros(48, 3, 4, 4)), samples.NAMES, "both images and features"),
        ({"train_labels": torch.zeros(2, dtype=torch.long)}, samples.NAMES, "neither images nor features"),
        (with_(valid_features=torch.zeros(1, 32)), samples.NAMES, "unknown tensor in .* Did you mean 'val_features'"),
        (with_(train_features=torch.zeros(48, 3, 4)), samples.NAMES, r"\[48, 3, 4\], expected \[n, dimensions\]"),
        (with_(train_features=torch.zeros(48, 8, dtype=torch.uint8)), samples.NAMES, "uint8, expected floating-point"),
        (with_(train_features=torch.full((48, 8), float("nan"))), samples.NAMES, "train_features .* not finite"),
        (with_(train_features=torch.zeros(40, 32)), samples.NAMES, "40 features and 48 labels"),
        (with_(test_labels=torch.zeros(48)), samples.NAMES, r"test_labels is float32 \[48\], expected whole numbers"),
        (
            with_(test_labels=torch.full((48,), 6)),
            samples.NAMES,
            "test label 6 is out of range; 6 class names allow 0 to 5",
        ),
        (with_(val_labels=torch.full((48,), -1)), samples.NAMES, "val label -1 is out of range"),
        (with_(train_labels=torch.zeros(48, dtype=torch.long)), samples.NAMES, "no training image of bee, cat, dog"),
        (None, ("a", "a", "b", "c", "d", "e"), "reads these alike: 'a' and 'a'"),
        (None, None, "has no class names: put a JSON list"),
        (None, "ant", "must be a list of names"),
        (None, [], "must be a list of names"),
        (None, ["ant", 3], "must be a list of names"),
    ],
)
def test_bad_input_is_reported(tmp_path: Path, held, names, says: str) -> None:
    path = samples.tensor_file(tmp_path / "toys.safetensors", held, names)
    with pytest.raises(CalpromptError, match=says):
        load_dataset(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "is not JSON"), ("[]", "must be a list of names"), ('{"class_names": {}}', "must be a list")],
)
def test_a_sidecar_that_does_not_name_classes(tmp_path: Path, content: str, says: str) -> None:
    path = samples.tensor_file(tmp_path / "toys.safetensors", names=None)
    path.with_suffix(".json").write_text(content)
    with pytest.raises(CalpromptError, match=says):
        load_dataset(path)


def test_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "toys.safetensors"
    path.write_bytes(b"PK\x03\x04 not this")
    with pytest.raises(CalpromptError, match="not a readable safetensors file"):
        load_dataset(path)


def test_metadata_that_is_no_json(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(samples.tensors(), tmp_path / "toys.safetensors", {"class_names": "ant, bee"})
    with pytest.raises(CalpromptError, match="is not a JSON list"):
        load_dataset(tmp_path / "toys.safetensors")
