"""How the library of taps is built for the jaxlib that is installed here; see `engines/building.py`.

XLA's foreign functions are a C interface with a version, so one file of C compiled against jaxlib's headers will do.
"""

from __future__ import annotations

from pathlib import Path

import jaxlib

from tensortap.engines import building
from tensortap.errors import NativeBuildError
from tensortap.pill import C_HEADER

__all__ = ["RECIPE", "SOURCE", "ensure_built", "find_built", "library_path", "remove_all"]

SOURCE = Path(__file__).with_name("taps.c")
"""The source of the taps; `pill.h` belongs to it."""

_FLAGS = ("-std=c11", "-O3", *building.FLAGS[1:], "-pthread")
_HEADERS = Path(next(iter(jaxlib.__path__))) / "include"


def library_path(source: Path = SOURCE) -> Path:
    """Where the library for this jaxlib and this source belongs, whether or not it is there."""
    return building.library_path(RECIPE, source)


def find_built(source: Path = SOURCE) -> Path:
    """The library, ready to be loaded. Never compiles; see `building.find_built`."""
    return building.find_built(RECIPE, source)


def ensure_built(source: Path = SOURCE, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be, see `building.ensure_built`."""
    return building.ensure_built(RECIPE, source, force)


def remove_all() -> list[Path]:
    """Remove the libraries of all versions of jaxlib; the directories that are gone."""
    return building.remove_all(RECIPE.framework)


class _JaxRecipe(building.Recipe):
    framework = "jax"
    language = "C"
    seconds = 1

    @property
    def version(self) -> str:
        return str(jaxlib.__version__)

    def key(self, source: Path) -> str:
        return building.make_key(self, source, "ffi", _FLAGS)

    def command(self, source: Path) -> list[str]:
        if not (_HEADERS / "xla/ffi/api/c_api.h").exists():
            raise NativeBuildError(
                f"This jaxlib came without the headers of XLA's foreign functions ({_HEADERS}).",
                "Install jaxlib from its wheel.",
            )
        return [
            *building.find_compiler(self.language),
            *_FLAGS,
            f"-I{_HEADERS}",
            *("-iquote", str(C_HEADER.parent)),
            str(source.absolute()),
            "-lm",
        ]


RECIPE = _JaxRecipe()
