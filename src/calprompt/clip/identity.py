"""The identity of a backbone, known without its weights in memory: its name, fingerprint and preprocessing.

Loading a backbone once writes them down beside the size and times of the files it was read from:

    <cache>/backbones/<digest of spec, config and dtype>.json

As long as these files stay as they are, planning a run takes milliseconds and needs neither torch nor open_clip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from calprompt.clip.preprocessing import Preprocessing
from calprompt.errors import CalpromptError
from calprompt.files import cache_folder, file_signature, json_digest, read_json, write_json
from calprompt.records import Record

FORMAT = 1
Config = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class BackboneIdentity(Record):
    """A backbone without its weights."""

    name: str  # what it was loaded from
    fingerprint: str  # digest of its weights and architecture
    preprocessing: Preprocessing  # how an image becomes its input
    embed_dim: int  # dimensions of a feature
    text_depth: int  # blocks of the text tower
    image_depth: int | None  # blocks of the image tower; None if it is not a vision transformer


def identify_backbone(
    spec: str | Path, *, config: Config | None = None, dtype: str = "float32"
) -> BackboneIdentity | None:
    """The identity of a backbone that was loaded before, if its files have not changed since."""
    try:
        entry = read_json(_entry(spec, config, dtype))
        if _signatures(entry["files"]) != entry["files"]:
            return None
        return BackboneIdentity.from_dict(entry["identity"])
    except (CalpromptError, KeyError, TypeError, AttributeError, OSError):
        return None


def remember_backbone(
    identity: BackboneIdentity,
    files: list[Path],
    spec: str | Path,
    *,
    config: Config | None = None,
    dtype: str = "float32",
) -> None:
    """Store an identity in the cache; a cache that is not writable is ignored."""
    entry = {
        "spec": str(spec),
        "identity": identity.to_dict(),
        "files": _signatures(files),
    }
    with suppress(OSError, CalpromptError):
        place = _entry(spec, config, dtype)
        if place.is_file() and read_json(place) == entry:
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, entry)


def _entry(spec: str | Path, config: Config | None, dtype: str) -> Path:
    key = {
        "format": FORMAT,
        "open_clip": version("open_clip_torch"),
        "spec": str(spec),
        "folder": str(Path.cwd()) if not Path(spec).is_absolute() or isinstance(config, str | Path) else "",
        "config": dict(config) if isinstance(config, Mapping) else None if config is None else str(config),
        "dtype": dtype,
    }
    try:
        digest = json_digest(key)[:32]
    except (TypeError, ValueError) as error:  # a config that is not JSON
        raise CalpromptError(str(error)) from error
    return cache_folder("backbones") / f"{digest}.json"


def _signatures(paths: Iterable[str | Path]) -> dict[str, list[int]]:
    return {str(path): list(file_signature(path) or ()) for path in paths}
