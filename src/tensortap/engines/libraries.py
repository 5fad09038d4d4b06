"""Where libraries that were built on this machine are kept, and which of them may be loaded.

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
import logging
import os
import shlex
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tensortap.errors import NativeBuildError

__all__ = ["Place", "UnusablePlaceError", "all_places", "seal"]

log = logging.getLogger("tensortap.engine")

# How long to wait for another process that builds: no less than it may take.
WAIT_SECONDS = 600.0

_SEAL = b"\ntensortap library sha256 "


class UnusablePlaceError(NativeBuildError):
    """Libraries cannot be kept there; somewhere else it may work."""


@dataclass(frozen=True)
class Place:
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

    def find(self, key: str, framework: str) -> Path:
        """The library, if it is there and to be trusted.

        Args:
            key: what it was built for.
            framework: the same in words.
        """
        library = self.directory(key) / "observer.so"
        again = "Build it with `tensortap build --force`."
        try:
            self.check_trust([*self._directories(key), library])
            content = library.read_bytes()
        except FileNotFoundError:
            raise NativeBuildError(
                f"The native interceptor has not been built for {framework} ({library} is missing).",
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
                raise UnusablePlaceError(
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
                    raise UnusablePlaceError(
                        f"{path} belongs to another user, who could put any code there.",
                        "Set TENSORTAP_CACHE_DIR to a directory of yours.",
                    )
                if not stat.S_ISLNK(status.st_mode) and status.st_mode & self.forbidden:
                    raise UnusablePlaceError(
                        f"Code is not loaded from {path}, which is open to other users "
                        f"(mode {stat.S_IMODE(status.st_mode):o}).",
                        f"Close it with `chmod {self.mode:o} {shlex.quote(str(path))}`, "
                        "or set TENSORTAP_CACHE_DIR to another directory.",
                    )

    def unusable(self, error: OSError) -> UnusablePlaceError:
        """The error for a place that the system keeps us from using."""
        return UnusablePlaceError(
            f"{self.root} cannot be written to ({error.strerror}).",
            "Set TENSORTAP_CACHE_DIR to a directory that can.",
        )


def all_places() -> list[Place]:
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
        places.append(Place(root, mode=0o755, forbidden=stat.S_IWOTH))
    # Its name can be guessed by everybody who may write there, hence the narrower permissions.
    temporary = Path(_temporary_directory(), f"tensortap-{os.geteuid()}")
    places.append(Place(temporary, mode=0o700, forbidden=stat.S_IRWXG | stat.S_IRWXO))
    return places


def _temporary_directory() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # none can be written to; saying so is left to the attempt to use it
        return "/tmp"


def seal(library: Path, key: str) -> None:
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
