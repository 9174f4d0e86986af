"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
NOTE = "note"  # worth knowing, and nothing is broken
PROBLEM = "problem"  # something will not work until it is mended


@dataclass(frozen=True)
class Finding:
    """One line of what `calprompt doctor` says.

    Attributes:
        name: What was looked at, such as "torch".
        status: ok, note or problem.
        value: What was found.
        advice: What to do about it, or what it means; may be empty.
        section: The check that it belongs to.
    """

    name: str
    status: str
    value: str
    advice: str = ""
    section: str = ""
