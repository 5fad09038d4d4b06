"""A process below `tensortap run` that begins to use a framework: it is watched like the one above it.

`site/sitecustomize.py` calls `begin` at the import of a framework, in every Python that was started below.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.launch.children import is_launcher, is_watched
from tensortap.launch.imports import when_imported
from tensortap.launch.job import Job, terminal
from tensortap.launch.script import without_our_frames

if TYPE_CHECKING:
    from tensortap.commands.following import Following
    from tensortap.launch.ranks import Voice

__all__ = ["begin", "ends_with", "voice_of"]

_RAY_TRAIN = "ray.train.v2._internal.execution.worker_group.thread_runner"


def begin() -> None:
    """Join the job that the environment tells of, if this process is one that may train."""
    job = Job.of(os.environ)
    command = sys.orig_argv
    if job is None or is_launcher(command) or is_watched(command) or not Path(job.root).is_dir():
        return
    from tensortap.commands.following import Following
    from tensortap.commands.run_answer import name_warnings
    from tensortap.commands.run_options import options_of
    from tensortap.seam import place

    place.be_a_child()
    job.join()
    options = options_of(job.options)
    following = Following(options, job, voice_of(job), is_child=True)
    name_warnings(following.answerer.who)
    ends_with(following)
    when_imported(_RAY_TRAIN, lambda: _around_ray_train(following))
    following.start()


def voice_of(job: Job) -> Voice:
    """A process of a job speaks last if nobody else will."""
    from tensortap.launch.ranks import Voice

    is_heard = not job.head or terminal() == job.terminal
    return Voice(Path(job.root), None, job.name, is_head=False, is_orphan=not job.head, is_heard=is_heard)


def ends_with(following: Following) -> None:
    """Have a process of a job told that it ends, in each of the ways in which such processes end."""
    import atexit

    atexit.register(following.finish)
    _before_exit(following)
    _around_processes(following)
    _before_results(following)
    hook = sys.excepthook

    def fail_and_show(kind: Any, error: Any, traceback: Any) -> None:
        following.fail(error)
        kept = without_our_frames(traceback)
        hook(kind, error.with_traceback(kept), kept)

    sys.excepthook = fail_and_show


def _before_exit(following: Following) -> None:
    """Forked processes end by `os._exit`, at which Python does nothing else."""
    leave = os._exit

    def finish_and_leave(status: int) -> Any:
        if threading.current_thread() is threading.main_thread():
            following.finish()
        leave(status)

    os._exit = finish_and_leave


def _around_ray_train(following: Following) -> None:
    """Ray calls a worker's training in a thread, and kills the process when it is over."""
    runner: Any = sys.modules[_RAY_TRAIN].__dict__["ThreadRunner"]
    run = runner.run

    def run_and_tell(self: Any, target: Any) -> None:
        @functools.wraps(target)
        def train() -> Any:
            try:
                return target()
            except BaseException as error:
                following.fail(error)
                raise
            finally:
                following.finish()

        run(self, train)

    runner.run = run_and_tell


def _before_results(following: Following) -> None:
    """Workers of a pool hand over their results, and are killed when the pool has them all."""
    from multiprocessing.queues import SimpleQueue

    put = SimpleQueue.put

    def settle_and_put(queue: Any, result: Any) -> None:
        following.settle()
        put(queue, result)

    SimpleQueue.put = settle_and_put  # type: ignore[method-assign,assignment]


def _around_processes(following: Following) -> None:
    """`multiprocessing` catches what a process raises, and so does PyTorch's `spawn`, which then exits."""
    from multiprocessing.process import BaseProcess

    run = BaseProcess.run

    def run_and_tell(process: BaseProcess) -> None:
        try:
            run(process)
        except SystemExit as end:
            if end.code not in (None, 0):
                following.fail(end.__context__ or end)
            raise
        except BaseException as error:
            following.fail(error)
            raise

    BaseProcess.run = run_and_tell  # type: ignore[method-assign,assignment]
