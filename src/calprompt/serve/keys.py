"""Keys: who may do what. A key has a name and a role, and is sent as "Authorization: Bearer TOKEN".

    predict     images, and everything that can be read
    feedback    also: say that answers were right or wrong, and undo it
    admin       also: undo the feedback of others, acknowledge alarms and restart watches

A file of keys has a line for each: name, role and token. It is read again when it changes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from calprompt.errors import SettingError
from calprompt.text import os_problem

ROLES = ("predict", "feedback", "admin")  # each may do what those before it may
PREDICT, FEEDBACK, ADMIN = ROLES
SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Key:
    """Who asks."""

    name: str  # stands in the access log and beside feedback
    role: str  # one of `ROLES`

    def may(self, role: str) -> bool:
        """Whether it may do what a role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Key("local", ADMIN)  # whoever asks a server without keys, which only this machine can reach


def check_token(token: str) -> str:
    """Raise for a token that is too short to be secret, or that cannot be sent."""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError(
            f"must be {SHORTEST_TOKEN} or more characters of ASCII without spaces; make one with: openssl rand -hex 16",
            parameter="token",
        )
    return token


def read_keys(path: str | Path) -> tuple[tuple[str, str, str], ...]:
    """Name, role and token of each key in a file."""
    path = Path(path).expanduser()
    example = f"a line such as 'anna admin {hashlib.sha256(os.urandom(16)).hexdigest()[:32]}'"
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise SettingError(f"{path} can be read by other users; change that with: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = os_problem(error) if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(f"cannot be read: {reason}; it needs {example}", parameter="token_file") from error
    found: dict[str, tuple[str, str, str]] = {}
    for number, line in enumerate(lines, 1):
        parts = line.partition("#")[0].split()
        if not parts:
            continue
        if len(parts) != 3 or parts[1] not in ROLES or parts[0] in found:
            raise SettingError(
                f"{path}, line {number}: expected a name that is not used yet, a role ({', '.join(ROLES)}) and a token"
            )
        found[parts[0]] = (parts[0], parts[1], check_token(parts[2]))
    if not found:
        raise SettingError(f"{path} has no keys; it needs {example}", parameter="token_file")
    return tuple(found.values())
