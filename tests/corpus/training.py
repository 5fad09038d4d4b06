"""How programs of the corpus are run: watched, in the two ways a user has."""

from __future__ import annotations

from pathlib import Path

import tensortap as tt
from tests.analyze.planted import Program


def _watch(keep_bad: int):
    return lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"], keep_bad=keep_bad)


def run_as_session(program: Program, root: Path, keep_bad: int = 8) -> list:
    """Every step is a run of a session; returns what the steps returned."""
    session = tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers)
    with tt.DumpingDebugWrapperSession(
        session, root, watch_fn=_watch(keep_bad), pass_through_operrors=True
    ) as watched:
        results = [watched.run(None, feeds) for feeds in program.feeds]
    assert session.faults == 0
    return results


def run_as_loop(program: Program, root: Path, keep_bad: int = 8) -> list:
    """The program's own loop, with a monitor around each step."""
    results = []
    hooks = [tt.DumpingDebugHook(root, _watch(keep_bad))]
    with tt.torch.monitor(program.modules, program.optimizers, hooks=hooks) as monitor:
        for feeds in program.feeds:
            with monitor.run():
                results.append(program.step(**feeds))
    return results
