"""The examples in the docstrings of this room."""

import doctest
import importlib
import pkgutil

import pytest

from calprompt import data

MODULES = [module.name for module in pkgutil.walk_packages(data.__path__, "calprompt.data.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module).failed == 0
