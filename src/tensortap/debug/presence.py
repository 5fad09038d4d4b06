"""Being there: a process that writes into a session says so all the time, with the run and the line it is at.

Whoever reads the session can tell then which process has ended, which goes on, which hangs and where, and which was
killed. A thread of its own looks at the training thread and writes; training itself only leaves a number behind for
each run.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import tensortap
from tensortap.debug.root import Launch
from tensortap.debug.time_budget import TimeBudget
from tensortap.seam import place
from tensortap.sink.base import notices
from tensortap.store.processes import ENDED, FAILED, RUNNING, ProcessFacts, ProcessFile, UnwatchedChild
from tensortap.store.system import machine, status_of

__all__ = ["Presence"]

BEAT_SECS = 0.25
"""How often a process says where it is. Of one that is killed, no more than this is missing."""

_JUST_SECS = 2.0
"""Who has gone on no longer ago when he is interrupted was freed by that: others, for whom he waited, came first."""

_PATIENCE_SECS = 2.0  # for the thread to end; it has nothing left to do

_OWN = os.path.dirname(tensortap.__file__) + os.sep
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Presence:
    """Tells a session directory what becomes of this process.

    Args:
        root: the session directory.
        world_size: asked all the time how many ranks the job has; 1 if it does not know of others.
        beat_secs: how often.
        begins: at once; otherwise with the first run, unless the process is a rank.

    >>> import tempfile
    >>> from tensortap.store.processes import read_processes
    >>> root = Path(tempfile.mkdtemp())
    >>> presence = Presence(root)
    >>> presence.begin_run(3, 30, 0)
    >>> presence.end()
    >>> [(each.run, each.step, each.state) for each in read_processes(root)[0]]
    [(3, 30, 'ended')]
    """

    def __init__(
        self,
        root: Path,
        world_size: Callable[[], int] = lambda: 1,
        beat_secs: float = BEAT_SECS,
        begins: bool = True,
    ) -> None:
        launch = Launch.of(os.environ)
        here = place.place()
        if here.refused:
            notices.warn(
                ("place", here.refused),
                "%s is no rank of a job, so this process is recorded as one that has none.",
                here.refused,
            )
        own = status_of(os.getpid())
        self.world_size = world_size
        self.last_node: Callable[[], str] = lambda: ""
        self.counts: Callable[[], dict[str, Any]] = dict
        """Asked for what this process has seen, by the names of `ProcessFacts`."""
        self.listeners: list[Callable[[ProcessFacts], None]] = []
        """Told whatever is written."""
        self.budget: TimeBudget | None = None
        """What decides which runs are watched, if not all of them are."""
        self._facts = ProcessFacts(
            host=socket.gethostname(),
            machine=machine(),
            pid=os.getpid(),
            start=0 if own is None else own.start,
            rank=place.number() if launch is None else launch.rank,
            local_rank=here.local_rank,
            world=here.world if here.rank is not None else 1,
            restart=here.restart,
            launch="" if launch is None or here.rank is None else launch.digest,
        )
        self._before = self._facts
        """As it was before it moved last."""
        self._is_interrupted = False
        self._root = root
        self._beat_secs = beat_secs
        self._thread = threading.main_thread().ident or 0  # the one that is looked at
        self._at = (-1, -1, self._facts.rank)
        self._unwatched: tuple[tuple[UnwatchedChild, ...], int] = ((), 0)
        self._lock = threading.Lock()
        self._file: ProcessFile | None = None
        self._beating: threading.Thread | None = None
        self._over = threading.Event()
        self._over.set()
        if begins or here.rank is not None:
            self._begin()

    @property
    def rank(self) -> int:
        """By which this process is known."""
        return self._at[2]

    def begin_run(self, index: int, step: int, rank: int | None = None) -> None:
        """This thread begins a run."""
        if self._over.is_set():  # a hook that serves another session after its first one
            self._begin()
        self._thread = threading.get_ident()
        if self._facts.state == ENDED:
            with self._lock:
                self._facts = replace(self._facts, state=RUNNING)
        if rank is not None and (index == 0 or rank != self._at[2]):
            with self._lock:  # the group may be gone before the next beat
                self._facts = replace(self._facts, world=max(self.world_size(), self._facts.world))
        self._at = (index, step, self._at[2] if rank is None else rank)

    def leaves_unwatched(self, children: Sequence[UnwatchedChild]) -> None:
        """This process has started others that nobody watches."""
        self._unwatched = tuple(children), len(children)
        self.tell()

    def tell(self) -> None:
        """Say what is known now, without waiting for the next beat."""
        self._write()

    def rest(self) -> None:
        """The process has done what it was asked to, and may be killed, or begin another run."""
        if not self._over.is_set():
            self._write(state=ENDED)

    def interrupt(self) -> None:
        """Somebody has pressed Ctrl-C: what counts is where the process was when he did, and how long."""
        now = time.time()
        with self._lock:
            last, before = self._facts, self._before
            was = last
            if now - last.since < _JUST_SECS and now - before.seen < _JUST_SECS:
                was = before
            where = {name: getattr(was, name) for name in ("file", "line", "function", "call")}
            stood = (now if was is last else was.seen) - was.since
            self._facts = replace(last, interrupted=stood, **where)
            self._is_interrupted = True

    def end(self, error: BaseException | None = None) -> None:
        """The process is done with the session; harmless when called again, and in a forked child.

        Args:
            error: what ended it. The process was then where that was raised, wherever it may have come to since.
        """
        if self._over.is_set() or os.getpid() != self._facts.pid:
            return
        self._over.set()
        if error is None:
            self._write(state=ENDED, error="")
        else:
            words = f"{type(error).__name__}: {error}".strip().split("\n")[0]
            self._write(state=FAILED, error=words, **_place(_frames_of(error.__traceback__)))
        with self._lock:
            if self._file is not None:
                self._file.close()
        if self._beating is not None:
            self._beating.join(_PATIENCE_SECS)

    # ---

    def _begin(self) -> None:
        now = time.time()
        self._over = threading.Event()
        self._facts = replace(self._facts, state=RUNNING, error="", began=now, seen=now, since=now)
        with suppress(OSError, RuntimeError):  # a full disk, no more threads: then nobody is told
            self._file = ProcessFile(self._root, self._facts)
            beating = threading.Thread(
                target=self._beat, args=(self._over,), name="tensortap-presence", daemon=True
            )
            beating.start()
            self._beating = beating

    def _told_by_budget(self) -> dict[str, Any]:
        budget = self.budget
        if budget is None:
            return {}
        step, what = budget.bad or (-1, "")
        return {
            "budget": budget.ratio,
            "cost": round(budget.cost, 3),
            "watched": budget.watched,
            "guarded": budget.left_out,
            "bad_step": step,
            "bad": what,
        }

    def _version(self) -> str:
        """Ours. Looked up where others have imported what is needed for it: an import here could meet a fork."""
        lookup: Any = sys.modules.get("importlib.metadata")
        if self._facts.version or not hasattr(lookup, "version"):
            return self._facts.version
        with suppress(Exception):
            return str(lookup.version("tensortap"))
        return ""

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(self._beat_secs):
            try:
                self._write()
            except Exception:  # where it is may not be known; that it is there is what counts
                continue

    def _write(self, **changes: Any) -> None:
        if self._file is None or os.getpid() != self._facts.pid:
            return
        # What can be slow or fail is asked before anybody could wait for it.
        stays = self._over.is_set() or self._is_interrupted
        where = {} if stays else _place(_frames_from(sys._current_frames().get(self._thread)))
        world = self.world_size()
        node = self.last_node()
        counts = self.counts()
        version = self._version()
        now = time.time()
        with self._lock:
            before = self._facts
            run, step, rank = self._at
            children, unwatched = self._unwatched
            facts = replace(
                before,
                run=run,
                step=step,
                rank=rank,
                version=version,
                world=max(world, before.world),  # a group that is gone in the end was there
                node=node or before.node,
                children=children,
                unwatched=unwatched,
                **counts,
                **self._told_by_budget(),
                **where,
            )
            moved = replace(facts, children=(), unwatched=0) != replace(before, children=(), unwatched=0)
            if moved:
                self._before = before
            self._facts = replace(facts, seen=now, since=now if moved else before.since, **changes)
            with suppress(OSError):
                self._file.write(self._facts)
            told = self._facts
        for listener in self.listeners:
            listener(told)


def _frames_from(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """A frame and its callers, each with its line."""
    while frame is not None:
        yield frame, frame.f_lineno or 0
        frame = frame.f_back


def _frames_of(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Where an error was raised, and the callers of that, each with its line."""
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno or 0))
        traceback = traceback.tb_next
    return frames[::-1]


def _place(frames: Iterable[tuple[FrameType, int]]) -> dict[str, Any]:
    """Where a thread is in the program, and what it is executing there. Variables are not touched."""
    call = ""
    for frame, line in frames:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            if not _is_installed(code.co_filename):
                return {
                    "file": code.co_filename,
                    "line": line,
                    "function": code.co_qualname,
                    "call": call,
                }
            call = call or f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}"
    return {"file": "", "line": 0, "function": "", "call": call} if call else {}


def _is_installed(file: str) -> bool:
    return file.startswith(("<frozen", *_LIBRARIES)) or any(part in file for part in _INSTALLED)
