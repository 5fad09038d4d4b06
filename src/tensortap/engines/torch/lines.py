"""Which line of the user's program is executing."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from tensortap.engines.lines import Whose, folder_of, resolved, whose
from tensortap.records import Frame

__all__ = [
    "Stack",
    "callers_of",
    "capture_stack",
    "classifications",
    "first_user_frame",
    "is_users",
    "kind_of",
    "ran_compiled",
    "stack_of",
    "user_lines",
]

_CLASSIFIED_LIMIT = 50_000
CALLERS, CALLERS_DEPTH = 2, 12
"""How many callers of a line tell two executions of it apart, and how far they are looked for; as in frames.h."""
_STACK_LIMIT = 32  # innermost user frames kept per node: deep enough for any model, bounded for recursion

_LIBRARY, _USER, _BACKWARD, _COMPILED, _PRINTING, _LAUNCHER, _OURS = range(7)
# By identity: hashing a code object reads all of its bytecode, and this is asked several times for every op.
_kinds: dict[int, int] = {}
_forgotten = 0
_classified: list[CodeType] = []  # kept, so that an identity is not given to another
_lines: dict[tuple[int, int], Frame] = {}  # by code and instruction
_stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}  # by the lines in them, which are kept
_STACKS_KEPT = 20_000


class Stack(NamedTuple):
    """Where the program is.

    Attributes:
        lines: the user's lines, outermost first; the same object for the same lines.
        is_called: the innermost of them has called what is executing, and not the backward pass.
        ran_compiled: a function compiled by torch.compile is on the stack.
    """

    lines: tuple[Frame, ...]
    is_called: bool
    ran_compiled: bool


_TORCH = folder_of(next(iter(torch.__path__)))
_SHARED = {
    Whose.USER: _USER,
    Whose.LIBRARY: _LIBRARY,
    Whose.OURS: _OURS,
    Whose.LAUNCHER: _LAUNCHER,
}


def classifications() -> int:
    """A number that changes when kinds are forgotten, and code objects with them."""
    return _forgotten


def kind_of(code: CodeType) -> int:
    """Whose code it is."""
    global _forgotten
    found = _kinds.get(id(code))
    if found is None:
        if len(_classified) >= _CLASSIFIED_LIMIT:  # a program that makes code as it goes
            _kinds.clear()
            _classified.clear()
            _lines.clear()
            _stacks.clear()
            _forgotten += 1
        found = _kinds[id(code)] = _classify(code)
        _classified.append(code)
    return found


def _classify(code: CodeType) -> int:
    file = resolved(code.co_filename)
    if file.startswith(_TORCH):
        if file.endswith("/autograd/graph.py") and code.co_name == "_engine_run_backward":
            return _BACKWARD
        if file.endswith("/_dynamo/eval_frame.py") and code.co_name == "compile_wrapper":
            return _COMPILED
        if file.endswith("/torch/_tensor_str.py") and code.co_name == "_str":
            return _PRINTING
        return _LIBRARY
    return _SHARED[whose(file)]


def is_users(code: CodeType) -> bool:
    """Whether it is the user's code, or that of a package that is not PyTorch."""
    return kind_of(code) == _USER


def first_user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's program.

    None when the autograd engine stands between: the op was not called by a line of the program then, but
    by the backward pass, whose own line says nothing about the op.
    """
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(id(code))
        if kind is None:
            kind = kind_of(code)
        if kind == _USER:
            return frame
        if kind in (_BACKWARD, _LAUNCHER):
            return None
        frame = frame.f_back
    return None


def capture_stack(frame: FrameType | None) -> tuple[Frame, ...]:
    """The user's lines from `frame` outwards, outermost first."""
    return tuple(reversed(list(user_lines(frame))))


def user_lines(frame: FrameType | None) -> Iterator[Frame]:
    """The user's lines from `frame` outwards, innermost first."""
    found = 0
    while frame is not None and found < _STACK_LIMIT:
        code = frame.f_code
        kind = _kinds.get(id(code))
        if kind is None:
            kind = kind_of(code)
        if kind == _USER:
            yield _line_of(frame, code)
            found += 1
        elif kind == _LAUNCHER:
            return
        frame = frame.f_back


def stack_of(frame: FrameType | None) -> Stack:
    """All that a new node wants to know of the stack, in one walk."""
    found: list[Frame] = []
    is_called: bool | None = None
    compiled = False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(id(code))
        if kind == _LIBRARY:  # most are
            frame = frame.f_back
            continue
        if kind is None:
            kind = kind_of(code)
        if kind == _USER:
            if is_called is None:
                is_called = True
            if len(found) < _STACK_LIMIT:
                found.append(_line_of(frame, code))
        elif kind == _COMPILED:
            compiled = True
        elif kind == _BACKWARD and is_called is None:
            is_called = False
        elif kind == _LAUNCHER:
            break
        frame = frame.f_back
    key = tuple(map(id, found))
    lines = _stacks.get(key)
    if lines is None:
        if len(_stacks) >= _STACKS_KEPT:
            _stacks.clear()
        lines = _stacks[key] = tuple(reversed(found))
    return Stack(lines, bool(is_called), compiled)


def _line_of(frame: FrameType, code: CodeType) -> Frame:
    place = (id(code), frame.f_lasti)
    line = _lines.get(place)
    if line is None:
        line = _lines[place] = Frame(code.co_filename, frame.f_lineno, code.co_qualname)
    return line


def callers_of(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Where a line was called from: code and instruction of the user's next frames. Cheap to compare."""
    found: list[tuple[int, int]] = []
    looked_at = 0
    frame = None if frame is None else frame.f_back
    while frame is not None and len(found) < CALLERS and looked_at < CALLERS_DEPTH:
        kind = kind_of(frame.f_code)
        if kind == _USER:
            found.append((id(frame.f_code), frame.f_lasti))
        elif kind in (_BACKWARD, _LAUNCHER, _OURS):  # who runs a session is no part of its step
            break
        frame = frame.f_back
        looked_at += 1
    return tuple(found)


def ran_compiled(frame: FrameType | None) -> bool:
    """Whether a function compiled by torch.compile is on the stack."""
    while frame is not None:
        if kind_of(frame.f_code) == _COMPILED:
            return True
        frame = frame.f_back
    return False
