"""A backbone loads from every source and layout, and encodes exactly as the library it came from."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
import pytest
import torch
import transformers
from open_clip import pretrained
from safetensors.torch import save_file
from torch import nn

from calprompt.clip import sources
from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.clip.model import Clip
from calprompt.clip.preprocessing import Preprocessing
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from states import clip_from_state_dict

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.jit, which makes the archives under test

TEXTS = ["a photo of a cat.", "Crème brûlée, 2012!", "x", "a satellite image of an annual crop land " * 3]
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {
        "embed_dim": 32,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 128, "patch_size": 8},
        "text_cfg": TEXT,
    },
    "resnet": {
        "embed_dim": 32,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": TEXT,
    },
    "timm": {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear"},
        "text_cfg": TEXT,
    },
    "gelu": {
        "embed_dim": 24,
        "vision_cfg": {
            "image_size": 24,
            "layers": 1,
            "width": 48,
            "head_width": 12,
            "patch_size": 12,
            "mlp_ratio": 3.0,
        },
        "text_cfg": {**TEXT, "heads": 4, "layers": 1},
    },
}
HALF_GREY = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"}


def scramble(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random values everywhere, also where initialisation leaves ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif tensor.is_floating_point() and tensor.ndim:
                offset = 1.0 if name.endswith(("norm.weight", "norm1.weight", "ln_1.weight", "bn3.weight")) else 0.0
                tensor.normal_(offset, 0.1, generator=generator)
    return model.eval()


@functools.cache
def reference(name: str) -> open_clip.model.CLIP:
    return scramble(open_clip.model.CLIP(**CONFIGS[name])).float()


def state_of(name: str) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in reference(name).state_dict().items()}


def images(size: int) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_encodes_like(
    loaded: Backbone, text: Callable[[torch.Tensor], Any], image: Callable[[torch.Tensor], Any]
) -> None:
    """Raw features of texts and images, to 1e-5 of their size."""
    tokens, pixels = open_clip.tokenize(TEXTS), images(loaded.preprocessing.size)
    ours = Backbone(loaded.model, preprocessing=loaded.preprocessing, name="", fingerprint="")
    for got, expected in (
        (ours.encode_strings(TEXTS, warn=False), text(tokens)),
        (ours.encode_image(pixels), image(pixels)),
    ):
        assert expected.abs().max() > 0.05
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)


def assert_is(loaded: Backbone, name: str) -> None:
    """`loaded` is the reference of that name, and frozen."""
    assert_encodes_like(loaded, reference(name).encode_text, reference(name).encode_image)
    assert isinstance(loaded.model, Clip | open_clip.model.CLIP)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert all(not each.is_meta for each in (*loaded.model.parameters(), *loaded.model.buffers()))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


class Archive(nn.Module):
    """OpenAI's module tree as traced: its parameters in half precision, the three marks, a mask."""

    def __init__(self, model: open_clip.model.CLIP, half: bool) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        for name in ("positional_embedding", "text_projection", "logit_scale"):
            self.register_parameter(name, getattr(model, name))
        for name, value in (("input_resolution", 32), ("context_length", 77), ("vocab_size", 49408)):
            self.register_buffer(name, torch.tensor(value))
        self.register_buffer("attn_mask", torch.zeros(77, 77))
        if half:
            open_clip.model.convert_weights_to_fp16(self)
            self.text_projection.data = self.text_projection.data.half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.logit_scale


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backbones")


