"""The examples in the docstrings of calibrators and losses."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from calprompt import calibrators, losses

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (calibrators, losses)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


@pytest.mark.parametrize("registry", [calibrators.calibrators, losses.losses], ids=["calibrators", "losses"])
def test_every_calibrator_has_a_docstring(registry: object) -> None:
    for name in registry.available():  # type: ignore[attr-defined]
        about = registry.get(name).__doc__  # type: ignore[attr-defined]
        assert about, name
        assert not about.startswith(f"{registry.get(name).__name__}("), f"{name} has no docstring"  # type: ignore[attr-defined]
