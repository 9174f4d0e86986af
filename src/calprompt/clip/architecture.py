"""The shape of a CLIP: read from a config or measured on its tensors, which are checked against each other.

Widths, depths and sizes follow from the tensors. The activation and the number of heads do not, so those come from a
config or from the openai layout, and are never guessed.
"""

from __future__ import annotations

import contextlib
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from calprompt.clip.model import Clip
from calprompt.clip.open_clip_files import VOCABULARY, config_defaults, model_configs
from calprompt.clip.weights import State
from calprompt.errors import BackboneError, CalpromptError
from calprompt.registry import unknown
from calprompt.text import shorten

if TYPE_CHECKING:
    from open_clip.model import CLIP, CLIPVisionCfg

_FILLS = {
    getattr(torch.Tensor, name)
    for name in ("add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_")
}
_EPSILON = 1e-5  # of every LayerNorm in CLIP

# Fields of open_clip's configs that define the shape, and those that do not matter to frozen CLIP towers.
_VISION_SHAPE = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "timm_model_name"}
_TEXT_SHAPE = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
_IGNORED_FIELDS = re.compile(
    r"patch_dropout|output_tokens|attn_pooler_\w+|timm_\w+"
    r"|pad_id|eos_id|hf_(model_pretrained|proj_type|pooler_type)"
)
_TOP_FIELDS = {
    "embed_dim",
    "vision_cfg",
    "text_cfg",
    "quick_gelu",
    "custom_text",
    "init_logit_scale",
    "nonscalar_logit_scale",
}

# Defaults of Hugging Face's CLIP config for fields that a config.json leaves out.
_HF_TOWER = {"hidden_act": "quick_gelu", "layer_norm_eps": _EPSILON, "num_hidden_layers": 12}
_HF_TEXT = _HF_TOWER | {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": VOCABULARY,
    "eos_token_id": VOCABULARY - 1,
}
_HF_VISION = _HF_TOWER | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "num_channels": 3,
}


@dataclass(frozen=True)
class TimmTower:
    """An image tower of timm's, and how open_clip makes a feature of its output."""

    model_name: str  # as timm knows it
    pool: str = "avg"  # how positions are pooled: avg, token, map, abs_attn, rot_attn; "" as the model itself does
    proj: str = "linear"  # what follows: "linear", "mlp", "none", or "" for the model's own head
    proj_bias: bool = False  # whether the projection has a bias

    def __post_init__(self) -> None:
        import timm

        if not timm.is_model(self.model_name):
            raise unknown("timm model", self.model_name, timm.list_models())


