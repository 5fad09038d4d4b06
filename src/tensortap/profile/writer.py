"""Turns profiles into files, in a thread of its own: a Chrome trace each, and run metadata for TensorBoard."""

from __future__ import annotations

import atexit
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.hooks.summary import EventWriter, get_event_writer
from tensortap.profile.timeline import Timeline
from tensortap.seam.graph import Graph
from tensortap.seam.measured import StepProfile
from tensortap.seam.step_facts import StepFacts
from tensortap.sink.base import notices
from tensortap.sink.queue import WriterQueue

__all__ = ["ProfileWriter"]

log = logging.getLogger("tensortap.profile")

MAX_PENDING = 4
"""Profiles that may wait to be written; each holds what the profiler recorded, some megabytes. Then training waits."""

DRAIN_AT_EXIT_SECS = 60.0
"""How long the end of a program waits for traces of sessions that it did not end."""

_queue = WriterQueue(max_bytes=MAX_PENDING, name="tensortap-profile")
"""Of all hooks: a program that makes a hook for each of a hundred experiments has one thread for them."""


def _drain_at_exit() -> None:
    if not _queue.drain(DRAIN_AT_EXIT_SECS):
        log.error("The program ends; traces that were not written in %g s are lost.", DRAIN_AT_EXIT_SECS)


atexit.register(_drain_at_exit)


class ProfileWriter:
    """Writes the profiles of one hook.

    Args:
        directory: where the files go; made if it does not exist.
        show_dataflow: as `Timeline.write`.
        show_memory: as `Timeline.write`.
        max_bytes: as `Timeline.write`.
        gzip: compress traces.
        stacks: tell all of the user's lines that led to an op, instead of the innermost.

    Attributes:
        dropped: profiles that could not be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        show_dataflow: bool = True,
        show_memory: bool = False,
        max_bytes: int | None = None,
        gzip: bool = False,
        stacks: bool = False,
    ) -> None:
        self._directory = Path(directory).absolute()  # the program may change its own
        self._shown: dict[str, Any] = {
            "show_dataflow": show_dataflow,
            "show_memory": show_memory,
            "max_bytes": max_bytes,
        }
        self._stacks = stacks
        self._suffix = ".json.gz" if gzip else ".json"
        self._shown_graph: tuple[Graph | None, int] = (None, 0)
        self.dropped = 0
        self.events: EventWriter = get_event_writer(self._directory)

    def submit(self, profile: StepProfile, step: int, graph: Graph) -> None:
        """Have a profile written; it is dropped, and counted, if writing has come to a halt."""
        if not _queue.submit(partial(self._write, profile, step, graph), nbytes=1):
            self._lost(step, "writing the earlier ones does not come to an end")

    def drain(self, timeout: float | None) -> bool:
        """Wait until everything is written; False if the timeout, in seconds, passed first."""
        done = _queue.drain(timeout)
        self.events.flush()
        return done

    def _write(self, profile: StepProfile, step: int, graph: Graph) -> None:
        try:
            measured = profile.at_step(step)
            facts = measured.facts
            if facts is not None and self._stacks:
                facts = _with_stacks(facts, graph)
            self._write_trace(measured.step_stats, facts, step)
            self._write_events(measured.step_stats, step, graph)
        except Exception as error:
            self._lost(step, error)
            return
        if measured.unmatched and notices.is_first((id(self), "unmatched")):
            log.warning(
                "Step %d: %d nodes of the run were not found in the profiler's record and are missing from its trace.",
                step,
                measured.unmatched,
            )

    def _write_trace(self, step_stats: Any, facts: StepFacts | None, step: int) -> None:
        rank = 0 if facts is None else facts.rank
        name = f"timeline-{step}.rank{rank}" if rank else f"timeline-{step}"  # ranks may share a directory
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{name}{self._suffix}"
        written = Timeline(step_stats, facts=facts).write(path, **self._shown)
        if written.left_out and notices.is_first((id(self), "left out")):
            log.warning(
                "%s would be larger than max_bytes=%d: left out %s.",
                path,
                self._shown["max_bytes"],
                ", ".join(written.left_out),
            )

    def _write_events(self, step_stats: Any, step: int, graph: Graph) -> None:
        from tensortap.wire.messages import RunMetadata

        self.add_graph(graph, step)
        run_metadata = RunMetadata()
        run_metadata.step_stats.MergeFromString(
            step_stats.SerializeToString()
        )  # an engine may have its own class
        self.events.add_run_metadata(run_metadata, f"step_{step}")

    def add_graph(self, graph: Graph, step: int = 0) -> None:
        """Write the graph if it has grown, so that TensorBoard has nodes to show the numbers on.

        It shows the last one, provided that they have different steps.
        """
        now = (graph, len(graph.nodes))
        if now != self._shown_graph:
            self._shown_graph = now
            self.events.add_graph(graph.as_graph_def(), step)

    def _lost(self, step: int, why: object) -> None:
        self.dropped += 1
        if self.dropped == 1:
            log.error(
                "Cannot write the trace of step %d to %s; training goes on, traces will be missing there: %s",
                step,
                self._directory,
                why,
            )


def _with_stacks(facts: StepFacts, graph: Graph) -> StepFacts:
    stacks = {node.name: node.stack for node in graph.nodes}
    return replace(
        facts, ops={name: replace(op, stack=stacks.get(name, ())) for name, op in facts.ops.items()}
    )
