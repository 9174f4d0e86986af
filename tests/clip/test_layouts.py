"""Tensors of three namings become one, and an architecture that does not fit them is told field by field.

All on the meta device: shapes without values.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import open_clip
import pytest
import torch
import transformers

from calprompt.clip.architecture import (
    Architecture,
    TimmTower,
    check,
    fitting_advice,
    fitting_names,
    known_architectures,
    measure,
)
from calprompt.clip.weights import convert, recognise
from calprompt.errors import CalpromptError

VIT: dict[str, Any] = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 128, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 3},
}
RESNET = {**VIT, "vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8, "patch_size": None}}
TIMM = {**VIT, "vision_cfg": {"image_size": 64, "timm_model_name": "test_efficientnet", "timm_proj_bias": True}}
HUGGINGFACE: dict[str, Any] = {
    "model_type": "clip",
    "projection_dim": 32,
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
    },
    "vision_config": {
        "hidden_size": 96,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "hidden_act": "gelu",
        "image_size": 32,
        "patch_size": 8,
    },
}


def tensors(config: dict) -> dict[str, torch.Tensor]:
    return dict(Architecture.from_open_clip(config).build().state_dict())


def changed(config: dict, path: str, value: Any) -> dict:
    """A copy of a nested dictionary with one field set, 'text_cfg.width' for one in a section."""
    config = copy.deepcopy(config)
    *sections, field = path.split(".")
    section = config
    for name in sections:
        section = section[name]
    section[field] = value
    return config


def shapes(state: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


OWN = [name for name, each in known_architectures().items() if each.timm is None]
KINDS = ["RN50", "RN50x4-quickgelu", "ViT-B-16", "ViT-B-16-plus-240", "ViT-B-32-quickgelu", "ViT-H-14", "ViT-L-14-336"]
TIMMS = ["convnext_base", "EVA02-B-16", "MobileCLIP-B", "ViTamin-S", "swin_base_patch4_window7_224", "PE-Core-T-16-384"]


def one_of_each_kind() -> list[Any]:
    """All architectures; those marked long differ in sizes alone from one that is not."""
    return [pytest.param(name, marks=() if name in (*KINDS, *TIMMS) else pytest.mark.long) for name in [*OWN, *TIMMS]]


@pytest.mark.parametrize("name", one_of_each_kind())
def test_open_clip_models_are_built_as_open_clip_builds_them(name: str) -> None:
    config = changed(open_clip.get_model_config(name), "vision_cfg.timm_drop_path", None)  # of training only
    with torch.device("meta"):
        reference = open_clip.model.CLIP(**{key: value for key, value in config.items() if key != "custom_text"})
    architecture = known_architectures()[name]
    rebuilt, others = architecture.build_open_clip(), dict(reference.named_modules())
    assert [type(each) for each in rebuilt.modules()] == [type(each) for each in reference.modules()]
    for model in (rebuilt, architecture.build()):  # the second has classes of our own for vision transformers
        assert shapes(model.state_dict()) == shapes(reference.state_dict())
        for path, our in model.named_modules():
            assert getattr(our, "num_heads", None) == getattr(others[path], "num_heads", None)
            assert getattr(our, "eps", None) == getattr(others[path], "eps", None)
            if path.endswith("gelu"):
                assert type(our).__name__ == type(others[path]).__name__
    check(known_architectures()[name], dict(reference.state_dict()), "open_clip")


@pytest.mark.parametrize(
    ("name", "count", "parameters", "visual"),
    [
        ("ViT-B-16", 302, 149_620_737, 86_192_640),
        ("ViT-B-32", 302, 151_277_313, 87_849_216),
        ("RN50", 489, 102_007_137, 38_316_896),
    ],
)
def test_published_sizes(name: str, count: int, parameters: int, visual: int) -> None:
    model = known_architectures()[name].build()
    assert len(model.state_dict()) == count
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert sum(each.numel() for each in model.visual.parameters()) == visual


@pytest.mark.parametrize(
    "name", ["ViT-B-16", "ViT-B-32", "ViT-L-14", "ViT-L-14-336", "RN50", "RN101", "RN50x4", "RN50x64"]
)
def test_openai_weights_say_their_architecture(name: str) -> None:
    known = known_architectures()[f"{name}-quickgelu"]
    state = dict(known.build().state_dict())
    assert Architecture.from_openai(state) == known
    assert fitting_names(state) == [name, f"{name}-quickgelu"]


def test_recognition() -> None:
    state = tensors(VIT)
    assert recognise(state) == "open_clip"
    marks = {name: torch.tensor(1) for name in ("input_resolution", "context_length", "vocab_size")}
    assert recognise(state | marks) == "openai"
    del marks["input_resolution"]  # open_clip's scripted models have the other two
    assert recognise(state | marks) == "open_clip"
    assert recognise({"vision_model.post_layernorm.weight": torch.ones(1)}) == "huggingface"


@pytest.mark.parametrize("config", [VIT, RESNET])
def test_openai_markers_masks_and_prefixes_are_removed(config: dict) -> None:
    state = tensors(config)
    extra = {name: torch.tensor(1) for name in ("input_resolution", "context_length", "vocab_size", "attn_mask")}
    assert shapes(convert(state | extra, "openai")) == shapes(state)
    shared = ("visual.", "logit_scale")
    custom = {name if name.startswith(shared) else f"text.{name}": each for name, each in state.items()}
    custom["logit_scale"] = custom["logit_scale"].reshape(1)
    assert shapes(convert(custom | {"text.attn_mask": torch.ones(2)}, "open_clip")) == shapes(state)


def test_huggingface_names_and_config_against_transformers() -> None:
    with torch.device("meta"):
        model = transformers.CLIPModel(transformers.CLIPConfig(**copy.deepcopy(HUGGINGFACE)))
    architecture = Architecture.from_huggingface(HUGGINGFACE)
    state = dict(model.state_dict()) | {"text_model.embeddings.position_ids": torch.ones(1, 77)}
    assert shapes(convert(state, "huggingface")) == shapes(architecture.build().state_dict())
    assert (architecture.text_heads, architecture.vision_heads, architecture.quick_gelu) == (4, 6, False)
    defaults = transformers.CLIPConfig().to_dict()
    assert Architecture.from_huggingface({"model_type": "clip"}) == Architecture.from_huggingface(defaults)
    assert Architecture.from_huggingface(defaults) == known_architectures()["ViT-B-32-quickgelu"]


def test_old_huggingface_configs_mean_their_second_section() -> None:
    doubled = {**HUGGINGFACE, "text_config": None, "text_config_dict": HUGGINGFACE["text_config"]}
    assert Architecture.from_huggingface(doubled) == Architecture.from_huggingface(HUGGINGFACE)


def test_a_huggingface_query_without_key_is_reported() -> None:
    name = "text_model.encoder.layers.0.self_attn.{}_proj.weight"
    with pytest.raises(CalpromptError, match=r"layers\.0\.self_attn\.k_proj\.weight"):
        convert({name.format("q"): torch.ones(1), name.format("v"): torch.ones(1)}, "huggingface")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vision_cfg.attentional_pool", True),
        ("vision_cfg.pool_type", "avg"),
        ("vision_cfg.no_ln_pre", True),
        ("vision_cfg.qk_norm", True),
        ("vision_cfg.ls_init_value", 0.1),
        ("text_cfg.no_causal_mask", True),
        ("text_cfg.pool_type", "last"),
        ("text_cfg.embed_cls", True),
        ("text_cfg.proj_bias", True),
        ("text_cfg.proj_type", "none"),
        ("text_cfg.hf_model_name", "roberta-base"),
        ("text_cfg.hf_tokenizer_name", "bert-base-uncased"),
        ("text_cfg.act_kwargs", {"approximate": "tanh"}),
        ("text_cfg.norm_kwargs", {"eps": 1e-6}),
        ("init_logit_bias", -10),
        ("multimodal_cfg", {"width": 512}),
    ],
)
def test_other_towers_are_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(CalpromptError, match=rf"{field} = .* is not supported"):
        Architecture.from_open_clip(changed(VIT, field, value))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vision_cfg.patch_dropout", 0.5),
        ("vision_cfg.attentional_pool", False),
        ("vision_cfg.timm_pool", "token"),
        ("text_cfg.hf_proj_type", "linear"),
        ("text_cfg.hf_tokenizer_name", ""),
        ("text_cfg.eos_id", 49407),
        ("custom_text", True),
        ("init_logit_scale", 2.0),
        ("vision_cfg.image_size", [32, 32]),
    ],
)
def test_irrelevant_config_fields_are_ignored(field: str, value: Any) -> None:
    assert Architecture.from_open_clip(changed(VIT, field, value)) == Architecture.from_open_clip(VIT)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text_cfg.vocab_size", 64000, r"vocabulary of 64000 is not supported.*49408"),
        ("text_cfg.heads", 5, "text width 64 cannot be divided among 5 attention heads"),
        ("text_cfg.layers", "two", r"text_cfg\.layers = 'two'.*expected a positive whole number"),
        ("vision_cfg.image_size", [32, 64], r"vision_cfg\.image_size"),
        ("vision_cfg.hed_width", 64, "Did you mean 'head_width'"),
        ("quickgelu", True, "Did you mean 'quick_gelu'"),
        ("text_cfg", None, "no 'text_cfg'"),
        ("embed_dim", None, "embed_dim = None"),
    ],
)
def test_invalid_open_clip_configs(field: str, value: Any, message: str) -> None:
    with pytest.raises(CalpromptError, match=message):
        Architecture.from_open_clip(changed(VIT, field, value))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", "siglip", "model_type = 'siglip' is not supported; supported: 'clip'"),
        ("text_config.hidden_act", "quick_gelu", r"text_config\.hidden_act.*one activation for both towers"),
        ("text_config.vocab_size", 30522, "vocabulary of 30522"),
        ("text_config.eos_token_id", 5, "eos_token_id = 5"),
        ("text_config.layer_norm_eps", 1e-6, r"text_config\.layer_norm_eps"),
        ("vision_config.num_channels", 1, "num_channels = 1"),
        ("vision_config.num_attention_heads", 7, "vision width 96 cannot be divided among 7"),
    ],
)
def test_invalid_huggingface_configs(field: str, value: Any, message: str) -> None:
    with pytest.raises(CalpromptError, match=message):
        Architecture.from_huggingface(changed(HUGGINGFACE, field, value))


def test_activation_must_be_known() -> None:
    config = changed(changed(HUGGINGFACE, "text_config.hidden_act", "relu"), "vision_config.hidden_act", "relu")
    with pytest.raises(CalpromptError, match=r"hidden_act = 'relu'.*'quick_gelu' or 'gelu'"):
        Architecture.from_huggingface(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("embed_dim", 16, r"embed_dim is 16 in the config, but 32 in the weights \(tensor 'text_projection'\)"),
        ("text_cfg.width", 128, r"text_width is 128.*64.*token_embedding\.weight"),
        ("text_cfg.layers", 12, r"text_layers is 12.*but 3.*transformer\.resblocks"),
        ("text_cfg.context_length", 32, r"context_length is 32.*but 77.*positional_embedding"),
        ("text_cfg.mlp_ratio", 2.0, r"text_mlp is 128.*but 256"),
        ("vision_cfg.width", 64, r"vision_width is 64.*but 128.*visual\.conv1\.weight"),
        ("vision_cfg.layers", 4, r"vision_layers is 4.*but 2"),
        ("vision_cfg.patch_size", 16, r"patch_size is 16.*but 8"),
        ("vision_cfg.image_size", 64, r"grid \(image_size / patch_size\) is 8.*but 4.*visual\.positional_embedding"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_reported(field: str, value: Any, message: str) -> None:
    config = changed(VIT, field, value)
    if field == "text_cfg.width":
        config["text_cfg"]["heads"] = 2
    with pytest.raises(CalpromptError, match=message):
        check(Architecture.from_open_clip(config), tensors(VIT), "open_clip")


def test_residual_networks_and_transformers_are_not_mixed_up() -> None:
    for config, other in ((VIT, RESNET), (RESNET, VIT)):
        with pytest.raises(CalpromptError, match="the config does not fit the weights"):
            check(Architecture.from_open_clip(config), tensors(other), "open_clip")


@pytest.mark.parametrize("field", ["quick_gelu", "text_heads", "vision_heads"])
def test_openai_weights_with_another_activation_or_heads_are_reported(field: str) -> None:
    own = Architecture.from_open_clip(VIT)
    wrong = replace(own, **{field: False if field == "quick_gelu" else 4})
    check(own, tensors(VIT), "openai")
    check(wrong, tensors(VIT), "open_clip")
    with pytest.raises(CalpromptError, match=f"{field} is .* in the config, but .* in all weights of OpenAI"):
        check(wrong, tensors(VIT), "openai")


def test_missing_and_unexpected_tensors_are_listed_with_their_number() -> None:
    architecture, state = Architecture.from_open_clip(VIT), tensors(VIT)
    for number in range(9):
        state[f"extra.{number}"] = torch.ones(1)
    del state["ln_final.bias"], state["visual.ln_pre.weight"]
    with pytest.raises(CalpromptError) as caught:
        check(architecture, state, "open_clip")
    assert "2 missing: visual.ln_pre.weight, ln_final.bias" in str(caught.value)
    assert "9 unexpected: extra.0, extra.1, extra.2, extra.3, extra.4 and 4 more" in str(caught.value)


def test_wrong_tensor_shapes_and_dtypes_are_reported() -> None:
    architecture, state = Architecture.from_open_clip(VIT), tensors(VIT)
    with pytest.raises(CalpromptError, match=r"'ln_final\.bias' has shape \(63,\), expected \(64,\)"):
        check(architecture, state | {"ln_final.bias": torch.ones(63)}, "open_clip")
    with pytest.raises(CalpromptError, match=r"'ln_final\.bias' holds torch.int8"):
        check(architecture, state | {"ln_final.bias": torch.ones(64, dtype=torch.int8)}, "open_clip")


def test_batch_counters_may_be_missing() -> None:
    state = {name: each for name, each in tensors(RESNET).items() if not name.endswith("num_batches_tracked")}
    check(Architecture.from_open_clip(RESNET), state, "open_clip")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logit_bias", "SigLIP"),
        ("visual.attn_pool.query", "attentional pooling"),
        ("text_decoder.ln_final.weight", "CoCa"),
        ("text.transformer.embeddings.word_embeddings.weight", "Hugging Face text tower"),
        ("cls_emb", "class token"),
    ],
)
def test_weights_of_other_models_are_named(name: str, message: str) -> None:
    with pytest.raises(CalpromptError, match=message):
        convert(tensors(VIT) | {name: torch.ones(1)}, "open_clip")


def test_a_tower_of_timm_is_named_by_its_config_and_checked_tensor_by_tensor() -> None:
    architecture = Architecture.from_open_clip(TIMM)
    assert architecture.timm == TimmTower("test_efficientnet", "avg", "linear", proj_bias=True)
    state = tensors(TIMM)
    check(architecture, state, "open_clip")
    with pytest.raises(CalpromptError, match=r"tower is a ViT or a ModifiedResNet, .*weights a tower of timm's"):
        check(Architecture.from_open_clip(VIT), state, "open_clip")
    with pytest.raises(CalpromptError, match=r"tower is a tower of timm's.*, that of the weights a ViT"):
        check(architecture, tensors(VIT), "open_clip")
    with pytest.raises(CalpromptError, match=r"1 missing: 'visual\.head\.proj\.bias'|visual\.head\.proj\.bias"):
        check(architecture, {k: v for k, v in state.items() if k != "visual.head.proj.bias"}, "open_clip")
    with pytest.raises(CalpromptError, match=r"unknown timm model 'convnext_bass'.* Did you mean 'convnext_base'"):
        Architecture.from_open_clip(changed(TIMM, "vision_cfg.timm_model_name", "convnext_bass"))


def test_buffers_that_no_file_has_are_computed() -> None:
    usual, places = (
        Architecture.from_open_clip(each) for each in (TIMM, open_clip.get_model_config("PE-Core-T-16-384"))
    )
    assert usual.computed_buffers(usual.build()) == {}
    rotary = places.computed_buffers(places.build())
    assert list(rotary) == ["visual.trunk.rope.pos_embed"]
    assert rotary["visual.trunk.rope.pos_embed"].abs().max() > 0.5


def test_measuring_something_else_says_what_it_found() -> None:
    with pytest.raises(CalpromptError, match=r"no tensor 'text_projection'.*found fc\.bias, fc\.weight"):
        measure({"fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)})
    odd = tensors(VIT) | {"visual.positional_embedding": torch.ones(16, 128)}
    with pytest.raises(CalpromptError, match="16 positions, expected a square number and one"):
        measure(odd)
    assert "No open_clip model" in fitting_advice(tensors(VIT))


@pytest.mark.parametrize(("width", "hidden"), [(1408, 6144), (1664, 8192), (96, 100), (3, 7), (1152, 4304), (49, 48)])
def test_any_mlp_width_survives_the_ratio_of_open_clip(width: int, hidden: int) -> None:
    architecture = replace(Architecture.from_open_clip(VIT), text_width=width, text_heads=1, text_mlp=hidden)
    assert architecture.build().transformer.resblocks[0].mlp.c_fc.out_features == hidden
