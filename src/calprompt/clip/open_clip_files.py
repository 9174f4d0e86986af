"""Configs, tables and the tokenizer of open_clip, read without importing the package, which takes seconds.

Its model configs are JSON files, its table of pretrained weights and its tokenizer are modules that need little, and
the defaults of its configs are in the source of two dataclasses. If the package is imported already, it is asked, since
a program may have added models to it.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from calprompt.errors import SettingError

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer
    from torch import Tensor

STANDALONE = "calprompt.clip.open_clip_alone"  # the name under which modules of open_clip are imported by themselves


@cache
def open_clip_folder() -> Path:
    spec = find_spec("open_clip")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def open_clip_module(name: str) -> Any:
    """A module of open_clip, imported without the rest of the package unless that is imported already."""
    if "open_clip" in sys.modules:
        return import_module(f"open_clip.{name}")
    if STANDALONE not in sys.modules:
        sys.modules[STANDALONE] = ModuleType(STANDALONE)
        sys.modules[STANDALONE].__path__ = [str(open_clip_folder())]
    return import_module(f"{STANDALONE}.{name}")


def model_configs() -> dict[str, dict[str, Any]]:
    """open_clip's model configs by name, in the order of its own list."""
    if "open_clip" in sys.modules:
        factory = sys.modules["open_clip"].factory
        return {name: factory.get_model_config(name) for name in factory.list_models()}
    return copy.deepcopy(_stored_configs())


@cache
def _stored_configs() -> dict[str, dict[str, Any]]:
    found = {}
    for path in (open_clip_folder() / "model_configs").glob("*.json"):
        config = json.loads(path.read_text(encoding="utf-8"))
        if {"embed_dim", "vision_cfg", "text_cfg"} <= set(config):
            found[path.stem] = config
    return dict(sorted(found.items(), key=lambda item: _natural_key(item[0])))


def _natural_key(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name.lower())]


@cache
def config_defaults(name: str) -> dict[str, Any]:
    """Fields of one of open_clip's config classes and their defaults, such as CLIPTextCfg."""
    tree = ast.parse((open_clip_folder() / "model.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): field.value and ast.literal_eval(field.value) for field in fields}


PLAIN_TEMPLATE = 39  # "a photo of a {}."


def imagenet_templates(count: int) -> tuple[str, ...]:
    """The sentences that CLIP's authors wrote for ImageNet: all 80, or PromptSRC's 60, the plainest in front.

    >>> imagenet_templates(60)[:2]
    ('a photo of a {}.', 'a bad photo of a {}.')
    """
    every = [template("{}") for template in open_clip_module("zero_shot_metadata").OPENAI_IMAGENET_TEMPLATES]
    return tuple(
        every if count == 80 else [every[PLAIN_TEMPLATE], *every[:PLAIN_TEMPLATE], *every[PLAIN_TEMPLATE + 1 : 60]]
    )


START = 49406
END = 49407
VOCABULARY = 49408
SPECIALS = {"<|startoftext|>": START, "<|endoftext|>": END}
PLACEHOLDER = "X"  # one token, stands where a learned vector will be
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


@cache
def byte_pairs() -> SimpleTokenizer:
    """open_clip's tokenizer, with the special tokens spelled as in OpenAI's."""
    import regex

    bpe = open_clip_module("tokenizer").SimpleTokenizer()
    specials = "|".join(regex.escape(special) for special in SPECIALS)
    bpe.pat = regex.compile(f"{specials}|{PATTERN}", regex.IGNORECASE)
    bpe.encoder.update(SPECIALS)
    bpe.decoder.update({number: special for special, number in SPECIALS.items()})
    bpe.cache.update({special: special for special in SPECIALS})
    return cast("SimpleTokenizer", bpe)


@lru_cache(maxsize=1 << 16)
def _ids(text: str) -> tuple[int, ...]:
    """Cached, because the same names and sentences occur in every split and every run."""
    return tuple(byte_pairs().encode(text))


class Tokenizer:
    """The byte-pair encoding that all CLIP models of this vocabulary share; a text that is too long is an error.

    >>> Tokenizer().ids("a photo of a cat.")
    [320, 1125, 539, 320, 2368, 269]
    """

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without start and end."""
        return list(_ids(text))

    def sequence(self, text: str, *, of: str | None = None) -> list[int]:
        """[start, ids …, end], up to the first end-of-text."""
        sequence = [START, *self.ids(text), END]
        sequence = sequence[: sequence.index(END) + 1]
        if len(sequence) > self.context_length:
            what = f"the prompt of class {of!r}" if of is not None else "the text"
            raise SettingError(
                f"{what} takes {len(sequence)} tokens with its start and end, and this model reads "
                f"{self.context_length}: {text!r}. Shorten the name, the template or the context."
            )
        return sequence

    def __call__(self, texts: str | Sequence[str], *, truncate: bool = False) -> Tensor:
        """Ids padded with zeros, [texts, context_length]."""
        sequences = [[START, *self.ids(text), END] for text in ([texts] if isinstance(texts, str) else texts)]
        for number, ids in enumerate(sequences):
            if len(ids) > self.context_length:
                if not truncate:
                    self.sequence(texts if isinstance(texts, str) else texts[number])
                sequences[number] = [*ids[: self.context_length - 1], END]
        return self.pad(sequences)

    def pad(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Ids of unequal length, [texts, context_length] with zeros."""
        import torch

        rows = torch.zeros(len(sequences), self.context_length, dtype=torch.long)
        for row, ids in zip(rows, sequences, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a list of ids, words separated by blanks."""
        return str(byte_pairs().decode(list(ids)))