def openai_archive(folder: Path, name: str, half: bool = False) -> Path:
    path = folder / f"{name}{'-half' if half else ''}.pt"
    if not path.exists():
        model = open_clip.model.CLIP(**CONFIGS[name])
        model.load_state_dict(state_of(name))
        torch.jit.save(torch.jit.trace(Archive(model, half).eval(), torch.ones(1)), str(path))
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing may be fetched; addresses that were asked for are collected."""
    asked: list[str] = []

    def refuse(address: str, download: Any) -> tuple[None, str]:
        asked.append(address)
        return None, "no network in this test"

    monkeypatch.setattr(sources, "attempt", refuse)
    return asked


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_openai_archive(folder: Path, name: str) -> None:
    loaded = load_backbone(openai_archive(folder, name))
    assert_is(loaded, name)
    assert loaded.name == name
    assert loaded.preprocessing == Preprocessing(CONFIGS[name]["vision_cfg"]["image_size"])


def test_openai_archive_in_half_precision_is_upcast(folder: Path) -> None:
    loaded = load_backbone(openai_archive(folder, "vit", half=True))
    assert {tensor.dtype for tensor in loaded.model.state_dict().values()} == {torch.float32}
    rounded = open_clip.model.CLIP(**CONFIGS["vit"]).eval()
    exact = ("ln_", "embedding", "logit_scale")
    rounded.load_state_dict(
        {key: each if any(part in key for part in exact) else each.half() for key, each in state_of("vit").items()}
    )
    assert_encodes_like(loaded, rounded.encode_text, rounded.encode_image)


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_openai_state_dict_with_marks(tmp_path: Path, name: str) -> None:
    marks = {"input_resolution": 32, "context_length": torch.tensor(77), "vocab_size": torch.tensor(49408)}
    torch.save({**state_of(name), **marks}, tmp_path / "openai.pt")
    assert_is(load_backbone(tmp_path / "openai.pt"), name)
    with pytest.raises(CalpromptError, match=r"openai\.pt.*quick_gelu is False in the config, but True"):
        load_backbone(tmp_path / "openai.pt", config={**CONFIGS[name], "quick_gelu": False})


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_openai_layout_stated_by_the_caller(name: str) -> None:
    loaded = clip_from_state_dict(state_of(name), layout="openai", name="golden")
    assert_is(loaded, name)
    assert loaded.name == "golden"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["safetensors", "pt", "bin", "training", "custom_text"])
def test_open_clip_file_with_config(tmp_path: Path, name: str, kind: str) -> None:
    state, path = state_of(name), tmp_path / f"model.{kind if kind in ('safetensors', 'bin') else 'pt'}"
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "training":
        wrapped = {f"module.{key}": tensor for key, tensor in state.items()}
        torch.save({"epoch": 1, "name": "run", "state_dict": wrapped, "optimizer": {"state": {}}}, path)
    elif kind == "custom_text":
        shared = ("visual.", "logit_scale")
        torch.save({key if key.startswith(shared) else f"text.{key}": each for key, each in state.items()}, path)
    else:
        torch.save(state, path)
    (tmp_path / "mine.json").write_text(json.dumps(CONFIGS[name]))
    for config in (CONFIGS[name], tmp_path / "mine.json", str(tmp_path / "mine.json")):
        assert_is(load_backbone(path, config=config), name)


@pytest.mark.parametrize("name", CONFIGS)
def test_open_clip_folder(tmp_path: Path, name: str) -> None:
    save_file(state_of(name), tmp_path / "open_clip_model.safetensors")
    config = {"model_cfg": CONFIGS[name], "preprocess_cfg": HALF_GREY}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    size = CONFIGS[name]["vision_cfg"]["image_size"]
    for spec in (tmp_path, str(tmp_path), tmp_path / "open_clip_model.safetensors"):
        loaded = load_backbone(spec)
        assert_is(loaded, name)
        assert loaded.preprocessing == Preprocessing.from_open_clip(HALF_GREY, size)


def huggingface_model(activation: str) -> Any:
    tower = {"num_hidden_layers": 2, "hidden_act": activation, "projection_dim": 32}
    text = {**tower, "hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4}
    vision = {**tower, "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 3}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**vision, "image_size": 32, "patch_size": 8}, projection_dim=32
    )
    return scramble(transformers.CLIPModel(config))


def pooled(output: Any) -> torch.Tensor:
    return getattr(output, "pooler_output", output)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("saved", ["safetensors", "bin", "sharded"])
def test_huggingface_folder(tmp_path: Path, activation: str, saved: str) -> None:
    model = huggingface_model(activation)
    model.save_pretrained(tmp_path, **({"max_shard_size": "2MB"} if saved == "sharded" else {}))
    assert (tmp_path / "model.safetensors.index.json").exists() == (saved == "sharded")
    if saved == "bin":
        (tmp_path / "model.safetensors").unlink()
        positions = {"text_model.embeddings.position_ids": torch.arange(77)[None]}
        torch.save({**model.state_dict(), **positions}, tmp_path / "pytorch_model.bin")
    processor = {"size": {"shortest_edge": 32}, "image_mean": [0.4, 0.5, 0.6], "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    loaded = load_backbone(tmp_path)
    assert_encodes_like(
        loaded, lambda ids: pooled(model.get_text_features(ids)), lambda x: pooled(model.get_image_features(x))
    )
    assert loaded.model.transformer.resblocks[0].attn.num_heads == 4
    assert loaded.preprocessing == Preprocessing(32, (0.4, 0.5, 0.6), interpolation="bilinear")
    config = json.loads((tmp_path / "config.json").read_text())
    again = clip_from_state_dict(dict(model.state_dict()), layout="huggingface", config=config)
    assert again.fingerprint == loaded.fingerprint


def test_one_model_in_every_container_has_one_fingerprint(folder: Path, tmp_path: Path) -> None:
    state = state_of("vit")
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"state_dict": {f"module.{key}": each for key, each in state.items()}}, tmp_path / "b.pt")
    loaded = [load_backbone(tmp_path / name, config=CONFIGS["vit"]) for name in ("a.safetensors", "b.pt")]
    loaded.append(load_backbone(openai_archive(folder, "vit")))
    loaded.append(clip_from_state_dict(state, layout="openai"))
    assert len({each.fingerprint for each in loaded}) == 1
    different = [
        clip_from_state_dict(state | {"ln_final.bias": state["ln_final.bias"] + 1e-6}, layout="openai"),
        clip_from_state_dict(state, layout="open_clip", config={**CONFIGS["vit"], "quick_gelu": False}),
        clip_from_state_dict(state, layout="open_clip", config={**CONFIGS["vit"], "text_cfg": {**TEXT, "heads": 2}}),
        clip_from_state_dict(state, layout="openai", dtype=torch.bfloat16),
    ]
    assert len({each.fingerprint for each in (*different, loaded[0])}) == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_dtype(name: str, dtype: torch.dtype) -> None:
    loaded = clip_from_state_dict(state_of(name), layout="openai", dtype=dtype)
    state = loaded.model.state_dict()
    assert state.pop("logit_scale").dtype == torch.promote_types(dtype, torch.float32)  # else 100 becomes 98.9
    floating = [each for each in state.values() if each.is_floating_point()]
    assert {each.dtype for each in floating} == {dtype}
    with pytest.raises(CalpromptError, match=r"torch\.int8"):
        clip_from_state_dict(state_of(name), layout="openai", dtype=torch.int8)


def test_loaded_weights_are_their_own(tmp_path: Path) -> None:
    state = state_of("vit")
    loaded = clip_from_state_dict(state, layout="openai")
    for tensor in state.values():
        tensor.zero_()
    assert_is(loaded, "vit")
    save_file(state_of("vit"), tmp_path / "w.safetensors")
    loaded = load_backbone(tmp_path / "w.safetensors", config=CONFIGS["vit"])
    (tmp_path / "w.safetensors").write_bytes(b"")
    assert_is(loaded, "vit")


def test_loading_leaves_global_randomness_alone() -> None:
    before = torch.get_rng_state()
    clip_from_state_dict(state_of("vit"), layout="openai")
    assert torch.equal(torch.get_rng_state(), before)


def test_load_backbone(folder: Path) -> None:
    backbone = load_backbone(openai_archive(folder, "vit"))
    assert isinstance(backbone, Backbone)
    assert backbone.name == "vit"
    assert backbone.fingerprint == load_backbone(openai_archive(folder, "vit")).fingerprint
    with torch.no_grad():
        expected = reference("vit").encode_text(open_clip.tokenize(TEXTS))
    assert (backbone.encode_strings(TEXTS) - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_unusable_devices_are_reported(device: str) -> None:
    with pytest.raises(CalpromptError, match=f"cannot use device '{device}'"):
        load_backbone("pocket", device=device)


def test_a_bare_state_dict_needs_a_config(tmp_path: Path) -> None:
    with pytest.raises(
        CalpromptError, match=r"activation.*cannot be seen.*config=.*No open_clip model has these shapes"
    ):
        clip_from_state_dict(state_of("vit"), layout="open_clip")
    full = open_clip.get_model_config("ViT-S-32-alt")
    model = open_clip.model.CLIP(**full)
    torch.save(model.state_dict(), tmp_path / "bare.pt")
    with pytest.raises(CalpromptError, match=r"bare\.pt: .*open_clip models that fit: ViT-S-32-alt\."):
        load_backbone(tmp_path / "bare.pt")
    loaded = load_backbone(tmp_path / "bare.pt", config="ViT-S-32-alt")
    assert_encodes_like(loaded, model.eval().encode_text, model.encode_image)
    with pytest.raises(CalpromptError, match=r"unknown open_clip model 'ViT-S-32-alf'.*Did you mean 'ViT-S-32-alt'"):
        load_backbone(tmp_path / "bare.pt", config="ViT-S-32-alf")
    with pytest.raises(CalpromptError, match=r"embed_dim is 512 in the config, but 256 .*that fit: ViT-S-32-alt"):
        load_backbone(tmp_path / "bare.pt", config="ViT-B-32")


def test_an_unrelated_config_next_to_a_file_is_ignored(tmp_path: Path) -> None:
    torch.save(state_of("vit"), tmp_path / "w.pt")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CalpromptError, match="cannot be seen"):
        load_backbone(tmp_path / "w.pt")


def test_broken_configs_name_their_file(tmp_path: Path) -> None:
    torch.save(state_of("vit"), tmp_path / "w.pt")
    config = tmp_path / "open_clip_config.json"
    config.write_text("{")
    with pytest.raises(CalpromptError, match=r"open_clip_config\.json is not JSON"):
        load_backbone(tmp_path)
    config.write_text("[]")
    with pytest.raises(CalpromptError, match="expected an object"):
        load_backbone(tmp_path)
    config.write_text(json.dumps({"model_cfg": {**CONFIGS["vit"], "text_cfg": {**TEXT, "pool_type": "last"}}}))
    with pytest.raises(CalpromptError, match=r"open_clip_config\.json: text_cfg\.pool_type = 'last' is not supported"):
        load_backbone(tmp_path)


def test_missing_tensors_name_the_file(tmp_path: Path) -> None:
    state = state_of("vit")
    del state["ln_final.bias"]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(CalpromptError, match=r"w\.pt: .*1 missing: ln_final\.bias"):
        load_backbone(tmp_path / "w.pt", config=CONFIGS["vit"])


def test_folders_without_or_with_too_many_weights(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match=r"no weights in folder .*found nothing"):
        load_backbone(tmp_path)
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(CalpromptError, match=r"expected open_clip_model\.safetensors.*found readme\.md"):
        load_backbone(tmp_path)
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(CalpromptError, match=r"several weights files.*a\.pt, b\.pt.*Pass the path of one"):
        load_backbone(tmp_path)


def test_absent_paths_suggest_a_near_name(tmp_path: Path) -> None:
    (tmp_path / "ViT-B-16.pt").write_text("x")
    for spec in (tmp_path / "ViT-B16.pt", str(tmp_path / "ViT-B16.pt")):
        with pytest.raises(CalpromptError, match=r"no file or folder .*Did you mean .*ViT-B-16\.pt\?"):
            load_backbone(spec)
    with pytest.raises(CalpromptError, match=r"no file or folder .*nowhere.*x\.pt\.$"):
        load_backbone(tmp_path / "nowhere" / "x.pt")
    with pytest.raises(CalpromptError, match="no file or folder"):
        load_backbone("./nowhere")


def test_folders_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(CalpromptError, match="Permission denied"):
        load_backbone(tmp_path)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds a tiny model with a pretrained tag to open_clip's table for one test."""

    def add(row: dict, name: str = "tiny", tag: str = "mine", config: str = "gelu") -> None:
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, CONFIGS[config])
        monkeypatch.setitem(pretrained._PRETRAINED, name, {tag: {"url": "", "hf_hub": "", **HALF_GREY, **row}})

    return add


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    torch.save(state_of("gelu"), tmp_path / "tiny.pt")
    return tmp_path / "tiny.pt"


