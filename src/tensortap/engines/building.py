"""Building a native observer for the framework that is installed here.

Frameworks promise no binary interface from one version to the next, so a library cannot be shipped: it is compiled
on the machine that uses it, once per framework and Python, and kept (`libraries.py`). Nothing but a C++ compiler is
needed. What differs from framework to framework is a `Recipe`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tensortap.engines.libraries import Place, UnusablePlaceError, all_places, seal
from tensortap.errors import NativeBuildError, TensortapError
from tensortap.pill import C_HEADER

__all__ = [
    "FLAGS",
    "Recipe",
    "ensure_built",
    "find_built",
    "find_compiler",
    "library_path",
    "load_or_build",
    "make_key",
    "remove_all",
]

log = logging.getLogger("tensortap.engine")

T = TypeVar("T")

# A compiler on a loaded node with a network file system is slow; one that takes longer than this is stuck.
COMPILE_SECONDS = 600.0

COMPILERS = ("c++", "g++", "clang++")
_LANGUAGES = {"C++": ("CXX", "g++", COMPILERS), "C": ("CC", "gcc", ("cc", "gcc", "clang"))}
"""Of each: the variable that names a compiler, what to install, and what to look for."""

# Portable code (no -march=native): machines of different kinds share a home directory.
# Frameworks are built without assertions, and some of their classes have a member more with them.
FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden")

_SHOWN_LINES = 15  # of a compiler's output: enough for one error of C++ templates


class Recipe(ABC):
    """What it takes to build the observer of one framework.

    Attributes:
        framework: its name, with which keys begin.
        language: that it is written in.
        seconds: about how long it takes, to be told.
    """

    framework: str
    language: str = "C++"
    seconds: int

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the framework."""

    @abstractmethod
    def key(self, source: Path) -> str:
        """What a library of this source is built for; made by `make_key`."""

    @abstractmethod
    def command(self, source: Path) -> list[str]:
        """The command that compiles; the output file is still to be named.

        Raises:
            NativeBuildError: something it needs is not installed.
        """

    @property
    def target(self) -> str:
        """What a library is for, in words."""
        return f"{self.framework} {self.version}"


def library_path(recipe: Recipe, source: Path) -> Path:
    """Where the library for what is installed here belongs, whether or not it is there."""
    return all_places()[0].directory(recipe.key(source)) / "observer.so"


def find_built(recipe: Recipe, source: Path) -> Path:
    """The library, ready to be loaded. Never compiles.

    Raises:
        NativeBuildError: it is not there, damaged, or lies where others could have changed it.
    """
    key = recipe.key(source)
    refused = []
    for place in all_places():
        try:
            return place.find(key, recipe.target)
        except NativeBuildError as error:
            refused.append(error)
    raise refused[0]


