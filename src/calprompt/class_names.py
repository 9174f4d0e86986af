"""Class names as prompts read them; needs neither torch nor a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calprompt.errors import SettingError


def readable(name: str) -> str:
    """A class name as it is read out in a prompt: underscores become blanks.

    >>> readable("american_pit_bull_terrier")
    'american pit bull terrier'
    """
    return name.replace("_", " ")


def normalized_name(name: str) -> str:
    """A class name as the tokenizer sees it, to which case and repeated blanks make no difference.

    >>> normalized_name("Pit_Bull ") == normalized_name("pit bull")
    True
    """
    return " ".join(readable(name).lower().split())


def fill_template(template: str, name: str) -> str:
    """A template with the class name in its slot.

    >>> fill_template("a photo of a {}, a type of pet.", "maine_coon")
    'a photo of a maine coon, a type of pet.'
    """
    if template.count("{}") != 1:
        raise SettingError(f"template {template!r} needs the class name's slot '{{}}' exactly once")
    return template.replace("{}", readable(name))


def read_alike(names: Iterable[str]) -> list[str]:
    """Names that the model reads alike, in words.

    >>> read_alike(["pit bull", "cat", "Pit_Bull"])
    ["'pit bull' and 'Pit_Bull'"]
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(normalized_name(name), []).append(repr(name))
    return [" and ".join(same) for same in alike.values() if len(same) > 1]


def check_class_names(class_names: Sequence[str], *, allow_repeated: bool = False) -> tuple[str, ...]:
    """A list of class names, checked: text that is not empty, and no two that the model reads alike.

    >>> check_class_names(["cat", "dog"])
    ('cat', 'dog')
    """
    if isinstance(class_names, str):
        raise SettingError(
            f"must be a list of names such as [{class_names!r}], got the text {class_names!r}", parameter="class_names"
        )
    if not isinstance(class_names, Iterable):
        raise SettingError(f"must be a list of names, got {class_names!r}", parameter="class_names")
    names = tuple(class_names)
    if not names:
        raise SettingError("class_names is empty; give at least one class name")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise SettingError(f"must be names, got {name!r}", parameter="class_names")
    alike = read_alike(names)
    if alike and not allow_repeated:
        raise SettingError(f"must differ, and the model reads these alike: {alike[0]}", parameter="class_names")
    return names