def hub_cache(cache: Path, repository: str, files: dict[str, Path | str]) -> None:
    """Files as huggingface_hub keeps them."""
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    for name, content in files.items():
        if isinstance(content, Path):
            (snapshot / name).symlink_to(content)
        else:
            (snapshot / name).write_text(content)


def test_name_and_tag(tiny: Path, table: Callable[..., None], no_network: list[str]) -> None:
    table({"file": str(tiny)})
    loaded = load_backbone("tiny/mine")
    assert_is(loaded, "gelu")
    assert loaded.name == "tiny/mine"
    assert loaded.preprocessing == Preprocessing.from_open_clip(HALF_GREY, 24)
    assert not no_network
    with pytest.raises(CalpromptError, match="config= is for files"):
        load_backbone("tiny/mine", config="ViT-B-32")


def test_a_file_of_a_name_and_tag_has_their_preprocessing(tiny: Path, table: Callable[..., None]) -> None:
    """What the error without a network advises; the model's name alone says nothing of how images are prepared."""
    table({"hf_hub": "some/where"})
    loaded = load_backbone(tiny, config="tiny/mine")
    assert_is(loaded, "gelu")
    assert loaded.preprocessing == Preprocessing.from_open_clip(HALF_GREY, 24)
    assert load_backbone(tiny, config="tiny").preprocessing == Preprocessing(24)


