"""Python files of the user that register a tuner, loss, calibrator or metric: each is run once."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from calprompt.errors import CalpromptError, NotFoundError, SettingError

_imported: dict[Path, str] = {}  # files that this process has run, and their digests


def load_extension(path: str | Path) -> str:
    """Import a Python file by its path, once per process.

    The file is code and is run: import only what you trust. A file that has changed since it was imported is an error,
    because the old code would be used under the digest of the new one.
    """
    path, digest = Path(path).expanduser().resolve(), extension_digest(path)
    if _imported.get(path, digest) != digest:
        raise SettingError(f"{path} has changed since this process imported it; start a new process to use it")
    name = f"calprompt_extension_{digest[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # a file that ends the process is no better than one that fails
            del sys.modules[name]
            if isinstance(error, CalpromptError | KeyboardInterrupt):
                raise
            reason = f": {error}" if str(error) else ""
            raise SettingError(f"importing {path} failed: {type(error).__name__}{reason}") from error
    _imported[path] = digest
    return digest


def imported_files(digests: Sequence[str]) -> list[str]:
    """For each of these digests, a file that this process has imported already, because the user named it."""
    known = {digest: str(path) for path, digest in _imported.items() if path.is_file()}
    return [known[digest] for digest in digests if digest in known]


def extension_digest(path: str | Path) -> str:
    """The sha256 of a Python file, which is not run."""
    path = Path(path).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise NotFoundError(f"there is no Python file {path} to import")
    return hashlib.sha256(path.read_bytes()).hexdigest()
