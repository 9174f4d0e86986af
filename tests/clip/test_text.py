"""The shared-prefix text encoder equals the plain path, whatever the prompts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.plain import encode_text_plain
from calprompt.clip.prompts import TextPrompts
from calprompt.clip.text import best_row, encode_text, fold
from calprompt.errors import CalpromptError
from tiny import tiny_backbone

BACKBONE = tiny_backbone()
MODEL = BACKBONE.model
WIDTH, LAYERS = BACKBONE.text_width, BACKBONE.text_depth


@st.composite
def prompts(draw: st.DrawFn) -> TextPrompts:
    """Any number of prefixes and classes, lengths and deep prompts that the tower can read."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    N, P = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    lengths = tuple(draw(st.lists(st.integers(1, min(40, 77 - P)), min_size=1, max_size=12)))
    n = draw(st.integers(0, P - 1))
    depth = draw(st.integers(0, LAYERS - 1)) if n else 0

    def vectors(*shape: int) -> Tensor:
        return (torch.randn(*shape, WIDTH, generator=generator) * 0.5).requires_grad_()

    either = st.sampled_from([1, N])
    return TextPrompts(
        prefix=vectors(N, P),
        rest=vectors(draw(either), sum(lengths)),
        lengths=lengths,
        deep=[vectors(draw(either), n) for _ in range(depth)],
    )


def leaves(p: TextPrompts) -> list[Tensor]:
    return [p.prefix, p.rest, *p.deep]


def assert_close(ours: Tensor, plain: Tensor) -> None:
    assert ours.shape == plain.shape
    ours, plain = ours.detach(), plain.detach()
    assert float((ours - plain).abs().max()) <= 1e-5 * max(1.0, float(plain.abs().max()))


@settings(max_examples=60)
@given(prompts(), st.sampled_from([{}, {"chunk": 1}, {"chunk": 3}, {"chunk": 4, "checkpointing": True}]))
def test_equals_plain_path_with_gradients(p: TextPrompts, how: dict) -> None:
    ours, plain = encode_text(MODEL, p, **how), encode_text_plain(MODEL, p)
    assert_close(ours, plain)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(0))
    gradients = [torch.autograd.grad((features * weights).sum(), leaves(p)) for features in (ours, plain)]
    for mine, theirs in zip(*gradients, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("class_specific", [False, True])
@pytest.mark.parametrize("context", [1, 4, 5, 16])
def test_class_positions_are_the_written_prompt(position: str, class_specific: bool, context: int) -> None:
    """With the words' own embeddings as context, every layout is the plain sentence it spells."""
    names = ["cat", "2012 Tesla Model S Sedan", "american_pit_bull_terrier", "A340-300"]
    words = ["a", "photo", "of", "the", "big", "old", "red", "warm", *["nice"] * 8][:context]
    layout = BACKBONE.layout(names, " ".join(words), position=position, class_specific=class_specific)
    embedded = BACKBONE.embed(BACKBONE.tokenizer.ids(" ".join(words)))
    embedded = embedded.expand(len(names), -1, -1) if class_specific else embedded
    ours = BACKBONE.encode_text(layout.fill(embedded))[0]
    cut = {"end": context, "middle": context // 2, "front": 0}[position]
    spelled = [" ".join([*words[:cut], name.replace("_", " "), *words[cut:]]) + "." for name in names]
    assert_close(ours, MODEL.encode_text(BACKBONE.tokenizer(spelled)))


def test_prefix_of_each_position() -> None:
    """What is shared is as long as it can be."""
    shared = {p: len(BACKBONE.layout(["cat", "dog"], 4, position=p).prefix) for p in ("end", "middle", "front")}
    assert shared == {"end": 5, "middle": 3, "front": 1}


def test_phrase_longer_than_the_context_stays_frozen_in_the_prefix() -> None:
    layout = BACKBONE.layout(["cat", "dog"], "a photo of a", context=2)
    assert layout.context_shape == (2,)
    assert len(layout.prefix) == 5
    ours = BACKBONE.encode_text(layout.fill(BACKBONE.embed(BACKBONE.tokenizer.ids("a photo"))))[0]
    assert_close(ours, MODEL.encode_text(BACKBONE.tokenizer(["a photo of a cat.", "a photo of a dog."])))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=80), st.integers(1, 17), st.integers(8, 300))