def test_name_and_tag_with_an_openai_archive(
    folder: Path, table: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.jit, "load", None)  # the archive must be read by our own reader
    table({"file": str(openai_archive(folder, "vit")), "quick_gelu": True}, config="vit")
    assert_is(load_backbone("tiny/mine"), "vit")


def test_files_in_the_hub_cache_are_used(
    tiny: Path, tmp_path: Path, table: Callable[..., None], no_network: list[str]
) -> None:
    hub_cache(tmp_path / "cache", "me/tiny", {"open_clip_pytorch_model.bin": tiny})
    table({"hf_hub": "me/tiny/"})
    assert_is(load_backbone("tiny/mine", cache_dir=tmp_path / "cache"), "gelu")
    hub_cache(tmp_path / "other", "me/tiny", {"special.pt": tiny})
    table({"hf_hub": "me/tiny/special.pt"})
    assert_is(load_backbone("tiny/mine", cache_dir=tmp_path / "other"), "gelu")
    assert not no_network


@pytest.mark.parametrize("honest", [True, False])
def test_files_in_the_address_cache_are_used_if_their_digest_is_right(
    tiny: Path, tmp_path: Path, table: Callable[..., None], no_network: list[str], honest: bool
) -> None:
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest() if honest else "0" * 64
    for url in (f"https://openaipublic.example/{digest}/tiny.pt", "https://example.org/tiny.pt"):
        table({"url": url})
        if honest or digest not in url:
            assert_is(load_backbone("tiny/mine", cache_dir=tmp_path), "gelu")
        else:
            with pytest.raises(CalpromptError, match=r"tiny\.pt is not that file \(its digest differs\)"):
                load_backbone("tiny/mine", cache_dir=tmp_path)
    assert bool(no_network) != honest


