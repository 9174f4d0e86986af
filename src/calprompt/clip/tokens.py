"""CLIP's tokenizer: texts as lists of token ids, [start, words …, end], 77 at most."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, cast

from calprompt.clip.open_clip_files import open_clip_module
from calprompt.errors import SettingError

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer
    from torch import Tensor

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
        import torch

        texts = [texts] if isinstance(texts, str) else list(texts)
        rows = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            ids = [START, *self.ids(text), END]
            if len(ids) > self.context_length:
                if not truncate:
                    self.sequence(text)
                ids = [*ids[: self.context_length - 1], END]
            row[: len(ids)] = torch.tensor(ids)
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a list of ids, words separated by blanks."""
        return str(byte_pairs().decode(list(ids)))
