"""Waiting for the program to import a framework: a program that uses none pays nothing and is not touched."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["when_imported"]

log = logging.getLogger("tensortap.hooks")


def when_imported(framework: str, action: Callable[[], None]) -> None:
    """Do `action` once the program has imported the framework; at once if it is there already.

    What goes wrong in it is logged, and the program goes on.
    """
    if framework in sys.modules:
        _attempt(action)
    else:
        sys.meta_path.insert(0, _Finder(framework, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual finders find the framework, and acts when it has been executed."""

    def __init__(self, framework: str, action: Callable[[], None]) -> None:
        self._framework = framework
        self._action = action

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._framework:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute: Any = spec.loader.exec_module

            def execute_and_act(module: Any) -> None:
                execute(module)
                _attempt(self._action)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def _attempt(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:
        log.warning("This program cannot be watched, and goes on without tensortap.", exc_info=True)
