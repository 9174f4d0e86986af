"""`calprompt cache`: what it says and what it removes."""

import argparse
from pathlib import Path

import pytest

import samples
from calprompt.cli.cache import add_arguments, format_size, format_span, parse_size, parse_span
from calprompt.clip.load import load_backbone
from calprompt.data.checks import UnreadableImages
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.features.frozen import frozen_features
from calprompt.features.store import FeatureStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def fill() -> None:
    images = load_dataset(samples.pictures()).test.images
    for _ in range(3):
        store = FeatureStore()
        frozen_features(load_backbone(samples.backbone()), images, 2, unreadable=UnreadableImages(), store=store)
        store.close()


def cache(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    chosen.command(chosen)


def test_show(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache("show")
    assert capsys.readouterr().out == f"0 B in {store}\n"
    fill()
    cache("show")
    told = capsys.readouterr().out
    assert "fits" not in told
    fit = store.parent / "fits" / "photos-123"
    fit.mkdir(parents=True)
    (fit / "run.json").write_text("0123456789")
    cache("show")
    assert f"10 B in {fit.parent}: interrupted fits" in capsys.readouterr().out
    (store / "0.damaged").touch()
    cache("show")
    assert "damaged, and not used" in capsys.readouterr().out
    for word in ("tiny-clip", "32 px bicubic crop", "0.08", "18", "36", "KB", "72", "0 s ago"):
        assert word in told


def test_prune_asks_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    cache("prune")
    cache("prune", "--older-than", "30d")
    assert capsys.readouterr().out == 2 * f"nothing to remove from {store}\n"
    cache("prune", "--max-size", "1KB")
    assert "would remove" in capsys.readouterr().out
    assert list(store.glob("*.sqlite"))
    with pytest.raises(CalpromptError, match=r"no features of backbone 'ViT'; it has those of tiny-clip \("):
        cache("prune", "--backbone", "ViT")
    with pytest.raises(CalpromptError, match="backbone must be the beginning of a name"):
        cache("prune", "--backbone", "", "--yes")
    cache("prune", "--backbone", "tiny-clip", "--yes")
    assert "removed" in capsys.readouterr().out
    assert not list(store.iterdir())


def test_verify(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    cache("verify")
    assert "all checksums are right" in capsys.readouterr().out
    (path,) = store.glob("*.sqlite")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CalpromptError, match=f"one file is damaged and.*\n.*{path.name}"):
        cache("verify")


def test_merge(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    cache("merge", str(store.parent), "--into", str(tmp_path / "other"), "--quiet")
    assert f"36 features copied, 0 there already; into {tmp_path / 'other'}" in capsys.readouterr().out
    cache("merge", str(tmp_path / "other"), "--quiet")
    assert "0 features copied, 36 there already" in capsys.readouterr().out
    (path,) = (tmp_path / "other").glob("*.sqlite")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CalpromptError, match=f"damaged, and left out:\n.*{path.name}"):
        cache("merge", str(tmp_path / "other"), "--quiet")


@pytest.mark.parametrize("arguments", [("--older-than", "a month"), ("--max-size", "5 apples"), ("--max-size", "-1GB")])
def test_wrong_spans_and_sizes(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cache("prune", *arguments)
    assert "expected" in capsys.readouterr().err


def test_spans_and_sizes() -> None:
    assert (parse_size("5GB"), parse_size("1.5 mb"), parse_size("100")) == (5_000_000_000, 1_500_000, 100)
    assert (parse_span("30d"), parse_span("12h"), parse_span("2w")) == (2_592_000, 43_200, 1_209_600)
    assert [format_size(number) for number in (0, 999, 20_480_000)] == ["0 B", "999 B", "20.5 MB"]
    assert [format_span(number) for number in (0, 90, 150, 7300, 300_000)] == ["0 s", "90 s", "2 min", "2 h", "3 d"]
