"""A fitted model, a run or an exported folder behind a web page and a JSON API.

    load_served("model")                      what is served, from a folder
    create_app(served, ServeSettings())       the web application, for any ASGI server
    run_server(served, ServeSettings())       serves it until it is stopped: calprompt serve

Needs the extra `serve`. An exported folder is served without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.serve.app import create_app
    from calprompt.serve.loading import load_served, served_classifier, served_export, served_run
    from calprompt.serve.served_model import ServedModel
    from calprompt.serve.server import run_server
    from calprompt.serve.settings import ServeSettings

__all__ = [
    "ServeSettings",
    "ServedModel",
    "create_app",
    "load_served",
    "run_server",
    "served_classifier",
    "served_export",
    "served_run",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "app": ("create_app",),
        "loading": ("load_served", "served_classifier", "served_export", "served_run"),
        "served_model": ("ServedModel",),
        "server": ("run_server",),
        "settings": ("ServeSettings",),
    },
)
