"""Text files that people write: UTF-8, with or without a byte-order mark."""

from __future__ import annotations

from pathlib import Path

from calprompt.errors import DataError


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file, without blanks around them and without empty ones."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]
