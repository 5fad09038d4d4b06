"""The line that gives a module what it holds: `self.scale = …`, as its class is written."""

from __future__ import annotations

import functools
import inspect
import re
from types import FunctionType
from typing import Any

from torch import nn

from tensortap.engines.torch import lines
from tensortap.records import Frame

__all__ = ["line_of_attribute", "line_of_parameter"]


def line_of_parameter(root: nn.Module, path: str) -> Frame | None:
    """The innermost line of the user's classes by which a parameter, or the module it is in, got into a model.

    Args:
        root: the model.
        path: with dots, as PyTorch names it.
    """
    found: Frame | None = None
    owner: object = root
    for attribute in path.split("."):
        if not isinstance(owner, nn.Module):
            break
        kind: Any = type(owner)
        line = line_of_attribute(kind, attribute)
        if line is not None and (found is None or not line.is_installed):
            found = line
        owner = getattr(owner, attribute, None)
    return found


@functools.lru_cache(maxsize=4096)
def line_of_attribute(owner: type, attribute: str) -> Frame | None:
    """The line at which a class of the user's gives its instances an attribute.

    >>> line_of_attribute(nn.Linear, "weight") is None
    True
    """
    for cls in owner.__mro__:
        make = vars(cls).get("__init__")
        if not isinstance(make, FunctionType) or not lines.is_users(make.__code__):
            continue
        try:
            text, first = inspect.getsourcelines(cls)
        except (OSError, TypeError):
            continue
        name = re.escape(attribute)
        given = re.compile(
            rf"\bself\.{name}\s*(:[^=]+)?=[^=]|\b(register_parameter|add_module|register_module|setattr)\(.*[\"']{name}[\"']"
        )
        for number, line in enumerate(text):
            if given.search(line):
                return Frame(make.__code__.co_filename, first + number, f"{cls.__qualname__}.__init__")
    return None
