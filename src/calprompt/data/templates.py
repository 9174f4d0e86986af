"""The sentences that class names are read in, in the three tables that public prompt-tuning code has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calprompt.registry import unknown

TABLES = ("coop", "kgcoop", "prograd")
_EARLIER = {"a": "coop", "b": "kgcoop", "c": "prograd"}  # names in split files saved by version 0.1


@dataclass(frozen=True)
class Templates:
    """The sentence for class names in each of the three published tables; a tuner says which is its own.

    Attributes:
        coop: Of CoOp, CoCoOp, MaPLe, PromptSRC and zero-shot CLIP; the default.
        kgcoop: Of KgCoOp.
        prograd: Of ProGrad.
    """

    coop: str
    kgcoop: str
    prograd: str

    @classmethod
    def of(cls, coop: str, *, kgcoop: str | None = None, prograd: str | None = None) -> Templates:
        """The same sentence where a table does not differ from CoOp's."""
        return cls(coop, kgcoop or coop, prograd or coop)

    @classmethod
    def from_dict(cls, values: Mapping[str, str]) -> Templates:
        """From plain data, under the names of any version."""
        return cls(**{_EARLIER.get(name, name): text for name, text in values.items()})

    def table(self, name: str) -> str:
        """The sentence in the table of that name."""
        if name not in TABLES:
            raise unknown("table of templates", name, TABLES)
        return str(getattr(self, name))
