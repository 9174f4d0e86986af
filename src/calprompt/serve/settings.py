"""Settings of `calprompt serve`, checked before a port is opened, and its keys: who may do what.

A key has a name and a role, and is sent as "Authorization: Bearer TOKEN".

    predict     images, and everything that can be read
    feedback    also: say that answers were right or wrong, and undo it
    admin       also: undo the feedback of others, acknowledge alarms and restart watches
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from calprompt.data.decoding import COMMON, FORMATS
from calprompt.errors import Parameter, SettingError
from calprompt.files import check_output, check_writable
from calprompt.parallel import available_cores
from calprompt.registry import unknown
from calprompt.text import os_problem, size_in_bytes

MOST_DECODERS = 4  # unless more are asked for
DECODER_BASE = 768 * 2**20  # bytes that a decoder may take besides its picture: Python, libraries, the file itself
BYTES_PER_PIXEL = 16  # that decoding takes at most: two pictures of four channels, and one that is being resized

ROLES = ("predict", "feedback", "admin")  # each may do what those before it may
PREDICT, FEEDBACK, ADMIN = ROLES
SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class ServeSettings:
    """How a model is served.

    Attributes:
        host: Address to listen on; another than this machine's own needs keys.
        port: Port to listen on; 0 takes a free one.
        token: What clients have to send as "Authorization: Bearer TOKEN", with all rights.
        token_file: File of named keys, a line each: name, role (predict, feedback or admin) and token.
        keys: Name, role and token of further keys.
        allowed_hosts: Further names that browsers may know this server by, besides localhost and its address.
        trusted_proxies: Addresses of proxies before it, whose X-Forwarded-For says who asks.
        access_log: File for a line of JSON per request, or - for standard error; nothing is logged, if None.
        queue: Images that may wait or be worked on at a time; further requests are told to come back.
        batch: Images that go through the model together at most.
        decoders: Processes that decode images; one per core up to 4, if None.
        max_body: Largest request, such as 20MB.
        max_memory: Of all requests together that are being worked on, such as 512MB.
        max_pixels: Largest JPEG, in millions of pixels; other formats may have half as many.
        formats: Image formats that are read.
        max_images: Images in one request at most.
        timeout: Seconds that a request may take to arrive, and again an answer to be made.
        decode_timeout: Seconds that an image may take to be decoded.
        connections: Open at a time at most; a quarter of them by one address.
        drain: Seconds that requests under way have to finish when the server is stopped.
        feedback: File that keeps which answers were right or wrong; nothing is kept, if None.
        keep: Folder that keeps images with feedback, a subfolder per class, to fit again; none are kept, if None.
        max_keep: What the folder may hold, such as 1GB.
        watch: File that keeps what the images served so far say, so that it is not lost with the process; nothing is
            kept, if None.
        refit: What the model was fitted on, as 'calprompt fit' takes it, so that admins can have a new version fitted
            that learns from the kept images too; no new versions, if None.
        samples: Folder of pictures to try, which the empty page offers; pictures of the package if they show its
            classes, if None.
        false_alarms: How often, at most, a watch may raise an alarm although nothing has changed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    token_file: str | None = None
    keys: tuple[tuple[str, str, str], ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    access_log: str | None = None
    queue: int = 256
    batch: int = 32
    decoders: int | None = None
    max_body: str = "20MB"
    max_memory: str = "512MB"
    max_pixels: float = 50.0
    formats: tuple[str, ...] = COMMON
    max_images: int = 64
    timeout: float = 30.0
    decode_timeout: float = 5.0
    connections: int = 1000
    drain: float = 30.0
    feedback: str | None = None
    keep: str | None = None
    max_keep: str = "10GB"
    watch: str | None = None
    refit: str | None = None
    samples: str | None = None
    false_alarms: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingError(f"must be a number from 0 to 65535, got {self.port}", parameter="port")
        for name in ("queue", "batch", "max_images", "connections", "decoders"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"must be 1 or more, got {value}", parameter=name)
        for name in ("timeout", "decode_timeout", "drain", "max_pixels"):
            if not 0 < getattr(self, name) < 1e6:
                raise SettingError(f"must be a positive number, got {getattr(self, name)}", parameter=name)
        for name in ("max_body", "max_memory", "max_keep"):
            if not size_in_bytes(getattr(self, name)):
                raise SettingError(f"must be a size such as 20MB, got {getattr(self, name)!r}", parameter=name)
        if self.memory_bytes < 3 * self.body_bytes:  # a form and its parts, which are to be three quarters at most
            raise SettingError(
                f"must be at least three times the largest body, {self.max_body}, or no such form is ever taken; got "
                f"{self.max_memory}",
                parameter="max_memory",
            )
        if not 0 < self.false_alarms < 1:
            raise SettingError(f"must be a rate between 0 and 1, got {self.false_alarms}", parameter="false_alarms")
        for name in self.formats:
            if name.upper() not in FORMATS:
                raise unknown("image format", name, FORMATS)
        object.__setattr__(self, "formats", tuple(dict.fromkeys(name.upper() for name in self.formats)))
        if not self.formats:
            raise SettingError(f"must be one or more of {', '.join(FORMATS)}", parameter="formats")
        if self.token is not None:
            check_token(self.token)
        if not self.is_local and not (self.token or self.token_file or self.keys):
            raise SettingError(
                f"{self.host} can be reached by other machines, so keys are needed: ",
                Parameter("token_file", "FILE"),
                " with a line such as 'anna admin TOKEN', or the environment variable CALPROMPT_TOKEN",
            )
        if self.keep is not None:
            check_writable(self.keep, parameter="keep")
        if self.feedback is not None:
            check_output(self.feedback, parameter="feedback")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def body_bytes(self) -> int:
        """The largest request, in bytes."""
        return size_in_bytes(self.max_body) or 0

    @property
    def memory_bytes(self) -> int:
        """Of all requests together, in bytes."""
        return size_in_bytes(self.max_memory) or 0

    @property
    def keep_bytes(self) -> int:
        """That kept images may take."""
        return size_in_bytes(self.max_keep) or 0

    @property
    def all_keys(self) -> tuple[tuple[str, str, str], ...]:
        """Name, role and token of all keys but those of the file."""
        return self.keys if self.token is None else (("token", ADMIN, self.token), *self.keys)

    @property
    def pixels(self) -> int:
        """Of the largest image."""
        return int(self.max_pixels * 1e6)

    @property
    def decoder_count(self) -> int:
        """Processes that decode images."""
        return self.decoders or min(MOST_DECODERS, available_cores())

    @property
    def decoder_memory(self) -> int:
        """Bytes of address space that a decoding process may take."""
        return DECODER_BASE + BYTES_PER_PIXEL * self.pixels + 2 * self.body_bytes


SERVING = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}
SERVING |= {"python_multipart": "python-multipart"}


def require_packages() -> None:
    """Raise a `SettingError` for packages that are not installed."""
    missing = [package for module, package in SERVING.items() if find_spec(module) is None]
    if missing:
        raise SettingError(
            f"serving needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'calprompt[serve]'"
        )


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