class _WithoutValues(TorchFunctionMode):
    """Leaves tensors of the meta device as they are: filling them, as timm does a layer at a time, only takes long."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Architecture:
    """The shape of a CLIP: everything that is needed to build it, and nothing that does not change its output.

    A residual network has four numbers of `vision_layers`, `patch_size` None and `vision_mlp` 0. Of a tower of timm's
    all fields of the image tower but `image_size` are 0 or None, and `timm` says what it is.
    """

    embed_dim: int  # dimension of the features
    quick_gelu: bool  # whether the activation is QuickGELU, otherwise GELU
    image_size: int  # side of the image in pixels
    patch_size: int | None  # side of a patch in pixels
    vision_width: int  # width of the image tower
    vision_layers: int | tuple[int, ...]  # blocks of the image tower
    vision_heads: int  # attention heads of the image tower
    vision_mlp: int  # hidden width of the image tower's MLPs
    context_length: int  # tokens that the text tower reads
    vocab_size: int  # tokens of the vocabulary
    text_width: int  # width of the text tower
    text_layers: int  # blocks of the text tower
    text_heads: int  # attention heads of the text tower
    text_mlp: int  # hidden width of the text tower's MLPs
    timm: TimmTower | None = None  # the image tower, if it is one of timm's

    def __post_init__(self) -> None:
        if self.vocab_size != VOCABULARY:
            raise BackboneError(
                f"a vocabulary of {self.vocab_size} is not supported; expected CLIP's byte-pair vocabulary "
                f"of {VOCABULARY} (token_embedding.weight)"
            )
        towers = {"text": (self.text_width, self.text_heads)}
        if self.timm is None:
            channels = self.vision_width if self.patch_size else self.vision_width * 32
            towers["vision"] = (channels, self.vision_heads)
        for tower, (width, heads) in towers.items():
            if heads < 1 or width % heads:
                raise BackboneError(f"{tower} width {width} cannot be divided among {heads} attention heads")

    @property
    def grid(self) -> int:
        """Positions along a side of the image."""
        return self.image_size // (self.patch_size or 32)

    def build(self) -> Clip | CLIP:
        """The model on the meta device: names and shapes, no values; open_clip's for other towers than ViTs."""
        if self.timm is not None or self.patch_size is None:
            return self.build_open_clip()
        with torch.device("meta"):
            return Clip(self)

    def build_open_clip(self) -> CLIP:
        from open_clip.model import CLIP, CLIPTextCfg

        text = CLIPTextCfg(
            context_length=self.context_length,
            vocab_size=self.vocab_size,
            width=self.text_width,
            heads=self.text_heads,
            layers=self.text_layers,
            mlp_ratio=_ratio(self.text_mlp, self.text_width),
        )
        with torch.device("meta"), _WithoutValues():
            return CLIP(self.embed_dim, self._vision(), text, quick_gelu=self.quick_gelu)

    def _vision(self) -> CLIPVisionCfg:
        from open_clip.model import CLIPVisionCfg

        if self.timm is not None:
            fields = {f"timm_{name}": value for name, value in asdict(self.timm).items()}
            return CLIPVisionCfg(image_size=self.image_size, **fields)
        channels = self.vision_width if self.patch_size else self.vision_width * 32
        return CLIPVisionCfg(
            layers=self.vision_layers,
            width=self.vision_width,
            head_width=channels // self.vision_heads,
            mlp_ratio=_ratio(self.vision_mlp, self.vision_width),
            patch_size=self.patch_size,
            image_size=self.image_size,
        )

    def computed_buffers(self, model: Clip | CLIP) -> dict[str, torch.Tensor]:
        """Tensors of a model that are neither weights nor in any file, such as where an attention looks."""
        if self.timm is None:
            return {}
        from open_clip.model import _build_vision_tower

        stored = model.state_dict()
        if all(name in stored for name, _ in model.visual.named_buffers(prefix="visual")):
            return {}
        real = _build_vision_tower(self.embed_dim, self._vision(), self.quick_gelu)
        return {name: value for name, value in real.named_buffers(prefix="visual") if name not in stored}

    def as_record(self) -> dict[str, Any]:
        """The input of a fingerprint; without `timm` where there is none."""
        return {name: value for name, value in asdict(self).items() if name != "timm" or value is not None}

    @classmethod
    def from_open_clip(cls, config: Mapping[str, Any]) -> Architecture:
        if config.get("multimodal_cfg"):
            raise _unsupported("multimodal_cfg", config["multimodal_cfg"], "CLIP, without it (this is CoCa)")
        if config.get("init_logit_bias") is not None:
            raise _unsupported("init_logit_bias", config["init_logit_bias"], "CLIP, without it (this is SigLIP)")
        for name in config:
            if name not in _TOP_FIELDS | {"multimodal_cfg", "init_logit_bias"}:
                raise unknown("field of an open_clip config", str(name), _TOP_FIELDS)
        vision = _tower("vision_cfg", config, config_defaults("CLIPVisionCfg"), _VISION_SHAPE)
        text = _tower("text_cfg", config, config_defaults("CLIPTextCfg"), _TEXT_SHAPE)
        return cls(
            embed_dim=_whole("embed_dim", config.get("embed_dim")),
            quick_gelu=bool(config.get("quick_gelu", False)),
            image_size=_whole("vision_cfg.image_size", vision["image_size"]),
            **_vision_fields(vision),
            context_length=_whole("text_cfg.context_length", text["context_length"]),
            vocab_size=_whole("text_cfg.vocab_size", text["vocab_size"]),
            text_width=_whole("text_cfg.width", text["width"]),
            text_layers=_whole("text_cfg.layers", text["layers"]),
            text_heads=_whole("text_cfg.heads", text["heads"]),
            text_mlp=int(text["width"] * text["mlp_ratio"]),
        )

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Architecture:
        """From the config.json of a Hugging Face `CLIPModel`."""
        if config.get("model_type", "clip") != "clip":
            raise _unsupported("model_type", config["model_type"], "'clip'")
        # files of 2022 have each section twice; *_config_dict takes precedence
        text = _HF_TEXT | _last_section(config, "text_config", "text_config_dict")
        vision = _HF_VISION | _last_section(config, "vision_config", "vision_config_dict")
        if text["hidden_act"] != vision["hidden_act"]:
            raise _unsupported(
                "text_config.hidden_act",
                text["hidden_act"],
                f"that of vision_config.hidden_act, {vision['hidden_act']!r}: one activation for both towers",
            )
        if text["hidden_act"] not in ("quick_gelu", "gelu"):
            raise _unsupported("text_config.hidden_act", text["hidden_act"], "'quick_gelu' or 'gelu'")
        for field, value in (("text_config", text), ("vision_config", vision)):
            if value["layer_norm_eps"] != _EPSILON:
                raise _unsupported(f"{field}.layer_norm_eps", value["layer_norm_eps"], str(_EPSILON))
        if text["eos_token_id"] not in (2, VOCABULARY - 1):  # in old files 2 stands for the largest id
            raise _unsupported(
                "text_config.eos_token_id", text["eos_token_id"], f"{VOCABULARY - 1}, CLIP's end of text"
            )
        if vision["num_channels"] != 3:
            raise _unsupported("vision_config.num_channels", vision["num_channels"], "3")
        return cls(
            embed_dim=_whole("projection_dim", config.get("projection_dim", 512)),
            quick_gelu=text["hidden_act"] == "quick_gelu",
            image_size=_whole("vision_config.image_size", vision["image_size"]),
            patch_size=_whole("vision_config.patch_size", vision["patch_size"]),
            vision_width=_whole("vision_config.hidden_size", vision["hidden_size"]),
            vision_layers=_whole("vision_config.num_hidden_layers", vision["num_hidden_layers"]),
            vision_heads=_whole("vision_config.num_attention_heads", vision["num_attention_heads"]),
            vision_mlp=_whole("vision_config.intermediate_size", vision["intermediate_size"]),
            context_length=_whole("text_config.max_position_embeddings", text["max_position_embeddings"]),
            vocab_size=_whole("text_config.vocab_size", text["vocab_size"]),
            text_width=_whole("text_config.hidden_size", text["hidden_size"]),
            text_layers=_whole("text_config.num_hidden_layers", text["num_hidden_layers"]),
            text_heads=_whole("text_config.num_attention_heads", text["num_attention_heads"]),
            text_mlp=_whole("text_config.intermediate_size", text["intermediate_size"]),
        )

    @classmethod
    def from_openai(cls, state: State) -> Architecture:
        """From the tensors: OpenAI's models all have QuickGELU and 64 channels per head."""
        shape = {name: value for name, (value, _) in measure(state).items()}
        channels = shape["vision_width"] * (1 if shape["patch_size"] else 32)
        image_size = shape.pop("grid") * (shape["patch_size"] or 32)
        heads = {"vision_heads": channels // 64, "text_heads": shape["text_width"] // 64}
        return cls(quick_gelu=True, image_size=image_size, **heads, **shape)


def measure(state: State) -> dict[str, tuple[Any, str]]:
    """The fields of the architecture that follow from the tensors: field -> (value, the tensor it was read from)."""

    def size(name: str, axis: int) -> tuple[int, str]:
        if name not in state:
            raise BackboneError(
                f"no tensor {name!r}, which every CLIP of this kind has; found {shorten(sorted(state))}. "
                "Is this a whole CLIP model?"
            )
        if state[name].ndim <= axis:
            raise BackboneError(f"tensor {name!r} has shape {tuple(state[name].shape)}, expected more axes")
        return state[name].shape[axis], name

    def count(prefix: str) -> tuple[int, str]:
        return len({name[len(prefix) :].split(".")[0] for name in state if name.startswith(prefix)}), f"{prefix}*"

    fields = {
        "embed_dim": size("text_projection", 1),
        "context_length": size("positional_embedding", 0),
        "vocab_size": size("token_embedding.weight", 0),
        "text_width": size("token_embedding.weight", 1),
        "text_layers": count("transformer.resblocks."),
        "text_mlp": size("transformer.resblocks.0.mlp.c_fc.weight", 0),
    }
    if is_timm(state):  # its shape is not in a few tensors: `check` compares them all
        return fields
    vit = "visual.class_embedding" in state
    positions, where = size(f"visual.{'' if vit else 'attnpool.'}positional_embedding", 0)
    grid = round(max(positions - 1, 0) ** 0.5)
    if grid**2 + 1 != positions:
        raise BackboneError(f"tensor {where!r} has {positions} positions, expected a square number and one")
    if vit:
        fields |= {
            "patch_size": size("visual.conv1.weight", 3),
            "vision_width": size("visual.conv1.weight", 0),
            "vision_layers": count("visual.transformer.resblocks."),
            "vision_mlp": size("visual.transformer.resblocks.0.mlp.c_fc.weight", 0),
        }
        return {**fields, "grid": (grid, where)}
    layers = tuple(count(f"visual.layer{stage}.")[0] for stage in (1, 2, 3, 4))
    width = size("visual.layer1.0.conv1.weight", 0)
    return {
        **fields,
        "patch_size": (None, where),
        "vision_width": width,
        "vision_layers": (layers, "visual.layer*"),
        "vision_mlp": (0, where),
        "grid": (grid, where),
    }


def is_timm(state: State) -> bool:
    """Whether the image tower is one of timm's, by the names of its tensors."""
    return any(name.startswith("visual.trunk.") for name in state)


def check(architecture: Architecture, state: State, layout: str) -> Clip | CLIP:
    """Check that the tensors are those of the architecture, first by its fields, then tensor by tensor."""
    if is_timm(state) != (architecture.timm is not None):
        kinds = ("ViT or a ModifiedResNet", "tower of timm's (visual.trunk)")
        raise BackboneError(
            f"the config does not fit the weights: its image tower is a {kinds[architecture.timm is not None]}, "
            f"that of the weights a {kinds[is_timm(state)]}. {fitting_advice(state)}"
        )
    for field, (value, tensor) in measure(state).items():
        expected = getattr(architecture, field)
        if expected != value:
            label = "grid (image_size / patch_size)" if field == "grid" else field
            raise BackboneError(
                f"the config does not fit the weights: {label} is {expected} in the config, but {value} in the weights "
                f"(tensor {tensor!r}). {fitting_advice(state)}"
            )
    if layout == "openai":
        openai = Architecture.from_openai(state)
        for field in ("quick_gelu", "vision_heads", "text_heads"):
            if getattr(architecture, field) != getattr(openai, field):
                raise BackboneError(
                    f"the config does not fit the weights: {field} is {getattr(architecture, field)} in the config, "
                    f"but {getattr(openai, field)} in all weights of OpenAI"
                )
    model = architecture.build()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    needed = [name for name in shapes if not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in state]
    unexpected = [name for name in state if name not in shapes]
    if missing or unexpected:
        problems = {"missing": missing, "unexpected": unexpected}
        details = "; ".join(f"{len(names)} {kind}: {shorten(names)}" for kind, names in problems.items() if names)
        raise BackboneError(f"the tensors are not those of this CLIP: {details}")
    for name in needed:
        if tuple(state[name].shape) != shapes[name]:
            raise BackboneError(f"tensor {name!r} has shape {tuple(state[name].shape)}, expected {shapes[name]}")
        if not state[name].is_floating_point():
            raise BackboneError(f"tensor {name!r} holds {state[name].dtype}, expected floating-point weights")
    return model


def fitting_names(state: State) -> list[str]:
    """Names of the open_clip models that have the shapes of these tensors."""
    shape = {name: value for name, (value, _) in measure(state).items()}
    return [
        name
        for name, architecture in known_architectures().items()
        if is_timm(state) == (architecture.timm is not None)
        and all(getattr(architecture, field) == value for field, value in shape.items())
    ]


def known_architectures() -> dict[str, Architecture]:
    """open_clip's models of the supported kind, by name."""
    architectures = {}
    for name, config in model_configs().items():
        with contextlib.suppress(CalpromptError):
            architectures[name] = Architecture.from_open_clip(config)
    return architectures


def fitting_advice(state: State) -> str:
    """A sentence on the open_clip models that these tensors could be."""
    names = fitting_names(state)
    return f"open_clip models that fit: {', '.join(names)}." if names else "No open_clip model has these shapes."


def _tower(section: str, config: Mapping[str, Any], standard: Mapping[str, Any], shape: set[str]) -> dict[str, Any]:
    """A tower's config with defaults; raises for settings that CLIP's towers do not have."""
    fields = config.get(section)
    if not isinstance(fields, Mapping):
        raise BackboneError(f"the config has no {section!r}; expected an open_clip model config")
    for name, value in fields.items():
        if name not in standard:
            raise unknown(f"field of {section}", str(name), standard)
        plain = value == standard[name] or (not value and not standard[name])
        if name not in shape and not plain and not _IGNORED_FIELDS.fullmatch(name):
            supported = "CLIP's own tower, without it" if standard[name] is None else repr(standard[name])
            raise _unsupported(f"{section}.{name}", value, supported)
    return {**standard, **fields}


def _vision_fields(vision: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an image tower of open_clip's own, or of timm's."""
    if vision["timm_model_name"]:
        tower = TimmTower(
            model_name=str(vision["timm_model_name"]),
            pool=vision["timm_pool"] or "",
            proj=vision["timm_proj"] or "",
            proj_bias=bool(vision["timm_proj_bias"]),
        )
        nothing = {"vision_width": 0, "vision_layers": 0, "vision_heads": 0, "vision_mlp": 0}
        return {"patch_size": None, **nothing, "timm": tower}
    resnet = isinstance(vision["layers"], (list, tuple))
    width = _whole("vision_cfg.width", vision["width"])
    return {
        "patch_size": None if resnet else _whole("vision_cfg.patch_size", vision["patch_size"]),
        "vision_width": width,
        "vision_layers": tuple(vision["layers"]) if resnet else _whole("vision_cfg.layers", vision["layers"]),
        "vision_heads": (width * 32 if resnet else width) // _whole("vision_cfg.head_width", vision["head_width"]),
        "vision_mlp": 0 if resnet else int(width * vision["mlp_ratio"]),
    }


def _last_section(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The last of these sections that a config has, without the fields that are None."""
    sections = [config[name] for name in names if isinstance(config.get(name), Mapping)]
    return {name: value for name, value in sections[-1].items() if value is not None} if sections else {}


def _whole(field: str, value: Any) -> int:
    if isinstance(value, (list, tuple)) and len(set(value)) == 1:  # [224, 224]
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BackboneError(f"{field} = {value!r} in the config, expected a positive whole number")
    return value


def _ratio(hidden: int, width: int) -> float:
    """A ratio that open_clip turns back into `hidden`, by int(width * ratio)."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _unsupported(field: str, value: Any, supported: str) -> BackboneError:
    return BackboneError(f"{field} = {textwrap.shorten(repr(value), 60)} is not supported; supported: {supported}")
