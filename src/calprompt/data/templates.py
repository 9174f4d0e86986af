"""The sentences that class names are read in, in the three tables that public prompt-tuning code has."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.registry import unknown

TABLES = ("a", "b", "c")


@dataclass(frozen=True)
class Templates:
    """The sentence for class names in each of the three published tables; a tuner says which is its own.

    a  CoOp, CoCoOp, MaPLe, PromptSRC and zero-shot CLIP; the default
    b  KgCoOp
    c  ProGrad
    """

    a: str
    b: str
    c: str

    @classmethod
    def of(cls, a: str, *, b: str | None = None, c: str | None = None) -> Templates:
        """The same sentence where a table does not differ from A."""
        return cls(a, b or a, c or a)

    def table(self, name: str) -> str:
        if name not in TABLES:
            raise unknown("table of templates", name, TABLES)
        return str(getattr(self, name))
