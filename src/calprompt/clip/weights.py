"""Tensors by name from a weights file of any format, under one naming, without ever running code that is in the file.

safetensors            read as it is: the format contains no code
PyTorch checkpoint     `torch.load(weights_only=True)`: a pickle limited to tensors and plain containers
TorchScript archive    OpenAI's .pt files. `torch.jit.load` would compile the program inside, so it is read here: a zip
                       of data.pkl (modules as nested attributes) and data/<key> (raw storages). The pickle may refer
                       to a few names only, all defined here; modules become empty placeholders.

The format is recognised from the first bytes, not from the file's extension.

layout         recognised by                           activation            heads
openai         input_resolution, context_length and    QuickGELU             64 channels each
               vocab_size among its tensors
huggingface    text_model.* and vision_model.* names   config.json           config.json
open_clip      anything else                           open_clip's config    open_clip's config

The result has the names of open_clip's class `CLIP`.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from calprompt.errors import BackboneError, CalpromptError
from calprompt.files import read_json
from calprompt.text import shorten

State = dict[str, torch.Tensor]

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
INDEX_SUFFIX = ".index.json"

_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}
_LISTS = {"build_intlist", "build_tensorlist", "build_doublelist", "build_boollist", "restore_type_tag"}
_DEEPEST = 32  # modules inside modules; CLIP has six


def read_weights(path: Path) -> State:
    """Read all tensors of a file; checkpoints are unwrapped and the prefixes of training wrappers removed."""
    if path.name.endswith(INDEX_SUFFIX):
        return _read_shards(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise BackboneError(
            f"cannot read {path}: {error.strerror or error}. Check the path and your permission to read it."
        ) from error
    if not head:
        raise BackboneError(f"{path} is empty (0 bytes), expected weights; download it again")
    if head.startswith(b"version https://git-lfs"):
        raise BackboneError(
            f"{path} is a Git LFS pointer, not the weights themselves. Fetch them with "
            f"'git lfs pull --include {path.name}' in its repository, or download the file again."
        )
    if head[8:9] == b"{":  # eight bytes of length, then the JSON header
        with _intact(path, "safetensors file"):
            return _unwrap(load_file(path), path)
    if head.startswith(b"PK\x03\x04"):
        return _unwrap(_read_zip(path), path)
    if head.startswith(b"\x80"):
        return _unwrap(_read_checkpoint(path), path)
    raise BackboneError(
        f"{path} is not a weights file: it begins with {head[:16]!r}. "
        "Expected safetensors, a PyTorch checkpoint or a TorchScript archive; download it again."
    )


def read_object(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise BackboneError(f"{path} holds a JSON {type(values).__name__}, expected an object")
    return values


def _read_shards(index: Path) -> State:
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise BackboneError(f"{index} has no 'weight_map' from tensor names to files")
    state: State = {}
    for name in sorted(set(files.values())):
        if Path(name).name != name:
            raise BackboneError(f"{index} points outside its folder, to {name!r}; shards must lie beside it")
        state.update(read_weights(index.parent / name))
    return state


@contextmanager
def _intact(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes an error that names the file."""
    try:
        yield
    except CalpromptError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise BackboneError(
            f"{path} is a damaged or truncated {kind} ({path.stat().st_size} bytes): {reason}. Download it again."
        ) from error


def _read_zip(path: Path) -> Any:
    with _intact(path, "PyTorch archive"), zipfile.ZipFile(path) as archive:
        roots = {name.split("/")[0] for name in archive.namelist() if name.endswith("/constants.pkl")}
        if roots:
            unpickler = _ArchiveUnpickler(path, archive, min(roots))
            return OrderedDict(unpickler.tensors(unpickler.load()))
    return _read_checkpoint(path)


def _read_checkpoint(path: Path) -> Any:
    with _intact(path, "PyTorch checkpoint"), path.open("rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL ([\w.]+)", str(error))
            if refused:
                raise _refused(path, refused[1]) from error
            detail = re.search(r"WeightsUnpickler error: (.+)", str(error))
            raise ValueError(detail[1] if detail else "its pickle cannot be read") from error


