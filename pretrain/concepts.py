"""What is drawn: a name, other names, keywords and a kind for every emoji, and the way from a studio's file to it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

COMPONENTS = 2  # emojibase's group of skin tones and hair, which are no pictures


@dataclass(frozen=True)
class Concept:
    """Something with a name.

    code      what identifies it: an emoji's code points, or "sketch/cat" and the like
    label     its usual name
    names     all its names, the usual one first
    keywords  words that go with it
    kind      what it is a kind of, "fruit"
    """

    code: str
    label: str
    names: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Emoji:
    """All emoji by code, and by any spelling of any name."""

    by_code: dict[str, Concept]
    by_name: dict[str, str] = field(repr=False)

    def find(self, name: str) -> Concept | None:
        """The emoji that a studio's file name means."""
        for candidate in (name, re.sub(r"-\d+$", "", name), name.replace("flag-for-", "flag-")):
            code = self.by_name.get(bare(candidate))
            if code is not None:
                return self.by_code[code]
        return None


def plain_code(hexcode: str) -> str:
    """Code points without the presentation selector, in lower case.

    >>> plain_code("1F3F3-FE0F-200D-1F308")
    '1f3f3-200d-1f308'
    """
    return "-".join(part for part in hexcode.lower().split("-") if part != "fe0f")


def bare(name: str) -> str:
    """Letters and digits only.

    >>> bare("Flag: Côte d'Ivoire")
    'flagctedivoire'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def clean(name: str) -> str:
    """A name as people write it.

    >>> clean("red_apple"), clean("flag: France"), clean("+1")
    ('red apple', 'flag France', '+1')
    """
    return " ".join(re.sub(r"[_:]", " ", name).split())


def read_emoji(packages: dict[str, Path]) -> Emoji:
    """Names from emojibase and emojilib; people in skin tones are left out."""
    english = packages["emojibase"] / "package" / "en"
    messages = json.loads((english / "messages.json").read_text("utf-8"))
    kinds = {item["order"]: item["message"] for item in messages["subgroups"]}
    library = json.loads((packages["emojilib"] / "package/dist/emoji-en-US.json").read_text("utf-8"))
    shortcodes: dict[str, list[str]] = {}
    for name in ("emojibase", "github", "cldr"):
        for code, short in json.loads((english / "shortcodes" / f"{name}.json").read_text("utf-8")).items():
            shortcodes.setdefault(code, []).extend([short] if isinstance(short, str) else short)
    by_code, by_name = {}, {}
    for item in json.loads((english / "data.json").read_text("utf-8")):
        if item.get("group", COMPONENTS) == COMPONENTS:
            continue
        code = plain_code(item["hexcode"])
        further = [*shortcodes.get(item["hexcode"], ()), *library.get(item["emoji"], ())[:1]]
        names = tuple(dict.fromkeys(clean(name) for name in (item["label"], *further) if len(name) > 1))
        keywords = tuple(
            dict.fromkeys(clean(word) for word in (*item.get("tags", ()), *library.get(item["emoji"], ())[1:]))
        )
        by_code[code] = Concept(code, names[0], names, keywords, kinds.get(item["subgroup"], ""))
        for name in names:
            by_name.setdefault(bare(name), code)
    for code, concept in by_code.items():
        by_name[bare(concept.label)] = code
    return Emoji(by_code, by_name)
