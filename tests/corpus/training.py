"""How programs of the corpus are run: watched, in the two ways a user has."""

from __future__ import annotations

from pathlib import Path

import tensortap as tt
from tests.analyze.planted import Program


def watch(fetches, feeds):
    return tt.WatchOptions(["DebugNumericSummary"], keep_bad=8)


def run_as_session(program: Program, root: Path) -> list:
    """Every step is a run of a session; returns what the steps returned."""
    session = tt.torch.Session(program.step, modules=program.modules, optimizers=program.optimizers)
    with tt.DumpingDebugWrapperSession(session, root, watch_fn=watch, pass_through_operrors=True) as watched:
        results = _results(lambda feeds: watched.run(None, feeds), program)
    assert session.faults == 0
    return results


def run_as_loop(program: Program, root: Path) -> list:
    """The program's own loop, with a monitor around each step."""
    hooks = [tt.DumpingDebugHook(root, watch)]
    with tt.torch.monitor(program.modules, program.optimizers, hooks=hooks) as monitor:

        def step(feeds):
            with monitor.run():
                return program.step(**feeds)

        return _results(step, program)


def _results(step, program):
    results = []
    for feeds in program.feeds:
        try:
            results.append(step(feeds))
        except FloatingPointError:  # the program has seen for itself that something is wrong
            break
    return results
