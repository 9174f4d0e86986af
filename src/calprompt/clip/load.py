"""Loading a backbone: from the package, an open_clip name, a Hugging Face repository, or a local file or folder.

    spec  ->  where the weights are  ->  tensors  ->  one naming  ->  checked against an architecture  ->  model

"pocket", "pocket-photo", …      the small models in the package, see `calprompt.pocket`
"ViT-B-16-quickgelu/openai"      a model and a pretrained tag of open_clip's table
"hf-hub:wisdomik/QuiltNet-B-32"  a repository with open_clip's or Hugging Face's files; "@revision" may follow
"weights/ViT-B-16.pt"            a file or folder ("./…" where open_clip has a name of the same spelling)

Files in a local cache are used without asking the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from calprompt.clip.architecture import Architecture, check, fitting_advice, known_architectures
from calprompt.clip.backbone import Backbone
from calprompt.clip.identity import BackboneIdentity, Config, remember_backbone
from calprompt.clip.model import Clip
from calprompt.clip.open_clip_files import model_configs, open_clip_module
from calprompt.clip.preprocessing import Preprocessing
from calprompt.clip.sources import CONFIGS, PREPROCESSOR, about, find, is_clip_config
from calprompt.clip.weights import INDEX_SUFFIX, State, convert, read_object, read_weights, recognise
from calprompt.errors import BackboneError, Parameter
from calprompt.registry import unknown

if TYPE_CHECKING:
    from open_clip.model import CLIP


def load_backbone(
    spec: str | Path,
    *,
    config: Config | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    cache_dir: str | Path | None = None,
) -> Backbone:
    """Load the backbone that `spec` names.

    Args:
        spec: A name, a repository, a file or a folder, see above.
        config: For a file that does not say its own architecture (or says it wrongly): an open_clip model name, or
            name/tag, which also says how images are prepared; the path of a JSON config, or its content.
        device: Where to put the weights.
        dtype: Precision of all weights but the logit scale, however they are stored; a name such as "bfloat16" will do.
        cache_dir: Where open_clip and Hugging Face keep downloads; theirs, unless given.

    Returns:
        The frozen backbone.

    Raises:
        BackboneError: if the weights cannot be used; `NotFoundError` if they are not there.
    """
    backbone, files = load_with_files(spec, config=config, device=device, dtype=dtype, cache_dir=cache_dir)
    if cache_dir is None:
        kind = str(_dtype(dtype)).removeprefix("torch.")
        remember_backbone(identity_of(backbone), files, spec, config=config, dtype=kind)
    return backbone


def load_with_files(
    spec: str | Path,
    *,
    config: Config | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    cache_dir: str | Path | None = None,
) -> tuple[Backbone, list[Path]]:
    """The backbone, and the files that it depends on; its identity is not cached."""
    dtype, device = _dtype(dtype), _device(device)
    if not isinstance(spec, str | Path):
        raise BackboneError(f"a backbone is a name, such as 'pocket', or a path; got {spec!r}")
    try:
        source = find(spec, Path(cache_dir).expanduser() if cache_dir else None)
    except (OSError, RuntimeError) as error:  # no permission, or an unknown user in "~name"
        raise BackboneError(f"cannot look for backbone {str(spec)!r}: {error}") from error
    if config is not None and source.architecture is not None:
        raise BackboneError(f"config= is for files; backbone {str(spec)!r} has open_clip's config of that name")
    path = source.path
    state = read_weights(path)
    if source.text is not None:
        other = read_weights(source.text)
        state |= {name: value for name, value in other.items() if not name.startswith("visual.") and name not in state}
    with about(path):
        layout = recognise(state)
        state = convert(state, layout)
        architecture, preprocessing = source.architecture, source.preprocessing
        if architecture is None:
            architecture, preprocessing = configured(state, layout, config, path.parent)
        backbone = assemble(architecture, state, layout, preprocessing, source.name, device, dtype)
    beside = [path.parent / name for name in (*CONFIGS.values(), PREPROCESSOR)]
    own = [Path(config)] if isinstance(config, str | Path) and Path(config).is_file() else []
    shards = sorted(path.parent.glob("*.safetensors")) if path.name.endswith(INDEX_SUFFIX) else []
    files = [each.absolute() for each in (path, *beside, *own, *shards, *filter(None, [source.text]))]
    return backbone, files


def identity_of(backbone: Backbone) -> BackboneIdentity:
    """The identity of a backbone, without its weights."""
    depth = backbone.image_depth if backbone.is_vit else None
    known = backbone.name, backbone.fingerprint, backbone.preprocessing
    return BackboneIdentity(*known, backbone.embed_dim, backbone.text_depth, depth)


def fingerprint(architecture: Architecture, model: Clip | CLIP) -> str:
    """sha256 of the architecture and of every tensor's name, shape, dtype and bytes: not of the file they came in."""
    digest = hashlib.sha256(json.dumps(architecture.as_record(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def assemble(
    architecture: Architecture,
    state: State,
    layout: str,
    preprocessing: Preprocessing | None,
    name: str,
    device: str | torch.device,
    dtype: torch.dtype,
) -> Backbone:
    """The frozen model of an architecture with the values of its tensors."""
    model = check(architecture, state, layout)
    if not dtype.is_floating_point:
        raise BackboneError(f"weights cannot be {dtype}, expected torch.float32, float16, bfloat16 or float64")
    values = {}
    for key, slot in model.state_dict().items():
        tensor = state.get(key, torch.zeros(slot.shape, dtype=slot.dtype))  # only a counter can be missing here
        kind = dtype if slot.is_floating_point() else slot.dtype
        if key == "logit_scale":  # 100 would be 98.9 in bfloat16
            kind = torch.promote_types(dtype, torch.float32)
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise BackboneError(
                f"the tensor {key} holds values that are not finite; these weights are damaged, get them again"
            )
        values[key] = tensor.to(device, kind, copy=True, memory_format=torch.contiguous_format)
    model.load_state_dict(values, assign=True)
    for key, buffer in architecture.computed_buffers(model).items():
        module, _, last = key.rpartition(".")
        kind = dtype if buffer.is_floating_point() else buffer.dtype
        setattr(model.get_submodule(module), last, buffer.to(device, kind))
    length = architecture.context_length
    if not isinstance(model, Clip):
        model.attn_mask = torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu_(1)
    model.eval().requires_grad_(False)
    preprocessing = preprocessing or Preprocessing(architecture.image_size)
    return Backbone(model, preprocessing=preprocessing, name=name, fingerprint=fingerprint(architecture, model))


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all values are finite: their sum tells at once, unless it is too large itself."""
    return bool(torch.isfinite(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor).all())


def configured(
    state: State, layout: str, config: Config | None, folder: Path | None
) -> tuple[Architecture, Preprocessing | None]:
    """The architecture from what was given, else from what lies beside the weights, else from OpenAI's own marks."""
    if config is not None:
        architecture, preprocessing = _parse(_read_config(config))
    elif layout == "openai":
        return Architecture.from_openai(state), None
    else:
        beside = _config_beside(folder, layout) if folder else None
        if beside is None:
            raise BackboneError(
                "the activation and the attention heads cannot be seen in weights of this layout, and there is no "
                f"{' or '.join(CONFIGS.values())} beside them. Say it with ",
                Parameter("config", "NAME"),
                f": an open_clip model name, or the path of a JSON config. {fitting_advice(state)}",
            )
        found = read_object(beside)
        with about(beside):
            architecture, preprocessing = _parse(found)
    if layout == "huggingface" and preprocessing is None and folder and (folder / PREPROCESSOR).is_file():
        preprocessing = Preprocessing.from_huggingface(read_object(folder / PREPROCESSOR), architecture.image_size)
    return architecture, preprocessing


def _config_beside(folder: Path, layout: str) -> Path | None:
    """The config of the weights' own library first; a config.json of some other model does not count."""
    for path in sorted((folder / name for name in CONFIGS.values()), key=lambda path: path.name != CONFIGS[layout]):
        if path.is_file() and (
            layout == "huggingface" or path.name != "config.json" or is_clip_config(read_object(path))
        ):
            return path
    return None


def _read_config(config: Config) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    named = model_configs().get(config) if isinstance(config, str) else None
    if named is not None:
        return named
    name, _, tag = str(config).partition("/")
    pretrained = open_clip_module("pretrained")
    if tag in pretrained.list_pretrained_tags_by_model(name):
        return {"model_cfg": model_configs()[name], "preprocess_cfg": pretrained.get_pretrained_cfg(name, tag)}
    path = Path(config).expanduser()
    if path.suffix == ".json" or path.is_file():
        return read_object(path)
    raise unknown("open_clip model", str(config), known_architectures())


def _parse(config: Mapping[str, Any]) -> tuple[Architecture, Preprocessing | None]:
    if {"text_config", "vision_config", "model_type"} & set(config):
        return Architecture.from_huggingface(config), None
    architecture = Architecture.from_open_clip(config.get("model_cfg", config))
    if "preprocess_cfg" not in config:
        return architecture, None
    return architecture, Preprocessing.from_open_clip(config["preprocess_cfg"], architecture.image_size)


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise BackboneError(f"must be float32, float16, bfloat16 or float64, got {dtype!r}", parameter="dtype")
    return found


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        if found.type == "meta":
            raise RuntimeError("it has shapes and no numbers")
        torch.ones(1, device=found).sum().item()  # so that it is known to compute
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BackboneError(f"cannot use device {str(device)!r}: {reason}. 'cpu' always works.") from error
    return found
