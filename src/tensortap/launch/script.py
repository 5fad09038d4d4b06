"""Executing a program as `python` itself would: a script, a module (`-m`) or code (`-c`); what is no Python, as a shell
would.

The program gets a `__main__` module of its own, its arguments and its path. What it raises goes up to the
interpreter, which prints it and chooses the exit status as always; only the frames of ours are taken out of the
traceback.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Literal

import tensortap
from tensortap.engines.lines import programs_begin_in
from tensortap.errors import UsageError

__all__ = ["Script", "without_our_frames"]

programs_begin_in(__file__)
_OWN = str(Path(next(iter(tensortap.__path__))).resolve()) + os.sep


@dataclass(frozen=True)
class Script:
    """What to execute.

    Attributes:
        kind: how the program is named.
        name: path of the script (or of a directory or archive with a `__main__.py`), the module, or the code.
        arguments: what the program finds in `sys.argv` after its own name.

    >>> Script("code", "print('hello')").label
    'the code'
    """

    kind: Literal["script", "module", "code"]
    name: str
    arguments: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The program as the user knows it, in short."""
        return {"code": "the code", "script": os.path.basename(self.name)}.get(self.kind, self.name)

    @property
    def words(self) -> list[str]:
        """The program and its arguments, as they were typed."""
        flags = {"script": (), "module": ("-m",), "code": ("-c",)}[self.kind]
        return [*flags, self.name, *self.arguments]

    def check(self) -> None:
        """Refuse a script that is not there, before anything else happens.

        Raises:
            UsageError: with the name of the file.
        """
        if self.kind == "script" and not os.path.exists(self.name):
            raise UsageError(f"There is no program {self.name!r} to run.")

    def found(self) -> Script:
        """The same, as a file where the shell would find it: `torchrun` beside this Python, or on the path."""
        if self.kind != "script" or os.path.exists(self.name) or os.sep in self.name:
            return self
        places = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        file = shutil.which(self.name, path=places)
        return self if file is None else replace(self, name=file)

    def execute(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        """Execute the program in this process, as its `__main__`.

        Args:
            on_error: told about the exception that ends the program, before it goes on its way.

        Raises:
            BaseException: whatever the program raises.
        """
        try:
            if self.kind == "script" and _is_foreign(self.name):
                raise SystemExit(_status_of([self.name, *self.arguments]))
            code, main = self._load()
            sys.modules["__main__"] = main
            exec(code, main.__dict__)
        except BaseException as error:
            if on_error is not None:
                on_error(error)
            _hide_our_frames()
            raise

    def _load(self) -> tuple[CodeType, ModuleType]:
        sys.argv = ["-c" if self.kind == "code" else self.name, *self.arguments]
        if self.kind == "code":
            _set_first_path("")
            return compile(self.name, "<string>", "exec"), _main_module(None)
        if self.kind == "module":
            sys.argv[0] = "-m"  # as python has it while packages are imported
            _set_first_path(os.getcwd())
            return _as_main(_spec_of(self.name))
        path = os.path.join(os.getcwd(), self.name)  # absolute, and otherwise as it was given
        if os.path.isdir(path) or not _is_source(path):
            _set_first_path(path, replace=True)
            spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
            if spec is None:
                raise SystemExit(f"{sys.executable}: can't find '__main__' module in {self.name!r}")
            code, main = _as_main(spec)
            sys.argv[0] = self.name
            return code, main
        _set_first_path(os.path.dirname(os.path.realpath(path)))
        main = _main_module(importlib.machinery.SourceFileLoader("__main__", path))
        main.__file__ = path
        main.__dict__["__cached__"] = None
        with io.open_code(path) as file:
            return compile(file.read(), path, "exec"), main


def _is_foreign(path: str) -> bool:
    """Whether a file is for the system to execute: a program for the machine, or a script that is not for Python."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        first = file.readline(256)
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def _status_of(words: list[str]) -> int:
    """Execute a command; its exit status, as shells have it."""
    words[0] = os.path.abspath(words[0])  # which the system would look for on the path
    with subprocess.Popen(words) as process:
        while True:
            try:
                status = process.wait()
                return status if status >= 0 else 128 - status
            except KeyboardInterrupt:  # which it gets, too, and may take its time over
                continue


def _is_source(path: str) -> bool:
    """Whether a script is text; otherwise it is an archive that Python can import from."""
    with open(path, "rb") as file:
        return not file.read(4).startswith(b"PK\x03\x04")


def _set_first_path(directory: str, replace: bool = False) -> None:
    """Put the program's directory where ours is; a Python told not to trust it (-P) has none."""
    if sys.flags.safe_path and not replace:
        return
    if sys.flags.safe_path:
        sys.path.insert(0, directory)
    else:
        sys.path[:1] = [directory]


def _main_module(loader: Any) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __loader__=loader, __package__=None, __annotations__={})
    return main


def _spec_of(name: str) -> importlib.machinery.ModuleSpec:
    """The module that `-m name` means: of a package its `__main__`."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, f"{name}.__main__"
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise SystemExit(
                    f"{sys.executable}: No module named {name}; {package!r} is a package and cannot be directly "
                    "executed"
                )
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "\0"):
            raise
        spec = None
    if spec is None:
        raise SystemExit(f"{sys.executable}: No module named {name}")
    return spec


def _as_main(spec: importlib.machinery.ModuleSpec) -> tuple[CodeType, ModuleType]:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise SystemExit(f"{sys.executable}: No code object available for {spec.name}")
    main = _main_module(spec.loader)
    main.__spec__ = spec  # by whose name spawned processes import the program
    main.__package__ = spec.parent
    main.__file__ = spec.origin
    main.__dict__["__cached__"] = spec.cached
    if spec.origin is not None:
        sys.argv[0] = spec.origin
    return code, main


def _hide_our_frames() -> None:
    """Have the exception on its way to the interpreter printed as if nobody stood between."""
    hook = sys.excepthook

    def print_exception(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        kept = without_our_frames(traceback)
        hook(kind, error.with_traceback(kept), kept)

    sys.excepthook = print_exception


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames before the program and those of tensortap inside it."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    names = [entry.tb_frame.f_code.co_filename for entry in entries]
    last = max((place for place, name in enumerate(names) if name == __file__), default=-1)
    kept: TracebackType | None = None
    for entry, name in reversed(list(zip(entries, names, strict=True))[last + 1 :]):
        if not name.startswith(_OWN):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
