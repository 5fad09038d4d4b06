"""Every public name is listed, sorted, documented, and its example runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import tensortap
import tensortap.torch

MODULES = [
    importlib.import_module(info.name) for info in pkgutil.walk_packages(tensortap.__path__, "tensortap.")
]
PUBLIC = [(tensortap, name) for name in tensortap.__all__] + [
    (tensortap.torch, name) for name in tensortap.torch.__all__
]


PROGRAM = """
import torch, errno as errors
mine = torch, errors
from tensortap import *
assert (torch, errors) == mine, "names of the user are gone"
assert WatchOptions("DebugNanCount").debug_ops == ["DebugNanCount"]
import tensortap
assert tensortap.torch is not torch
"""


def test_a_star_import_leaves_modules_of_the_user_alone():
    exec(PROGRAM, {})
    assert not [name for name in tensortap.__all__ if inspect.ismodule(getattr(tensortap, name))]
    assert {"errors", "torch"} <= set(dir(tensortap))


def test_every_exception_of_ours_is_of_one_family():
    found = {
        each
        for module in MODULES
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, BaseException)
        and each.__module__.startswith("tensortap")
    }
    assert len(found) > 30
    assert not [each for each in found if not issubclass(each, tensortap.errors.TensortapError)]


def test_all_is_complete():
    assert set(tensortap._HOME_OF) == set(tensortap.__all__)


@pytest.mark.parametrize("module", [tensortap, *MODULES], ids=lambda module: module.__name__)
def test_all_is_sorted_and_true(module):
    names = getattr(module, "__all__", [])
    # As the linter sorts: constants, then classes, then functions.
    assert list(names) == sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    for name in names:
        assert hasattr(module, name)


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_public_names_are_documented_with_an_example(module, name):
    text = inspect.getdoc(getattr(module, name)) or ""
    if name == "torch":
        assert text
    else:
        assert ">>> " in text, f"{name} has no example"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_run(module):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    failed, _ = doctest.testmod(module, optionflags=options)
    assert failed == 0
