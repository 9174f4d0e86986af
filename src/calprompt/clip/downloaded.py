"""Which CLIPs were downloaded before, so that `load_backbone` finds them without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from open_clip import pretrained

from calprompt.clip.sources import CONFIGS, HUB, download_folders, find
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from calprompt.files import read_json


@dataclass(frozen=True)
class Downloaded:
    """A backbone whose weights are on this machine.

    Attributes:
        spec: As `load_backbone` takes it.
        path: Of the weights; `None` if they cannot be used.
        problem: Why not.
    """

    spec: str
    path: Path | None
    problem: str = ""


def downloaded_backbones(cache_dir: Path | None = None) -> Iterator[Downloaded]:
    """Every name of open_clip's table and every repository of a CLIP whose weights are in a local cache."""
    for spec in _candidates(cache_dir):
        try:
            source = find(spec, cache_dir, download=False)
        except NotFoundError:
            continue
        except DamagedFileError as error:
            yield Downloaded(spec, None, str(error))
        except CalpromptError:  # no model that calprompt can use
            continue
        else:
            if not spec.startswith(HUB) or _is_clip(source.path.parent):
                yield Downloaded(spec, source.path)


def _candidates(cache_dir: Path | None) -> Iterator[str]:
    for name, tag in pretrained.list_pretrained():
        yield f"{name}/{tag}"
    for folder in sorted(download_folders(cache_dir)[0].glob("models--*--*")):
        yield f"{HUB}{'/'.join(folder.name.split('--')[1:])}"


def _is_clip(folder: Path) -> bool:
    """Whether a config beside the weights says so: repositories of all kinds lie in this cache."""
    if (folder / CONFIGS["open_clip"]).is_file():
        return True
    with suppress(CalpromptError, AttributeError):
        return bool(read_json(folder / CONFIGS["huggingface"]).get("model_type") == "clip")
    return False
