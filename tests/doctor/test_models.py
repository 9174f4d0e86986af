"""The CLIPs that are there without a network, the pocket, and whether what it computes is right."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip import pretrained

import samples
from calprompt import pocket
from calprompt.clip import sources
from calprompt.clip.sources import downloaded_backbones
from calprompt.doctor import models
from calprompt.doctor.examination import Finding
from calprompt.doctor.models import USUAL, check_backbones, check_pocket, load_embedded, self_test
from calprompt.errors import BackboneError

WEIGHTS = samples.backbone() / "open_clip_model.safetensors"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty places for downloads, and no network: whoever asks for it fails."""

    def asked(address: str, download: object) -> None:
        raise AssertionError(f"asked for {address}")

    monkeypatch.setattr(sources, "attempt", asked)
    folders = (tmp_path / "hub", tmp_path / "clip")
    monkeypatch.setattr(sources, "download_folders", lambda cache_dir=None: folders)
    monkeypatch.setattr("calprompt.clip.sources.download_folders", sources.download_folders)
    monkeypatch.setattr(models, "download_folders", sources.download_folders)
    for name in (sources.OFFLINE, *sources.PROXIES, *map(str.lower, sources.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def repository(hub: Path, name: str, **files: str | Path) -> None:
    """A repository as huggingface_hub keeps it."""
    root = hub / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    for file, content in files.items():
        place = snapshot / file.replace("__", ".")
        if isinstance(content, Path):
            place.symlink_to(content)
        else:
            place.write_text(content)


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes tiny/mine a name of open_clip's table."""

    def add(**columns: str) -> None:
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", samples.MODEL)
        columns = {"url": "", "hf_hub": "", "quick_gelu": "1", **columns}
        monkeypatch.setitem(pretrained._PRETRAINED, "tiny", {"mine": columns})

    return add


def found() -> dict[str, Finding]:
    return {finding.name: finding for finding in check_backbones()}


def test_without_downloads_the_user_learns_how_to_get_a_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(found()) == {USUAL, "downloads"}
    assert found()[USUAL].status == "note"
    assert "it is downloaded when it is first used" in found()[USUAL].value
    assert "--backbone PATH" in found()[USUAL].advice
    assert "--backbone pocket-photo needs no download" in found()[USUAL].advice
    monkeypatch.setenv(sources.OFFLINE, "1")
    assert found()[USUAL].value == "not on this machine"
    assert found()["network"].status == "note"
    monkeypatch.delenv(sources.OFFLINE)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy.example:3128")
    assert found()["network"].value == "through the proxy that HTTPS_PROXY names; not tried"


def test_downloads_are_listed_under_the_name_that_loads_them(caches: Path, row: Callable[..., None]) -> None:
    row(hf_hub="me/tiny/")
    config = json.dumps({"model_cfg": samples.MODEL, "preprocess_cfg": {}})
    repository(caches / "hub", "me/tiny", open_clip_model__safetensors=WEIGHTS)
    repository(caches / "hub", "you/tiny", open_clip_model__safetensors=WEIGHTS, open_clip_config__json=config)
    clip = json.dumps({"model_type": "clip"})
    repository(caches / "hub", "they/plip", model__safetensors=WEIGHTS, config__json=clip)
    bert = json.dumps({"model_type": "bert"})
    repository(caches / "hub", "they/bert", model__safetensors=WEIGHTS, config__json=bert)
    repository(caches / "hub", "they/damaged", model__safetensors=WEIGHTS, config__json="[")
    (caches / "hub" / "models--they--empty").mkdir()
    assert [spec for spec, _ in downloaded_backbones()] == ["tiny/mine", "hf-hub:they/plip", "hf-hub:you/tiny"]
    assert found()["tiny/mine"].status == "ok"
    assert found()["tiny/mine"].value.endswith("open_clip_model.safetensors")
    assert sources.find("hf-hub:you/tiny", download=False).path.resolve() == WEIGHTS


def test_a_download_that_was_cut_off_is_found_out(caches: Path, row: Callable[..., None]) -> None:
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    row(url=f"https://openaipublic.example/{digest}/tiny.pt")
    (caches / "clip").mkdir()
    (caches / "clip" / "tiny.pt").write_bytes(WEIGHTS.read_bytes())
    assert found()["tiny/mine"].status == "ok"
    (caches / "clip" / "tiny.pt").write_bytes(WEIGHTS.read_bytes()[:1000])
    assert found()["tiny/mine"].status == "note"
    assert "its digest differs" in found()["tiny/mine"].value
    assert "Remove that file" in found()["tiny/mine"].advice


def test_a_place_for_downloads_that_cannot_be_written_to(caches: Path) -> None:
    (caches / "hub").write_text("a file")
    assert found()["downloads"].status == "note"
    assert "Set HF_HUB_CACHE" in found()["downloads"].advice


def test_the_pocket_is_what_it_should_be() -> None:
    """If a model was made again, FINGERPRINTS in calprompt/pocket/__init__.py has to be that of the new one."""
    assert {name: load_embedded(name).fingerprint for name in pocket.MODELS} == pocket.FINGERPRINTS
    found = list(check_pocket())
    assert [(each.name, each.status) for each in found] == [
        ("pocket model", "ok"),
        ("pocket-photo model", "ok"),
        ("pocket-vit model", "ok"),
        ("pocket pictures", "ok"),
        ("self test", "ok"),
    ]
    assert "128 finite numbers, and was recognised as 'airplane'" in found[-1].value


def test_damaged_pocket_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise BackboneError("a truncated file")

    other = replace(load_embedded("pocket"), fingerprint="0" * 64)
    for load in (fail, lambda _: other):
        monkeypatch.setattr(models, "load_embedded", load)
        (finding,) = check_pocket()
        assert (finding.name, finding.status) == ("pocket model", "problem")
        assert "pip install --force-reinstall calprompt" in finding.advice
    assert finding.value == f"fingerprint 000000000000, expected {pocket.FINGERPRINTS['pocket'][:12]}"


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (torch.zeros(1, 7), "a picture gave 1 x 7 numbers, expected 1 x 128"),
        (torch.full((1, 128), torch.nan), "not finite"),
        (torch.eye(1, 128), "was taken for"),
    ],
)
def test_wrong_results_of_the_self_test_are_problems(
    monkeypatch: pytest.MonkeyPatch, feature: torch.Tensor, says: str
) -> None:
    monkeypatch.setattr("calprompt.clip.backbone.encode_image", lambda *_: feature)
    finding = self_test(load_embedded("pocket"))
    assert finding.status == "problem"
    assert says in finding.value
    assert finding.advice