class _ArchiveUnpickler(pickle.Unpickler):
    """Reads data.pkl of a TorchScript archive; the pickle reaches only what `find_class` returns, which is harmless."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self._path, self._archive, self._root = path, archive, root
        self._module = type("Module", (), {})  # a new class for every file, because a pickle can write its attributes
        self._storages: State = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return self._module
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("collections", "OrderedDict"):  # the (empty) hooks of a tensor
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch.jit._pickle" and name in _LISTS:
            return self._first
        raise _refused(self._path, f"{module}.{name}")

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, dtype, key, _device, count = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise ValueError(f"unexpected reference {pid!r}")
        if key not in self._storages:
            entry = self._archive.getinfo(f"{self._root}/data/{key}")
            if entry.file_size != count * dtype.itemsize:
                raise ValueError(f"storage {key} has {entry.file_size} bytes, expected {count * dtype.itemsize}")
            raw = bytearray(self._archive.read(entry))
            self._storages[key] = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        return self._storages[key]  # [count]

    def tensors(self, module: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
        """Dotted names of the tensors among a module's attributes and those of its submodules."""
        if prefix.count(".") > _DEEPEST:
            raise ValueError(f"modules nested deeper than {_DEEPEST}")
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield prefix + name, value
            elif isinstance(value, self._module):
                yield from self.tensors(value, f"{prefix}{name}.")

    def _tensor(self, storage: torch.Tensor, offset: int, size: Any, stride: Any, *_: Any) -> torch.Tensor:
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage.numel()):
            raise ValueError(f"a tensor of shape {tuple(size)} reaches outside its storage")
        return storage.as_strided(size, stride, offset)

    def _first(self, value: Any, *_: Any) -> Any:
        return value


def _unwrap(checkpoint: Any, path: Path) -> State:
    for key in ("state_dict", "model"):
        if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get(key), Mapping):
            checkpoint = checkpoint[key]
    if not isinstance(checkpoint, Mapping) or not checkpoint:
        raise BackboneError(
            f"{path} holds {'nothing' if isinstance(checkpoint, Mapping) else type(checkpoint).__name__}, expected "
            "tensors by name or a training checkpoint with 'state_dict'"
        )
    state = {str(name): torch.tensor(value) if type(value) is int else value for name, value in checkpoint.items()}
    invalid = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if invalid:
        raise BackboneError(
            f"{path} holds things that are not tensors ({shorten(invalid)}), expected tensors by name or a training "
            "checkpoint with 'state_dict'"
        )
    for prefix in ("module.", "_orig_mod.", "module."):  # data-parallel wrappers, torch.compile
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _refused(path: Path, name: str) -> BackboneError:
    return BackboneError(
        f"{path} refers to {name!r}, which is not part of weights; nothing in it was run. Loading such a file can run "
        "whatever its author wrote. If you trust it, load it with its own library and save its tensors as .safetensors."
    )


_MARKERS = ("input_resolution", "context_length", "vocab_size")

_HF_TENSORS = {
    "logit_scale": "logit_scale",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
}
_HF_TRANSPOSED = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}
_HF_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}

_FOREIGN = {  # prefixes of tensor names that only other models have
    "logit_bias": "a SigLIP model (logit_bias); its scores are not CLIP's",
    "visual.attn_pool.": "attentional pooling (visual.attn_pool); class-token pooling is supported",
    "text_decoder.": "CoCa (text_decoder); CLIP is supported",
    "text.transformer.embeddings.": "a Hugging Face text tower (text.transformer.embeddings); CLIP's own is supported",
    "cls_emb": "a text tower pooled at a class token (cls_emb); pooling at end-of-text is supported",
}


def recognise(state: State) -> str:
    if all(marker in state for marker in _MARKERS):
        return "openai"
    if any(name.startswith(("text_model.", "vision_model.")) for name in state):
        return "huggingface"
    return "open_clip"


def convert(state: State, layout: str) -> State:
    """The same tensors under the names of open_clip's class `CLIP`."""
    state = _from_huggingface(state) if layout == "huggingface" else dict(state)
    if "text.token_embedding.weight" in state:  # open_clip's CustomTextCLIP
        state = {name.removeprefix("text."): tensor for name, tensor in state.items()}
    for prefix, model in _FOREIGN.items():
        if any(name.startswith(prefix) for name in state):
            raise BackboneError(f"these are weights of {model}")
    ignored = _MARKERS if layout == "openai" else ()
    state = {name: tensor for name, tensor in state.items() if name not in ignored and not name.endswith("attn_mask")}
    if "logit_scale" in state and state["logit_scale"].numel() == 1:
        state["logit_scale"] = state["logit_scale"].reshape(())
    return state


def _from_huggingface(state: State) -> State:
    converted: State = {}
    for name, tensor in state.items():
        block = re.fullmatch(r"(text|vision)_model\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if name.endswith("position_ids"):
            continue
        if block is None:
            if name in _HF_TRANSPOSED:
                converted[_HF_TRANSPOSED[name]] = tensor.T
            else:
                converted[_HF_TENSORS.get(name, name)] = tensor
            continue
        tower, number, part, kind = block.groups()
        prefix = f"{'visual.' if tower == 'vision' else ''}transformer.resblocks.{number}."
        if part == "self_attn.q_proj":
            rows = [name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"]
            missing = [row for row in rows if row not in state]
            if missing:
                raise BackboneError(f"missing tensors: {shorten(missing)}")
            converted[f"{prefix}attn.in_proj_{kind}"] = torch.cat([state[row] for row in rows])  # [3 width, ...]
        elif part not in ("self_attn.k_proj", "self_attn.v_proj"):
            converted[f"{prefix}{_HF_BLOCK.get(part, part)}.{kind}"] = tensor
    return converted
