"""Building the native interceptor for the torch that is installed here, and keeping what was built.

PyTorch promises no binary interface from one version to the next, so the library cannot be shipped: it is compiled
on the machine that uses it, once per torch and Python, and kept in the user's cache. Nothing but a C++ compiler is
needed. `torch.utils.cpp_extension` could do this too, but takes setuptools and seconds to import.

    <cache>/native/<key>/observer.so   the library; its last line is a checksum, so that a damaged one is noticed
                         build.log     what the compiler said, when it failed
                         lock          held by the one process that builds
                         .build-*/     a build that is under way, or that was killed

The cache is $TENSORTAP_CACHE_DIR, $XDG_CACHE_HOME/tensortap or ~/.cache/tensortap. Where that cannot be used, a private
directory of the user under the temporary directory takes its place. A library is code that will be executed: it is
taken only from where nobody but the user and root can have put it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from tensortap.errors import NativeBuildError, TensortapError
from tensortap.pill import C_HEADER

__all__ = ["SOURCE", "NativeBuildError", "ensure_built", "find_built", "library_path", "remove_all"]

log = logging.getLogger("tensortap.engine")

SOURCE = Path(__file__).with_name("interface.cpp")
"""The source of the native interceptor; the headers beside it and `pill.h` belong to it."""

# A compiler on a loaded node with a network file system is slow; one that takes longer than this is stuck.
COMPILE_SECONDS = 600.0
# How long to wait for another process that builds: no less than it may take.
WAIT_SECONDS = 600.0

COMPILERS = ("c++", "g++", "clang++")
# Portable code (no -march=native): machines of different kinds share a home directory.
# torch is built without assertions, and some of its classes have a member more with them.
FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden")
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")

_SEAL = b"\ntensortap library sha256 "
_SHOWN_LINES = 15  # of a compiler's output: enough for one error of C++ templates


def library_path(source: Path = SOURCE) -> Path:
    """Where the library for this torch, this Python and this source belongs, whether or not it is there."""
    return _places()[0].directory(_key(source)) / "observer.so"


def find_built(source: Path = SOURCE) -> Path:
    """The library, ready to be loaded. Never compiles.

    Raises:
        NativeBuildError: it is not there, damaged, or lies where others could have changed it.
    """
    key = _key(source)
    refused = []
    for place in _places():
        try:
            return place.find(key)
        except NativeBuildError as error:
            refused.append(error)
    raise refused[0]


def ensure_built(source: Path = SOURCE, force: bool = False) -> Path:
    """The library, ready to be loaded; built first if need be.

    Processes that ask at the same time compile once: the others wait and take the result.

    Args:
        source: the C++ file.
        force: compile even if the library is there, because it does not load. Processes that force at the same
            time still compile once.

    Raises:
        NativeBuildError: it cannot be built here; the error says why and what helps.
    """
    why_build = ""
    if not force:
        try:
            return find_built(source)
        except NativeBuildError as error:
            why_build = error.reason
    key = _key(source)
    try:
        command = _compiler_command(source)
    except NativeBuildError as error:  # who built it ahead of time wants to know why that is not used
        raise NativeBuildError(error.reason, error.fix, why_build) from None
    refused: list[NativeBuildError] = []
    for place in _places():
        before = place.identity(key)
        try:
            with place.building(key) as is_only_builder:
                with suppress(NativeBuildError):
                    found = place.find(key)  # another process was faster
                    if not force or place.identity(key) != before:
                        return found
                for refusal in refused:
                    log.warning(
                        "%s The native interceptor is kept in %s instead.", refusal.reason, place.root
                    )
                return _build(place, key, command, is_only_builder)
        except _UnusablePlace as error:
            refused.append(error)
    raise refused[0]


def remove_all() -> list[Path]:
    """Remove the libraries of all torch versions; the directories that are gone."""
    removed = []
    for place in _places():
        try:
            place.check_trust([place.root])  # what a stranger's link leads to is not ours to remove
        except FileNotFoundError:
            continue
        except NativeBuildError as error:
            log.warning("%s Nothing was removed there.", error.reason)
            continue
        for directory in sorted(place.root.glob("native/torch-*/")):
            shutil.rmtree(directory)
            removed.append(directory)
    return removed


class _UnusablePlace(NativeBuildError):
    """Libraries cannot be kept there; somewhere else it may work."""


@dataclass(frozen=True)
class _Place:
    """A directory that keeps libraries.

    Attributes:
        root: the directory.
        mode: permissions of what is made there.
        forbidden: permissions that must not have been given to anything there.
    """

    root: Path
    mode: int
    forbidden: int

    def directory(self, key: str) -> Path:
        """Where the library with this key and all that belongs to it is."""
        return self.root / "native" / key

    def identity(self, key: str) -> tuple[int, int] | None:
        """Something that changes whenever the library is replaced; None if there is none."""
        try:
            status = (self.directory(key) / "observer.so").stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def find(self, key: str) -> Path:
        """The library, if it is there and to be trusted."""
        library = self.directory(key) / "observer.so"
        again = "Build it with `tensortap build --force`."
        try:
            self.check_trust([*self._directories(key), library])
            content = library.read_bytes()
        except FileNotFoundError:
            raise NativeBuildError(
                f"The native interceptor has not been built for torch {torch.__version__} ({library} is missing).",
                "Build it with `tensortap build`.",
            ) from None
        except OSError as error:
            raise NativeBuildError(f"{library} cannot be read: {error}.", again) from error
        if not _is_sealed(content, key):
            raise NativeBuildError(f"{library} is damaged.", again)
        return library

    @contextmanager
    def building(self, key: str) -> Iterator[bool]:
        """Make the directory and keep other builders out; False if the file system has no locks."""
        self._make_directories(key)
        deadline = time.monotonic() + WAIT_SECONDS
        # File locks are per process, which is what keeps a forked child from inheriting one; threads need their own.
        if not _threads.acquire(timeout=WAIT_SECONDS):
            raise _waited_too_long(self.directory(key))
        try:
            try:
                file = open(self.directory(key) / "lock", "wb")  # noqa: SIM115 - closed below
            except OSError as error:
                raise self.unusable(error) from error
            with file:
                yield _lock(file, self.directory(key), deadline)
        finally:
            _threads.release()

    def _directories(self, key: str) -> list[Path]:
        return [self.root, self.root / "native", self.directory(key)]

    def _make_directories(self, key: str) -> None:
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for directory in self._directories(key):
                with suppress(FileExistsError):
                    directory.mkdir(self.mode)
            self.check_trust(self._directories(key))
            if os.statvfs(self.root).f_flag & os.ST_NOEXEC:
                raise _UnusablePlace(
                    f"{self.root} is on a file system that libraries cannot be loaded from (noexec).",
                    "Set TENSORTAP_CACHE_DIR to another directory.",
                )
        except OSError as error:
            raise self.unusable(error) from error

    def check_trust(self, paths: list[Path]) -> None:
        """Refuse what somebody other than the user and root owns or may change."""
        for path in paths:
            for status in (path.lstat(), path.stat()):  # of a link, and of what it leads to
                if status.st_uid not in (0, os.geteuid()):
                    raise _UnusablePlace(
                        f"{path} belongs to another user, who could put any code there.",
                        "Set TENSORTAP_CACHE_DIR to a directory of yours.",
                    )
                if not stat.S_ISLNK(status.st_mode) and status.st_mode & self.forbidden:
                    raise _UnusablePlace(
                        f"Code is not loaded from {path}, which is open to other users "
                        f"(mode {stat.S_IMODE(status.st_mode):o}).",
                        f"Close it with `chmod {self.mode:o} {shlex.quote(str(path))}`, "
                        "or set TENSORTAP_CACHE_DIR to another directory.",
                    )

    def unusable(self, error: OSError) -> _UnusablePlace:
        """The error for a place that the system keeps us from using."""
        return _UnusablePlace(
            f"{self.root} cannot be written to ({error.strerror}).",
            "Set TENSORTAP_CACHE_DIR to a directory that can.",
        )


def _places() -> list[_Place]:
    """Where libraries are kept, the preferred place first."""
    places = []
    named = os.environ.get("TENSORTAP_CACHE_DIR", "").strip()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")
    if named:
        root: Path | None = Path(os.path.abspath(os.path.expanduser(named)))
    elif os.path.isabs(shared):
        root = Path(shared, "tensortap")
    else:
        root = Path(home, ".cache", "tensortap") if os.path.isabs(home) else None
    if root is not None:
        # Readable by all, so that an image can be built by root and used by somebody else.
        places.append(_Place(root, mode=0o755, forbidden=stat.S_IWOTH))
    # Its name can be guessed by everybody who may write there, hence the narrower permissions.
    temporary = Path(_temporary_directory(), f"tensortap-{os.geteuid()}")
    places.append(_Place(temporary, mode=0o700, forbidden=stat.S_IRWXG | stat.S_IRWXO))
    return places


def _temporary_directory() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # none can be written to; saying so is left to the attempt to use it
        return "/tmp"


def _key(source: Path) -> str:
    """What a library was built for: readable in front, and a digest of everything that matters."""
    try:
        text = b"\0".join(
            each.read_bytes() for each in [source, *sorted(source.parent.glob("*.h")), C_HEADER]
        )
    except OSError as error:
        raise NativeBuildError(
            f"{source} cannot be read: {error.strerror}.", "Install tensortap again."
        ) from error
    abi = sysconfig.get_config_var("SOABI") or "unknown-python"
    git = torch.version.git_version or "unknown"
    facts = [torch.__version__, git, abi, platform.machine(), *_flags(), *LIBRARIES]
    digest = hashlib.sha256(json.dumps([str(fact) for fact in facts]).encode() + text).hexdigest()
    cxx11 = int(torch.compiled_with_cxx11_abi())
    readable = f"torch-{torch.__version__}-{git[:8]}-cxx11abi{cxx11}-{abi}-{platform.machine()}-{digest[:12]}"
    return re.sub(r"[^\w.+-]", "_", readable)


def _flags() -> list[str]:
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    standard = "c++20" if version >= (2, 13) else "c++17"  # what the headers of torch itself ask for
    return [*FLAGS, f"-std={standard}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _compiler_command(source: Path) -> list[str]:
    """The command that compiles; the output file is still to be named."""
    python, installed = Path(sysconfig.get_paths()["include"]), Path(torch.__file__).parent
    compiler = _compiler()
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


def _compiler() -> list[str]:
    text = os.environ.get("CXX", "").strip()
    if text:
        with suppress(ValueError):  # a quote that is not closed
            name, *arguments = shlex.split(text)
            if path := shutil.which(name):
                return [os.path.abspath(path), *arguments]
        raise NativeBuildError(
            f"The C++ compiler that CXX names ({text!r}) was not found.", "Correct CXX, or unset it."
        )
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise NativeBuildError(
        f"There is no C++ compiler here ({', '.join(COMPILERS)} are not on PATH).",
        "Install g++, set CXX, or build where there is one and set TENSORTAP_CACHE_DIR to what was built.",
    )


def _build(place: _Place, key: str, command: list[str], is_only_builder: bool) -> Path:
    directory = place.directory(key)
    library, log_file = directory / "observer.so", directory / "build.log"
    log.warning(
        "Building the native interceptor for torch %s (once per torch version, about 30 s) ...",
        torch.__version__,
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
            raise failed.explained(log_file) from None
        _seal(made, key)
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

    def explained(self, log_file: Path) -> NativeBuildError:
        """The error for users, with the end of what the compiler said."""
        lines = log_file.read_text(errors="replace").splitlines()
        return NativeBuildError(
            f"The native interceptor could not be compiled: {self}.",
            f"Its whole output is in {log_file}; setting CXX to another compiler may help.",
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


def _seal(library: Path, key: str) -> None:
    """Append a checksum. Loaders ignore what follows; in the same file it is replaced together with the library."""
    digest = _digest(library.read_bytes(), key)
    with open(library, "ab") as file:
        file.write(_SEAL + digest)


def _is_sealed(content: bytes, key: str) -> bool:
    body, seal, digest = content.rpartition(_SEAL)
    return bool(seal) and digest == _digest(body, key)


def _digest(content: bytes, key: str) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


_threads = threading.Lock()


def _forget_threads() -> None:
    """A forked child has only one thread; the one that held the lock is not there to release it."""
    global _threads
    _threads = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


def _lock(file: IO[bytes], directory: Path, deadline: float) -> bool:
    """Wait until this is the only process that builds; False if the file system cannot tell.

    The kernel releases the lock when the process ends, however it ends. Without locks two processes may both compile;
    as each puts its library in place in one step, that costs time only.
    """
    said = False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return False
        if time.monotonic() > deadline:
            raise _waited_too_long(directory)
        if not said:
            log.warning("Waiting for another process that is building the native interceptor ...")
            said = True
        time.sleep(0.1)


def _waited_too_long(directory: Path) -> NativeBuildError:
    return NativeBuildError(
        f"Another process has been building in {directory} for more than {WAIT_SECONDS:.0f} s.",
        "End it, or build ahead of time with `tensortap build`.",
    )
