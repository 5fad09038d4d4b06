"""How the native observer is built for the TensorFlow that is installed here; see `engines/building.py`."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from tensortap.engines import building
from tensortap.errors import NativeBuildError
from tensortap.pill import C_HEADER

__all__ = ["SOURCE", "NativeBuildError", "ensure_built", "find_built", "library_path", "remove_all"]

SOURCE = Path(__file__).with_name("observer.cpp")
"""The source of the native observer; the headers beside it and `pill.h` belong to it."""


def library_path(source: Path = SOURCE) -> Path:
    """Where the library for this TensorFlow and this source belongs, whether or not it is there."""
    return building.library_path(RECIPE, source)


def find_built(source: Path = SOURCE) -> Path:
    """The library, ready to be loaded. Never compiles; see `building.find_built`."""
    return building.find_built(RECIPE, source)


def ensure_built(source: Path = SOURCE, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be, see `building.ensure_built`."""
    return building.ensure_built(RECIPE, source, force)


def remove_all() -> list[Path]:
    """Remove the libraries of all TensorFlow versions; the directories that are gone."""
    return building.remove_all(RECIPE.framework)


class _TensorFlowRecipe(building.Recipe):
    framework = "tensorflow"
    seconds = 20

    @property
    def version(self) -> str:
        return str(tf.__version__)

    def key(self, source: Path) -> str:
        abi = f"cxx11abi{int(tf.sysconfig.CXX11_ABI_FLAG)}"
        facts = [tf.version.GIT_VERSION, tf.version.COMPILER_VERSION, *_flags()]
        return building.make_key(self, source, abi, [str(fact) for fact in facts])

    def command(self, source: Path) -> list[str]:
        compiler = building.find_compiler()
        headers, libraries = Path(tf.sysconfig.get_include()), Path(tf.sysconfig.get_lib())
        if not (headers / "tensorflow/core/common_runtime/executor_factory.h").exists():
            raise NativeBuildError(
                f"This TensorFlow came without its C++ headers ({headers} is incomplete).",
                "Install TensorFlow from its wheel.",
            )
        return [
            *compiler,
            *_flags(),
            # Headers of a system: what is deprecated in them is not for us to change.
            *("-isystem", str(headers)),
            *("-iquote", str(C_HEADER.parent)),
            str(source.absolute()),
            *tf.sysconfig.get_link_flags(),
            # In two arguments, not -Wl,: a comma may be part of the path.
            *("-Xlinker", "-rpath", "-Xlinker", str(libraries)),
        ]


def _flags() -> list[str]:
    theirs = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return [*building.FLAGS, *theirs]


RECIPE = _TensorFlowRecipe()