def ensure_built(recipe: Recipe, source: Path, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be.

    Processes that ask at the same time compile once: the others wait and take the result.

    Args:
        recipe: of the framework.
        source: the C++ file.
        force: compile even if the library is there, because it does not load. Processes that force at the same
            time still compile once.

    Raises:
        NativeBuildError: it cannot be built here; the error says why and what helps.
    """
    why_build = ""
    if not force:
        try:
            return find_built(recipe, source)
        except NativeBuildError as error:
            why_build = error.reason
    key = recipe.key(source)
    try:
        command = recipe.command(source)
    except NativeBuildError as error:  # who built it ahead of time wants to know why that is not used
        raise NativeBuildError(error.reason, error.fix, why_build) from None
    refused: list[NativeBuildError] = []
    for place in all_places():
        before = place.identity(key)
        try:
            with place.building(key) as is_only_builder:
                with suppress(NativeBuildError):
                    found = place.find(key, recipe.target)  # another process was faster
                    if not force or place.identity(key) != before:
                        return found
                for refusal in refused:
                    log.warning(
                        "%s The native interceptor is kept in %s instead.", refusal.reason, place.root
                    )
                return _build(recipe, place, key, command, is_only_builder)
        except UnusablePlaceError as error:
            refused.append(error)
    raise refused[0]


def load_or_build(recipe: Recipe, source: Path, load: Callable[[Path], T], without: str) -> T:
    """The library, loaded; built first if need be, and once more if it does not load.

    Args:
        recipe: of the framework.
        source: the C++ file.
        load: loads it; raises `OSError` if that cannot be done.
        without: how to do without it, for the error.

    Raises:
        NativeBuildError: it cannot be built or loaded here.
    """
    try:
        return load(ensure_built(recipe, source))
    except OSError:  # damaged, or built against another build of the same version: once more
        try:
            return load(ensure_built(recipe, source, force=True))
        except OSError as error:
            raise NativeBuildError(
                f"the native interceptor does not load: {error}",
                f"reinstall {recipe.framework}, or report it; {without} does without",
            ) from error


def remove_all(framework: str) -> list[Path]:
    """Remove the libraries for all versions of a framework; the directories that are gone."""
    removed = []
    for place in all_places():
        try:
            place.check_trust([place.root])  # what a stranger's link leads to is not ours to remove
        except FileNotFoundError:
            continue
        except NativeBuildError as error:
            log.warning("%s Nothing was removed there.", error.reason)
            continue
        for directory in sorted(place.root.glob(f"native/{framework}-*/")):
            shutil.rmtree(directory)
            removed.append(directory)
    return removed


def make_key(recipe: Recipe, source: Path, abi: str, facts: Sequence[str]) -> str:
    """What a library was built for: readable in front, and a digest of everything that matters.

    Args:
        recipe: of the framework.
        source: the C++ file; the headers beside it and `pill.h` belong to it.
        abi: what else is worth reading.
        facts: what else makes another library of it: exact versions and flags.
    """
    try:
        text = b"\0".join(
            each.read_bytes() for each in [source, *sorted(source.parent.glob("*.h")), C_HEADER]
        )
    except OSError as error:
        raise NativeBuildError(
            f"{source} cannot be read: {error.strerror}.", "Install tensortap again."
        ) from error
    python = sysconfig.get_config_var("SOABI") or "unknown-python"
    everything = [recipe.version, python, platform.machine(), *facts]
    digest = hashlib.sha256(json.dumps(everything).encode() + text).hexdigest()
    readable = f"{recipe.framework}-{recipe.version}-{abi}-{python}-{platform.machine()}-{digest[:12]}"
    return re.sub(r"[^\w.+-]", "_", readable)


def find_compiler(language: str = "C++") -> list[str]:
    """The compiler of a language and arguments for it.

    Raises:
        NativeBuildError: there is none.
    """
    variable, package, names = _LANGUAGES[language]
    text = os.environ.get(variable, "").strip()
    if text:
        with suppress(ValueError):  # a quote that is not closed
            name, *arguments = shlex.split(text)
            if path := shutil.which(name):
                return [os.path.abspath(path), *arguments]
        raise NativeBuildError(
            f"The {language} compiler that {variable} names ({text!r}) was not found.",
            f"Correct {variable}, or unset it.",
        )
    for name in names:
        if path := shutil.which(name):
            return [path]
    raise NativeBuildError(
        f"There is no {language} compiler here ({', '.join(names)} are not on PATH).",
        f"Install {package}, set {variable}, or build where there is one and set TENSORTAP_CACHE_DIR to what was "
        "built.",
    )


def _build(recipe: Recipe, place: Place, key: str, command: list[str], is_only_builder: bool) -> Path:
    directory = place.directory(key)
    library, log_file = directory / "observer.so", directory / "build.log"
    log.warning(
        "Building the native interceptor for %s (once per %s version, about %d s) ...",
        recipe.target,
        recipe.framework,
        recipe.seconds,
    )
    work: Path | None = None
    try:
        if is_only_builder:
            for left_by_a_killed_process in directory.glob(".build-*"):
                shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=directory))
        made, output = work / "observer.so", work / "build.log"
        try:
            _run_compiler([*command, "-o", str(made)], work, output)
            if not made.exists():
                raise _CompilerFailed(f"{command[0]} made no library")
        except _CompilerFailed as failed:
            os.replace(output, log_file)
            raise failed.explained(recipe, log_file) from None
        seal(made, key)
        made.chmod(place.mode)  # the compiler followed the umask, which may let everybody write
        os.replace(made, library)
        log_file.unlink(missing_ok=True)
    except OSError as error:
        raise place.unusable(error) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    return library


class _CompilerFailed(TensortapError):
    """The compiler ended without a library."""

    def explained(self, recipe: Recipe, log_file: Path) -> NativeBuildError:
        """The error for users, with the end of what the compiler said."""
        lines = log_file.read_text(errors="replace").splitlines()
        variable = _LANGUAGES[recipe.language][0]
        return NativeBuildError(
            f"The native interceptor could not be compiled: {self}.",
            f"Its whole output is in {log_file}; setting {variable} to another compiler may help.",
            "\n".join(lines[-_SHOWN_LINES:]),
        )


def _run_compiler(command: list[str], work: Path, output: Path) -> None:
    """Compile, leaving nothing behind outside `work` and no process, however this ends."""
    # TMPDIR: what a killed compiler leaves goes with the directory. LC_ALL: messages that can be searched for.
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    with open(output, "wb") as file:
        file.write((shlex.join(command) + "\n").encode())
        file.flush()
        # A group of its own, so that the compiler proper is ended together with the driver that started it.
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=work,
                env=environment,
                process_group=0,
            )
        except OSError as error:
            raise _CompilerFailed(f"{command[0]} does not start ({error.strerror})") from None
        try:
            code = process.wait(COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise _CompilerFailed(f"{command[0]} took longer than {COMPILE_SECONDS:.0f} s") from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code < 0:
        raise _CompilerFailed(f"{command[0]} was killed by signal {-code}")
    if code > 0:
        raise _CompilerFailed(f"{command[0]} failed with exit code {code}")
