"""Weights are read from every container, and nothing that a file carries is ever run."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from calprompt.clip.weights import read_weights
from calprompt.errors import CalpromptError

pytestmark = [  # of torch.jit, which makes the archives under test, and of torch.load about odd pickles
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:torch.tensor results are registered as constants"),
    pytest.mark.filterwarnings("ignore:Detected pickle protocol"),
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)
        self.ln_1 = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ln_1(x)


class Tower(nn.Module):
    """Parameters, buffers, nesting, half precision, views, plain attributes and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Parameter(torch.randn(3, 2).half())
        self.logit_scale = nn.Parameter(torch.tensor(1.5))
        self.turned = nn.Parameter(torch.randn(4, 6).T)
        self.bn = nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(Block(), Block())
        self.register_buffer("input_resolution", torch.tensor(32))
        self.context_length = 77
        self.sizes = [1, 2, 3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x) + self.logit_scale + torch.tensor([2.0])


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert sorted(got) == sorted(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.randn(3, 4), "a.bias": torch.randn(3).half(), "scale": torch.tensor(2.0)}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("legacy", [False, True])
def test_checkpoints(tmp_path: Path, state: dict, wrapped: bool, prefix: str, legacy: bool) -> None:
    saved: Any = OrderedDict((prefix + name, tensor) for name, tensor in state.items())
    if wrapped:
        saved = {"epoch": 3, "name": "run", "state_dict": saved, "optimizer": {"state": {0: torch.ones(2)}}}
    torch.save(saved, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    assert_same(read_weights(tmp_path / "w.pt"), state)


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "no_suffix"])
def test_the_container_is_seen_in_the_bytes_not_in_the_name(tmp_path: Path, state: dict, name: str) -> None:
    save_file(state, tmp_path / name)
    assert_same(read_weights(tmp_path / name), state)
    torch.save(state, tmp_path / name)
    assert_same(read_weights(tmp_path / name), state)


def test_shards(tmp_path: Path, state: dict) -> None:
    names = list(state)
    save_file({names[0]: state[names[0]]}, tmp_path / "m-1.safetensors")
    save_file({name: state[name] for name in names[1:]}, tmp_path / "m-2.safetensors")
    weight_map = {name: f"m-{1 if name == names[0] else 2}.safetensors" for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_same(read_weights(index), state)
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(CalpromptError, match=r"m-2\.safetensors"):
        read_weights(index)
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(CalpromptError, match="outside its folder"):
        read_weights(index)
    index.write_text(json.dumps({"weights": {}}))
    with pytest.raises(CalpromptError, match="weight_map"):
        read_weights(index)


@pytest.mark.parametrize("way", ["script", "trace"])
def test_torchscript_archives_give_the_state_dict_of_torch(tmp_path: Path, way: str) -> None:
    tower = Tower().eval()
    path = tmp_path / "tower.pt"
    archive = torch.jit.script(tower) if way == "script" else torch.jit.trace(tower, torch.randn(2, 8))
    torch.jit.save(archive, str(path))
    assert_same(read_weights(path), dict(torch.jit.load(str(path)).state_dict()))


def test_torchscript_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.jit.save(torch.jit.script(Tower()), str(tmp_path / "tower.pt"))

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.jit.load was called")

    monkeypatch.setattr(torch.jit, "load", never)
    monkeypatch.setattr(torch, "load", never)
    assert "blocks.1.attn.out_proj.weight" in read_weights(tmp_path / "tower.pt")


class Attack:
    """Pickles into a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


ATTACKS = {
    "system": lambda flag: Attack(os.system, f"touch {flag}"),
    "exec": lambda flag: Attack(exec, f"open({str(flag)!r}, 'w')"),
    "eval": lambda flag: Attack(eval, f"open({str(flag)!r}, 'w')"),
    "open": lambda flag: Attack(open, str(flag), "w"),
    "getattr": lambda flag: Attack(getattr, Attack(__import__, "os"), "system"),
    "torch": lambda flag: Attack(torch.load, str(flag)),
}


def as_torchscript(payload: bytes, path: Path) -> None:
    """A TorchScript archive whose module pickle is `payload`."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", payload)
        archive.writestr("m/constants.pkl", pickle.dumps(()))
        archive.writestr("m/version", "3")
        archive.writestr("m/data/0", bytes(16))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("form", ["checkpoint", "legacy", "pickle", "torchscript"])
