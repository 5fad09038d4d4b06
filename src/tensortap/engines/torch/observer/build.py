"""How the native interceptor is built for the torch that is installed here; see `engines/building.py`.

`torch.utils.cpp_extension` could do this too, but takes setuptools and seconds to import.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import torch

from tensortap.engines import building
from tensortap.errors import NativeBuildError
from tensortap.pill import C_HEADER

__all__ = ["SOURCE", "NativeBuildError", "ensure_built", "find_built", "library_path", "remove_all"]

SOURCE = Path(__file__).with_name("interface.cpp")
"""The source of the native interceptor; the headers beside it and `pill.h` belong to it."""

LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")


def library_path(source: Path = SOURCE) -> Path:
    """Where the library for this torch, this Python and this source belongs, whether or not it is there."""
    return building.library_path(RECIPE, source)


def find_built(source: Path = SOURCE) -> Path:
    """The library, ready to be loaded. Never compiles; see `building.find_built`."""
    return building.find_built(RECIPE, source)


def ensure_built(source: Path = SOURCE, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be, see `building.ensure_built`."""
    return building.ensure_built(RECIPE, source, force)


def remove_all() -> list[Path]:
    """Remove the libraries of all torch versions; the directories that are gone."""
    return building.remove_all(RECIPE.framework)


class _TorchRecipe(building.Recipe):
    framework = "torch"
    seconds = 30

    @property
    def version(self) -> str:
        return str(torch.__version__)

    def key(self, source: Path) -> str:
        git = torch.version.git_version or "unknown"
        abi = f"{git[:8]}-cxx11abi{int(torch.compiled_with_cxx11_abi())}"
        return building.make_key(self, source, abi, [git, *_flags(), *LIBRARIES])

    def command(self, source: Path) -> list[str]:
        python, installed = Path(sysconfig.get_paths()["include"]), Path(torch.__file__).parent
        compiler = building.find_compiler()
        if not (python / "Python.h").exists():
            raise NativeBuildError(
                f"Python's C headers are not installed ({python / 'Python.h'} is missing).",
                f"Install them: the package is called python{sysconfig.get_python_version()}-dev or python3-devel.",
            )
        if not (installed / "include" / "ATen").is_dir():
            raise NativeBuildError(
                f"This torch came without its C++ headers ({installed / 'include'} is incomplete).",
                "Install torch from its wheel or conda package.",
            )
        return [
            *compiler,
            *_flags(),
            f"-I{installed / 'include'}",
            f"-I{installed / 'include/torch/csrc/api/include'}",
            f"-I{python}",
            *("-iquote", str(C_HEADER.parent)),
            str(source.absolute()),
            f"-L{installed / 'lib'}",
            *LIBRARIES,
            # In two arguments, not -Wl,: a comma may be part of the path. A torch that is already loaded comes first,
            # so environments with the same torch share a library.
            *("-Xlinker", "-rpath", "-Xlinker", str(installed / "lib")),
        ]


def _flags() -> list[str]:
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    standard = "c++20" if version >= (2, 13) else "c++17"  # what the headers of torch itself ask for
    return [
        *building.FLAGS,
        f"-std={standard}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]


RECIPE = _TorchRecipe()
