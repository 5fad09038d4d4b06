"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tensortap.hooks

MODULES = [
    each.name
    for each in pkgutil.walk_packages(tensortap.hooks.__path__, "tensortap.hooks.")
    if not each.ispkg
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    pytest.importorskip("torch")
    result = doctest.testmod(
        importlib.import_module(name),
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert result.failed == 0