@pytest.mark.parametrize("nested", [False, True])
def test_malicious_pickles_are_refused_by_name(tmp_path: Path, attack: str, form: str, nested: bool) -> None:
    flag, path = tmp_path / "it_ran", tmp_path / "evil.pt"
    thing: Any = ATTACKS[attack](flag)
    thing = {"state_dict": {"weight": torch.ones(2), "bias": thing}} if nested and form != "torchscript" else thing
    if form in ("checkpoint", "legacy"):
        torch.save(thing, path, _use_new_zipfile_serialization=form == "checkpoint")
    elif form == "pickle":
        path.write_bytes(pickle.dumps(thing, protocol=4 if nested else 2))
    else:
        as_torchscript(pickle.dumps(OrderedDict(a=thing) if nested else thing, protocol=4 if nested else 2), path)
    with pytest.raises(CalpromptError) as caught:
        read_weights(path)
    assert not flag.exists()
    assert str(path) in str(caught.value)
    if form != "pickle":  # torch does not say more of a pickle that is no checkpoint at all
        assert {"torch": "load", "getattr": ""}.get(attack, attack) in str(caught.value)
        assert "nothing in it was run" in str(caught.value)


def test_refused_globals_of_archives_are_named_in_full(tmp_path: Path) -> None:
    for function, name in ((os.system, "system"), (exec, "builtins.exec"), (eval, "builtins.eval")):
        as_torchscript(pickle.dumps(Attack(function, "x")), tmp_path / "evil.pt")
        with pytest.raises(CalpromptError, match=name):
            read_weights(tmp_path / "evil.pt")


@pytest.mark.parametrize("protocol", range(6))
def test_whitelisted_names_do_not_open_a_way(tmp_path: Path, protocol: int) -> None:
    """Dotted names must not reach through a whitelisted thing to its attributes."""
    names = [("collections", "OrderedDict.__init__.__globals__"), ("torch._utils", "_rebuild_tensor_v2.__globals__")]
    for module, name in [
        *names,
        ("torch", "FloatStorage.__class__"),
        ("__torchevil__", "x"),
        ("torch.jit._pickle", "os"),
    ]:
        if protocol < 4:
            payload = f"c{module}\n{name}\n.".encode()
        else:
            payload = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93."
        as_torchscript(payload, tmp_path / "evil.pt")
        with pytest.raises(CalpromptError, match="refers to"):
            read_weights(tmp_path / "evil.pt")


