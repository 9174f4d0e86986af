"""The packages that serving needs beside those of calprompt itself: the extra `serve`."""

from __future__ import annotations

from importlib.util import find_spec

from calprompt.errors import SettingError

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
