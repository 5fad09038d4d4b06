"""Telling a forked child that it is not the process being observed.

A DataLoader that forks its workers inside a step copies the interceptor into them. Their ops are not part of the
run, and their records would be written twice.
"""

from __future__ import annotations

import os

__all__ = ["generation"]

_generation = 0


def generation() -> int:
    """A number that is different in every forked child."""
    return _generation


def _in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_in_child)
