"""Following a program of this process, as `tensortap run` follows one of its own."""

from __future__ import annotations

import linecache
from pathlib import Path

from tensortap.analyze.session import search_session
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.reader import SessionDir
from tensortap.watch.options import WatchOptions

__all__ = ["followed", "text_of"]


def followed(engine, program, root: Path, **options):
    """What the program returned, the report about it, and the watch that saw it."""
    watch = ScriptWatch(
        ScriptOptions(root, WatchOptions("DebugNumericSummary", keep_bad=3), **options), _judge_of(root)
    )
    follower = engine.follow(watch)
    try:
        result = program()
    finally:
        follower.end()
        watch.close()
    return result, search_session(SessionDir(root)), watch


def _judge_of(root):
    return lambda run: search_session(SessionDir(root), only=run.name).first_bad is not None


def text_of(source) -> str:
    """The line of a source that an answer names."""
    return linecache.getline(source.file, source.line)