def test_fold_places_every_token_once(lengths: list[int], prefix: int, row_tokens: int) -> None:
    rows = fold(prefix, tuple(lengths), torch.device("cpu"), row_tokens)
    own = rows.tokens[(rows.tokens >= prefix) & (rows.tokens < prefix + sum(lengths))]
    assert sorted(own.tolist()) == list(range(prefix, prefix + sum(lengths)))
    ends = rows.tokens.gather(1, rows.ends).flatten()[rows.classes]
    assert torch.equal(ends, prefix + torch.tensor(lengths).cumsum(0) - 1)
    assert bool(rows.mask.any(dim=-1).all()), "a token that sees nothing would give NaN"
    longest = max(lengths)
    assert rows.tokens.shape[1] - prefix <= 1.5 * max(row_tokens - prefix, longest) + longest


def test_many_classes_fold_into_rows_and_agree() -> None:
    names = [f"thing {i} {'very ' * (i % 7)}old" for i in range(120)]
    layout = BACKBONE.layout(names, 4)
    context = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.1
    assert fold(5, layout.lengths, torch.device("cpu"), best_row(5, WIDTH)).tokens.shape[0] > 3
    filled = layout.fill(context)
    assert_close(encode_text(MODEL, filled), encode_text_plain(MODEL, filled))


def test_sentences_equal_open_clip() -> None:
    texts = ["a photo of a cat.", "a photo of a dog, a type of pet.", "", "zigzagged texture.", "crème brûlée"]
    assert_close(BACKBONE.encode_strings(texts), MODEL.encode_text(BACKBONE.tokenizer(texts)))
    assert_close(BACKBONE.encode_strings(texts[:1]), MODEL.encode_text(BACKBONE.tokenizer(texts[:1])))


def test_too_long_class_name_is_named() -> None:
    with pytest.raises(CalpromptError, match=r"class 'word word .*91 tokens.* reads 77"):
        BACKBONE.layout(["cat", " ".join(["word"] * 72)], 16)


def test_half_precision_backbone_gives_float32_features_close_to_float32() -> None:
    half = tiny_backbone(dtype=torch.bfloat16)
    layout = BACKBONE.layout(["cat", "dog", "tree"], 4)
    context = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2)) * 0.1
    ours = half.encode_text(half.layout(["cat", "dog", "tree"], 4).fill(context.requires_grad_()))
    assert ours.dtype == torch.float32
    exact = BACKBONE.encode_text(layout.fill(context)).detach()
    assert float((ours.detach() - exact).abs().max() / exact.abs().max()) < 0.05
    ours.square().sum().backward()
    assert context.grad is not None
    assert context.grad.dtype == torch.float32


def test_wrong_shapes_are_refused() -> None:
    layout = BACKBONE.layout(["cat", "dog"], 4)
    with pytest.raises(ValueError, match=r"context must be \[N, 4, W\], got \(3, 64\)"):
        layout.fill(torch.zeros(3, WIDTH))
    with pytest.raises(ValueError, match="deep prompts"):
        layout.fill(torch.zeros(4, WIDTH), deep=[torch.zeros(5, WIDTH)])
    with pytest.raises(CalpromptError, match="unknown position of the class name 'start'"):
        BACKBONE.layout(["cat"], 4, position="start")
    with pytest.raises(CalpromptError, match="no class names"):
        BACKBONE.layout([], 4)


def test_a_backbone_that_encodes_in_chunks_gives_the_same_gradient() -> None:
    layout = BACKBONE.layout([f"thing {i}" for i in range(9)], 4)
    context = (torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(4)) * 0.1).requires_grad_()
    weights = torch.randn(1, 9, BACKBONE.embed_dim, generator=torch.Generator().manual_seed(5))
    gradients = []
    for chunk in (None, 4):
        features = BACKBONE.view(chunk=chunk).encode_text(layout.fill(context))
        gradients += torch.autograd.grad((features * weights).sum(), context)
    assert_close(*gradients)
