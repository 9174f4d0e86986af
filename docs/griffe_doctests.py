"""Makes docstrings fit for Markdown on the documentation site (an extension of griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)  # from a prompt to the next empty line
LOOKUP = re.compile(r'(?<![`\w])\w+\["\w+"\]\["\w+"\]')  # which Markdown would read as a link


class Doctests(griffe.Extension):
    """Puts fences around doctests, which Markdown would read as quotations, and backticks around double lookups."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = LOOKUP.sub(r"`\g<0>`", DOCTEST.sub(fenced, obj.docstring.value))


def fenced(doctest: re.Match[str]) -> str:
    """A doctest as a code block."""
    indent = doctest["indent"]
    return f"{indent}```pycon\n{doctest[0]}\n{indent}```"
