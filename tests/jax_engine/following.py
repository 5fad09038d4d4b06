"""Following a program of this process, as `tensortap run` follows one of its own."""

from __future__ import annotations

import linecache
from pathlib import Path

from tensortap.analyze.session import search_session
from tensortap.engines.jax.engine import ENGINE
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.reader import SessionDir
from tensortap.watch.options import WatchOptions


def followed(program, root: Path, **options):
    """What the program returned, the report about it, and what was seen."""
    watch = ScriptWatch(
        ScriptOptions(root, WatchOptions("DebugNumericSummary", keep_bad=3), **options), judge_of(root)
    )
    follower = ENGINE.follow(watch)
    try:
        result = program()
    finally:
        follower.end()
    watch.close()
    return result, search_session(SessionDir(root)), watch.seen


def judge_of(root):
    return lambda run: search_session(SessionDir(root), only=run.name).first_bad is not None


def text_of(source) -> str:
    return linecache.getline(source.file, source.line)