def test_files_are_downloaded_from_their_address(
    tiny: Path, tmp_path: Path, table: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(Quiet, directory=str(tiny.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            table({"url": f"{address}/tiny.pt"})
            assert_is(load_backbone("tiny/mine", cache_dir=tmp_path / "cache"), "gelu")
            assert (tmp_path / "cache" / "tiny.pt").is_file()
            table({"url": f"{address}/absent.pt"})
            with pytest.raises(CalpromptError, match=rf"(?s)404.*download {address}/absent\.pt"):
                load_backbone("tiny/mine", cache_dir=tmp_path / "cache")
        finally:
            server.shutdown()
    assert_is(load_backbone(tmp_path / "cache" / "tiny.pt", config=CONFIGS["gelu"]), "gelu")


def test_looking_without_downloading(
    tiny: Path, tmp_path: Path, table: Callable[..., None], no_network: list[str]
) -> None:
    table({"hf_hub": "me/tiny/"})
    for spec in ("tiny/mine", "hf-hub:me/tiny"):
        with pytest.raises(NotFoundError, match="not on this machine"):
            sources.find(spec, tmp_path, download=False)
    hub_cache(tmp_path, "me/tiny", {"open_clip_pytorch_model.bin": tiny})
    assert sources.find("tiny/mine", tmp_path, download=False).path.resolve() == tiny
    table({"url": f"https://openaipublic.example/{'0' * 64}/tiny.pt"})
    with pytest.raises(DamagedFileError, match="its digest differs"):
        sources.find("tiny/mine", tiny.parent, download=False)
    assert not no_network


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ViT-B-16/openai", r"trained with QuickGELU.*Use 'ViT-B-16-quickgelu/openai'"),
        ("ViT-B-32-quickgelu/laion2b_s34b_b79k", r"ViT-B-32/laion2b_s34b_b79k exists"),
        ("ViT-B-16-quickgelu/opeani", r"unknown pretrained tag.*Did you mean 'openai'"),
        ("ViT-B-16-quickgleu/openai", r"Did you mean 'ViT-B-16-quickgelu'\? Known: EVA01"),
        ("ViT-B/16", "OpenAI's ViT-B/16 is 'ViT-B-16-quickgelu/openai'"),
        ("ViT-L/14@336px", "'ViT-L-14-336-quickgelu/openai'"),
        ("RN50-quickgelu", "Write one of RN50-quickgelu/openai"),
        ("wisdomik/QuiltNet-B-32", "'hf-hub:wisdomik/QuiltNet-B-32'"),
        ("hf-hub:quiltnet", "'hf-hub:owner/name'"),
        ("hf-hub:../../etc/passwd", "'hf-hub:owner/name'"),
        ("hf-hub:../passwd", "'hf-hub:owner/name'"),
        ("ViT-B-16-SigLIP/webli", "init_logit_bias = -10 is not supported"),
        ("MobileCLIP-S1/datacompdr", r"text_cfg\.no_causal_mask"),
        ("roberta-ViT-B-32/laion2b_s12b_b32k", r"text_cfg\.hf_model_name"),
        ("coca_ViT-B-32/laion2b_s13b_b90k", "multimodal_cfg"),
        ("ViT-L-14-CLIPA/datacomp1b", "not supported"),
        ("", "unknown backbone"),
    ],
)
def test_names_that_cannot_be_loaded(spec: str, message: str, no_network: list[str]) -> None:
    with pytest.raises(CalpromptError, match=message):
        load_backbone(spec)
    assert not no_network


def test_a_tag_with_gelu_on_a_quickgelu_model(table: Callable[..., None], tiny: Path) -> None:
    table({"file": str(tiny)}, name="tiny-quickgelu", config="vit")
    with pytest.raises(
        CalpromptError, match=r"trained with GELU and the model tiny-quickgelu has QuickGELU.*'tiny/mine'"
    ):
        load_backbone("tiny-quickgelu/mine")


@pytest.mark.parametrize("revision", ["", "@main", "@" + "a" * 40])
def test_repository_in_the_cache(tiny: Path, tmp_path: Path, no_network: list[str], revision: str) -> None:
    config = json.dumps({"model_cfg": CONFIGS["gelu"], "preprocess_cfg": HALF_GREY})
    hub_cache(tmp_path, "me/tiny", {"open_clip_config.json": config, "open_clip_pytorch_model.bin": tiny})
    loaded = load_backbone(f"hf-hub:me/tiny{revision}", cache_dir=tmp_path)
    assert_is(loaded, "gelu")
    assert loaded.name == f"hf-hub:me/tiny{revision}"
    assert loaded.preprocessing.resize_mode == "squash"
    assert not no_network


def test_invalid_repository_names_are_reported(no_network: list[str]) -> None:
    with pytest.raises(CalpromptError, match="could not download hf-hub:a--b/c: no network in this test"):
        load_backbone("hf-hub:a--b/c")


def test_half_cached_repositories_are_fetched(tiny: Path, tmp_path: Path, no_network: list[str]) -> None:
    hub_cache(tmp_path, "me/tiny", {"open_clip_pytorch_model.bin": tiny})
    with pytest.raises(CalpromptError, match="could not download hf-hub:me/tiny: no network in this test"):
        load_backbone("hf-hub:me/tiny", cache_dir=tmp_path)
    assert no_network == ["https://huggingface.co/me/tiny"]


@pytest.mark.parametrize("sharded", [False, True])
def test_only_the_files_that_are_needed_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    model = huggingface_model("gelu")
    model.save_pretrained(tmp_path / "repo", **({"max_shard_size": "2MB"} if sharded else {}))
    (tmp_path / "repo" / "flax_model.msgpack").write_text("x")
    (tmp_path / "repo" / "pytorch_model.bin").write_text("x")
    fetched: list[str] = []

    def download(repo_id: str, filename: str, **_: Any) -> str:
        fetched.append(filename)
        return str(tmp_path / "repo" / filename)

    files = sorted(path.name for path in (tmp_path / "repo").iterdir())
    monkeypatch.setattr(sources, "attempt", lambda address, fetch: (fetch(), ""))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: files)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    loaded = load_backbone("hf-hub:me/plip", cache_dir=tmp_path / "cache")
    assert_encodes_like(
        loaded, lambda ids: pooled(model.get_text_features(ids)), lambda x: pooled(model.get_image_features(x))
    )
    assert fetched[0] == "config.json"
    assert fetched[-1] == ("model.safetensors.index.json" if sharded else "model.safetensors")
    assert not {"flax_model.msgpack", "pytorch_model.bin"} & set(fetched)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["README.md"])
    with pytest.raises(CalpromptError, match=r"no weights in repository me/plip: found README\.md"):
        load_backbone("hf-hub:me/plip", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "unreachable", "proxy"])
