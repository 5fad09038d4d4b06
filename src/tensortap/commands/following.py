"""One process that is watched for `tensortap run`: the one that was typed, one that it started, or one that it forked.

It waits for a framework, follows the program with its engine, and sees to it that everything is written and told when
the process ends, however that comes about.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import UsageError
from tensortap.launch.job import Job

if TYPE_CHECKING:
    from tensortap.frameworks import Framework
    from tensortap.launch.ranks import Voice
    from tensortap.seam.base import Follower

__all__ = ["Following", "executed"]

_LAST_WORD_SECS = 1.0


class Following:
    """Watches the program of this process.

    Args:
        options: of `tensortap run`.
        job: to which the process belongs.
        voice: decides which of its processes speaks.
        is_child: it was started by another process of the job, and counts once it trains.
    """

    def __init__(self, options: argparse.Namespace, job: Job, voice: Voice, is_child: bool = False) -> None:
        from tensortap.commands.run_answer import Answerer
        from tensortap.commands.run_options import (
            condition_of,
            exclusions,
            profiling,
            script_options,
            streaming,
        )
        from tensortap.launch.watch import ScriptWatch

        self.job = job
        self._options = options
        self._voice = voice
        self._is_child = is_child
        self._process = os.getpid()
        self._followers: list[Follower] = []
        self._is_over = False
        self._children: Any = None
        self.interrupted = False
        root = Path(job.root)
        condition = condition_of(options.filter)
        exclude, accept = exclusions(options, job.words)
        hooks = [*streaming(options, job)]  # refuses what cannot be, before all else
        self.answerer = Answerer(
            root, job.program, job.words, voice, options.quiet, exclude, options.filter, condition
        )
        how = script_options(options, root, condition, is_child=is_child)
        try:
            self.watch = ScriptWatch(how, self.answerer.judge)
        except ValueError as error:  # the directory is not free
            raise UsageError(
                f"{error} Name another one after -o. Processes of one job share a directory if each is told its rank: "
                "RANK and WORLD_SIZE, or JAX_PROCESS_ID and JAX_NUM_PROCESSES (docs/large-jobs.md)."
            ) from None
        hooks += profiling(
            options, root
        )  # makes a folder in a directory that must be empty until it is claimed
        self.answerer.rank = lambda: self.watch.presence.rank
        self.watch.on_stop = self.answerer.stopping
        self.watch.on_leave_out = self.answerer.leaves_out
        if not options.no_check:
            self.watch.check_with(self.answerer.check(accept))
        self.watch.hooks.extend(hooks)
        for hook in hooks:
            if hasattr(hook, "tell_of"):
                hook.tell_of(self.watch.presence)

    def start(self) -> None:
        """Wait for the program to use a framework, and look after the processes that it starts."""
        from tensortap.launch.children import Children

        if not self._is_child:
            self._children = Children(self._tell_of_unwatched, Path(self.job.root))
            self._children.start()
        self.job.export()
        self._wait_for_frameworks()

    def follow(self, framework: Framework) -> None:
        """Follow what the program does with a framework that it has imported."""
        # Only now: the program decides whether and when a framework is imported.
        from tensortap.engines.registry import load_engine

        if os.getpid() != self._process:  # forked before it was imported
            self._begin_in_fork()
            return
        engine = load_engine(framework)
        engine.listen_to_children(self._heard, self._serve_data)
        if self._is_child:
            engine.tell_if_serving(self.resign)
        self.watch.presence.world_size = engine.world_size
        self._followers.append(engine.follow(self.watch))
        if len(self._followers) == 1 and self._voice.is_first and not self.job.begun:
            self.job = self.job.began()
            self.job.export()
            self.answerer.begin()
        elif len(self._followers) == 1 and not self.job.begun and self._voice.takes("begin"):
            self.answerer.begin()

    def fail(self, error: BaseException) -> None:
        """The program ends by an exception."""
        if os.getpid() != self._process:
            return
        self.interrupted = isinstance(error, KeyboardInterrupt)
        if self.interrupted:
            self.watch.presence.interrupt()
        self.answerer.failed = not isinstance(error, SystemExit)
        if self.answerer.failed and not self.interrupted:
            self.watch.error = error
        for follower in self._followers:
            follower.end(error if self.answerer.failed else None)

    def finish(self) -> None:
        """The program is over: write what is left, and say what was seen; harmless when called again."""
        from tensortap.sink.queue import shared_queue

        if self._is_over or os.getpid() != self._process:
            return
        self._is_over = True
        try:
            for follower in self._followers:
                follower.end()
            if self._children is not None:
                self._children.stop()
            self.answerer.finish(self.watch)
            for hook in self.watch.hooks:
                if hasattr(hook, "tell_of"):  # that the process is over
                    hook.flush(_LAST_WORD_SECS)
        except KeyboardInterrupt:
            shared_queue().abandon()
            self.answerer.leave()

    def settle(self) -> None:
        """The process hands over a result: what it has recorded so far is written first, for it may be killed then."""
        from tensortap.sink.queue import shared_queue

        if os.getpid() == self._process and not self._is_over and self.watch.seen.runs:
            shared_queue().drain(_LAST_WORD_SECS)
            self.watch.presence.rest()

    def resign(self) -> None:
        """This process turns out to serve others: it is not watched, and need not be."""
        self._is_over = True
        for follower in self._followers:
            follower.end()
        self.watch.close(timeout=1.0)

    # ---

    def _wait_for_frameworks(self) -> None:
        from tensortap.engines.registry import FRAMEWORKS
        from tensortap.launch.imports import when_imported

        for framework in FRAMEWORKS:
            when_imported(framework.module, partial(self.follow, framework))

    def _tell_of_unwatched(self, unwatched: list[Any]) -> None:
        self.answerer.leaves_unwatched(unwatched)
        self.watch.presence.leaves_unwatched(unwatched)

    def _serve_data(self, processes: Any) -> None:
        if self._children is not None:
            self._children.serve_data(processes)

    def _heard(self, evidence: str) -> None:
        """In a forked child: it trains, or is about to."""
        if self._children is not None:
            self._children.ledger.note(evidence)
        self._begin_in_fork()

    def _begin_in_fork(self) -> None:
        from tensortap.commands.run_child import ends_with, voice_of
        from tensortap.seam import place

        for follower in self._followers:  # copies, which belong to our parent
            with suppress(Exception):
                follower.end()
        self._followers.clear()
        place.be_a_child(is_forked=True)
        self.job.join()
        mine = Following(self._options, self.job, voice_of(self.job), is_child=True)
        ends_with(mine)
        mine.start()


def executed(following: Following, execute: Callable[..., None]) -> int:
    """Execute a program in this process, watched, and see it to its end."""
    import atexit
    import gc

    from tensortap.commands.run_answer import name_warnings

    def finish() -> None:
        # Nothing is left but our own report, which makes objects by the hundred thousand and no cycles of them. A
        # collector that goes through the heap of the program again and again takes longer than all the rest.
        collects = gc.isenabled()
        gc.disable()
        try:
            following.finish()
        finally:
            if collects:
                gc.enable()
        if following.interrupted:
            # Python remembers it, to end as a process that was interrupted; executing any text makes it forget.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    # Registered before the program can register anything, thus called when all of it is over.
    atexit.register(finish)
    name_warnings(following.answerer.who)
    following.start()
    execute(on_error=following.fail)
    return 0
