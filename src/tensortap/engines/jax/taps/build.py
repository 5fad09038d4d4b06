"""Building the library of taps for the jaxlib that is installed here, and keeping what was built.

XLA's foreign functions are a C interface with a version, so one file of C compiled against jaxlib's headers will do.
It takes half a second, and is kept in the user's cache beside the other native parts:

    <cache>/native/jax-<version>-<digest>/taps.so
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import jaxlib

from tensortap.errors import NativeBuildError
from tensortap.pill import C_HEADER

__all__ = ["SOURCE", "ensure_built", "find_built", "library_path", "remove_all"]

SOURCE = Path(__file__).with_name("taps.c")
"""The source of the taps; `pill.h` belongs to it."""

COMPILE_SECONDS = 120.0
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
_HEADERS = Path(next(iter(jaxlib.__path__))) / "include"
_SHOWN_LINES = 15


def library_path(source: Path = SOURCE) -> Path:
    """Where the library for this jaxlib and this source belongs, whether or not it is there."""
    text = source.read_bytes() + C_HEADER.read_bytes()
    digest = hashlib.sha256(" ".join((*FLAGS, platform.machine())).encode() + text).hexdigest()
    name = re.sub(r"[^\w.+-]", "_", f"jax-{jaxlib.__version__}-{platform.machine()}-{digest[:12]}")
    return _cache() / "native" / name / "taps.so"


def find_built(source: Path = SOURCE) -> Path:
    """The library, ready to be loaded. Never compiles.

    Raises:
        NativeBuildError: it is not there, or lies where others could have put it.
    """
    library = library_path(source)
    if not library.is_file():
        raise NativeBuildError(
            f"The taps have not been built for jaxlib {jaxlib.__version__} ({library} is missing).",
            "Build them with `tensortap build`.",
        )
    for path in (library, library.parent, library.parent.parent):
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
            raise NativeBuildError(
                f"Code is not loaded from {path}, which others can change.",
                "Set TENSORTAP_CACHE_DIR to a directory of yours.",
            )
    return library


def ensure_built(source: Path = SOURCE, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be.

    Processes that build at the same time each put a whole library in place, in one step.

    Raises:
        NativeBuildError: it cannot be built here; the error says why and what helps.
    """
    library = library_path(source)
    if library.is_file() and not force:
        return find_built(source)
    command = _command(source)
    try:
        library.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as work:
            made = Path(work, "taps.so")
            ran = subprocess.run(
                [*command, "-o", str(made)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_SECONDS,
            )
            if ran.returncode or not made.exists():
                said = "\n".join((ran.stdout + ran.stderr).splitlines()[-_SHOWN_LINES:])
                raise NativeBuildError(
                    f"The taps could not be compiled: {command[0]} ended with code {ran.returncode}.",
                    "Setting CC to another compiler may help.",
                    said,
                )
            made.chmod(0o755)
            os.replace(made, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(
            f"The taps could not be built in {library.parent}: {error}.",
            "Set TENSORTAP_CACHE_DIR to a directory that can be written to.",
        ) from error
    return find_built(source)


def remove_all() -> list[Path]:
    """Remove the libraries of all versions; the directories that are gone."""
    removed = sorted((_cache() / "native").glob("jax-*/"))
    for directory in removed:
        shutil.rmtree(directory)
    return removed


def _cache() -> Path:
    named = os.environ.get("TENSORTAP_CACHE_DIR", "").strip()
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared, "tensortap")
    return Path(os.path.expanduser("~"), ".cache", "tensortap")


def _command(source: Path) -> list[str]:
    if not (_HEADERS / "xla/ffi/api/c_api.h").exists():
        raise NativeBuildError(
            f"This jaxlib came without the headers of XLA's foreign functions ({_HEADERS}).",
            "Install jaxlib from its wheel.",
        )
    return [
        *_compiler(),
        *FLAGS,
        f"-I{_HEADERS}",
        *("-iquote", str(C_HEADER.parent)),
        str(source.absolute()),
        "-lm",
    ]


def _compiler() -> list[str]:
    text = os.environ.get("CC", "").strip()
    for name in [text] if text else COMPILERS:
        words = shlex.split(name)
        if words and (path := shutil.which(words[0])):
            return [path, *words[1:]]
    raise NativeBuildError(
        f"There is no C compiler here ({text or ', '.join(COMPILERS)}).",
        "Install gcc or set CC; without it JAX programs are watched by slower means.",
    )