@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("ViT-B-16-quickgelu/openai", ["timm/vit_base_patch16_clip_224.openai", "/ViT-B-16.pt", "config='ViT-B-16-"]),
        ("ViT-B-32/laion2b_s34b_b79k", ["laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "open_clip_model.safetensors"]),
        ("hf-hub:wisdomik/QuiltNet-B-32", ["wisdomik/QuiltNet-B-32", "open_clip_config.json", "hf download"]),
    ],
)
def test_without_network_one_error_says_all_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    spec: str,
    wanted: list[str],
) -> None:
    for name in ("HF_HUB_OFFLINE", *(each for proxy in sources.PROXIES for each in (proxy, proxy.lower()))):
        monkeypatch.delenv(name, raising=False)
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elif how == "proxy":
        monkeypatch.setenv("HTTPS_PROXY", "127.0.0.1:9")  # where nobody listens
    else:

        def unreachable(address: tuple[str, int], timeout: float) -> None:
            raise OSError(101, "Network is unreachable")

        monkeypatch.setattr(sources.socket, "create_connection", unreachable)
    reason = {"HF_HUB_OFFLINE": "HF_HUB_OFFLINE is set", "proxy": "no connection to the proxy 127.0.0.1 (Connection"}
    start = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(CalpromptError) as caught:
        load_backbone(spec, cache_dir=tmp_path / "cache")
    assert time.monotonic() - start < 5
    said = str(caught.value)
    for part in [*wanted, str(tmp_path / "cache"), reason.get(how, "(Network is unreachable)")]:
        assert part in said
    assert said.startswith("could not download ")
    assert "Hugging Face" in said
    assert "On a machine with a network" in said
    assert f"backbone={'FOLDER' if spec.startswith('hf-hub:') else 'PATH'}" in said
    assert "backbone=pocket-photo is a small CLIP that comes with calprompt" in said
    assert ("set HTTPS_PROXY" in said) == (how == "unreachable")
    assert not caplog.records
    assert not (tmp_path / "cache").exists()
