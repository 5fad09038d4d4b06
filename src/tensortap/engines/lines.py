"""Whose code a file is: the user's, a library's, ours.

A line belongs to the user unless its file lies in the framework, in tensortap or in the standard library: code of other
packages (a model zoo, a trainer) is what the user wants to see.
"""

from __future__ import annotations

import enum
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import tensortap

__all__ = ["Whose", "folder_of", "programs_begin_in", "resolved", "whose"]


class Whose(enum.Enum):
    """To whom a file belongs."""

    USER = enum.auto()
    LIBRARY = enum.auto()
    """The standard library, or the framework whose engine asks."""
    OURS = enum.auto()
    LAUNCHER = enum.auto()
    """It starts programs: what called it, or called the function that did, is no part of the program."""


def folder_of(path: str) -> str:
    """A folder as files begin that lie in it."""
    return str(Path(path).resolve()) + "/"


_OWN = folder_of(next(iter(tensortap.__path__)))
_STDLIB = folder_of(sysconfig.get_paths()["stdlib"])
_SITE = tuple(folder_of(sysconfig.get_paths()[kind]) for kind in ("purelib", "platlib"))
_launchers: set[str] = set()


def programs_begin_in(file: str) -> None:
    """Tell that a file of ours starts programs."""
    _launchers.add(resolved(file))


def resolved(file: str) -> str:
    """A file name as `whose` compares it. Code that is in no file, such as `<stdin>`, keeps its name."""
    return file if file.startswith("<") else str(Path(file).resolve())


def whose(file: str, framework: Iterable[str] = ()) -> Whose:
    """To whom a resolved file belongs.

    Args:
        file: as `resolved` returns it.
        framework: folders of the framework, as `folder_of` returns them.
    """
    if file.startswith(("<frozen", *framework)):
        return Whose.LIBRARY
    if file in _launchers:
        return Whose.LAUNCHER
    if file.startswith(_OWN):
        return Whose.OURS
    if file.startswith(_STDLIB) and not file.startswith(_SITE):
        return Whose.LIBRARY
    return Whose.USER