def tensor_pickle(size: tuple, stride: tuple, offset: int = 0, count: int = 4, key: str = "0") -> bytes:
    """A module with one attribute `w`, a float tensor over storage `key`, as TorchScript writes it."""

    class Module:
        pass

    class Pickler(pickle._Pickler):  # the one in Python, whose output is easy to make name things that do not exist
        def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
            if isinstance(obj, Module):
                self.write(b"c__torch__\nTower\n)\x81")
                super().save(vars(obj))
                return self.write(b"b")
            if isinstance(obj, tuple) and obj and obj[0] == "tensor":
                self.write(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n")
                for part in (obj[1], "cpu", obj[2]):
                    super().save(part)
                self.write(b"tQ")
                for part in (*obj[3:], False):
                    super().save(part)
                self.write(b"ccollections\nOrderedDict\n)RtR")
                return None
            return super().save(obj, save_persistent_id)

    module = Module()
    module.w = ("tensor", key, count, offset, size, stride)  # type: ignore[attr-defined]
    file = io.BytesIO()
    Pickler(file, protocol=2).dump(module)
    return file.getvalue()


def test_hand_made_archive(tmp_path: Path) -> None:
    as_torchscript(tensor_pickle((2, 2), (2, 1)), tmp_path / "w.pt")
    assert_same(read_weights(tmp_path / "w.pt"), {"w": torch.zeros(2, 2)})


@pytest.mark.parametrize(
    "bad",
    [
        {"size": (2, 3), "stride": (3, 1)},
        {"size": (4,), "stride": (1,), "offset": 1},
        {"size": (4,), "stride": (2,)},
        {"size": (2,), "stride": (-1,), "offset": 1},
        {"size": (-1,), "stride": (1,)},
        {"size": (1,), "stride": (1,), "offset": -1},
        {"size": (2, 2), "stride": (1,)},
        {"size": (4,), "stride": (1,), "count": 5},
        {"size": (4,), "stride": (1,), "count": 10**15},
        {"size": (4,), "stride": (1,), "key": "7"},
        {"size": (4,), "stride": (1,), "key": "../constants.pkl"},
    ],
)
def test_tensors_cannot_reach_outside_their_storage(tmp_path: Path, bad: dict) -> None:
    as_torchscript(tensor_pickle(**bad), tmp_path / "w.pt")
    with pytest.raises(CalpromptError, match="damaged"):
        read_weights(tmp_path / "w.pt")


def test_a_module_inside_itself_ends(tmp_path: Path) -> None:
    # m = Tower(); m.self = m
    as_torchscript(b"\x80\x02c__torch__\nTower\n)\x81q\x00}X\x04\x00\x00\x00selfh\x00sb.", tmp_path / "w.pt")
    with pytest.raises(CalpromptError, match="nested deeper"):
        read_weights(tmp_path / "w.pt")


def test_writing_to_the_placeholder_class_harms_no_later_read(tmp_path: Path) -> None:
    # (Tower class).__setstate__ = OrderedDict, through the slots half of a BUILD
    slots = b"\x80\x02c__torch__\nTower\nN}X\x0c\x00\x00\x00__setstate__ccollections\nOrderedDict\ns\x86b."
    as_torchscript(slots, tmp_path / "evil.pt")
    with pytest.raises(CalpromptError):
        read_weights(tmp_path / "evil.pt")
    as_torchscript(tensor_pickle((4,), (1,)), tmp_path / "w.pt")
    assert list(read_weights(tmp_path / "w.pt")) == ["w"]


def make(kind: str, path: Path) -> None:
    """A healthy file of each kind."""
    if kind == "safetensors":
        save_file({"w": torch.randn(64, 64)}, path)
    elif kind == "torchscript":
        torch.jit.save(torch.jit.script(Tower()), str(path))
    else:
        torch.save({"w": torch.randn(64, 64)}, path, _use_new_zipfile_serialization=kind == "checkpoint")


@pytest.mark.parametrize("kind", ["safetensors", "checkpoint", "legacy", "torchscript"])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.7, 0.99])
def test_truncated_files(tmp_path: Path, kind: str, kept: float) -> None:
    path = tmp_path / "w.pt"
    make(kind, path)
    path.write_bytes(path.read_bytes()[: max(12, int(path.stat().st_size * kept))])
    with pytest.raises(CalpromptError, match=r"w\.pt is (a damaged or truncated|not a weights file)"):
        read_weights(path)


@pytest.mark.parametrize("kind", ["checkpoint", "legacy", "torchscript"])
def test_flipped_bytes_never_escape_as_another_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "w.pt"
    make(kind, path)
    healthy = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        damaged = bytearray(healthy)
        for place in torch.randint(0, len(healthy), (8,), generator=generator).tolist():
            damaged[place] ^= 0x5A
        path.write_bytes(damaged)
        try:
            read_weights(path)
        except CalpromptError as error:
            assert "w.pt" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello, this is a text file and no weights", "not a weights file: it begins with b'hello"),
        (b"<!DOCTYPE html><html>404</html>", "not a weights file"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{garbage garbage garbage", "damaged or truncated safetensors"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", "damaged or truncated safetensors"),
        (b"PK\x03\x04 and nothing that follows", "damaged or truncated PyTorch archive"),
        (b"\x80\x02 and nothing that follows", "damaged or truncated PyTorch checkpoint"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 1234567\n",
            r"Git LFS pointer.*git lfs pull --include w\.safetensors",
        ),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(CalpromptError, match=message):
        read_weights(path)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([torch.ones(2)], "holds list"),
        ({}, "holds nothing"),
        ({"weights": torch.ones(2), "epoch": "three"}, "not tensors.*epoch"),
        (torch.ones(2), "holds Tensor"),
    ],
)
def test_foreign_checkpoints_are_refused(tmp_path: Path, thing: Any, message: str) -> None:
    torch.save(thing, tmp_path / "w.pt")
    with pytest.raises(CalpromptError, match=message):
        read_weights(tmp_path / "w.pt")


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CalpromptError, match="cannot read"):
        read_weights(tmp_path / "absent.pt")
    with pytest.raises(CalpromptError, match="cannot read"):
        read_weights(tmp_path)
    path = tmp_path / "w.pt"
    torch.save({"w": torch.ones(2)}, path)

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(CalpromptError, match=r"cannot read .*w\.pt: Permission denied.*permission"):
        read_weights(path)
