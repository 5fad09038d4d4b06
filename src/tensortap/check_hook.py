"""Checks in sessions and monitors, by a hook above both halves: it records, and looks at what was recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.debug.hooks import DumpingDebugHook
from tensortap.launch.checking import Checking
from tensortap.seam.base import UpdatingSession, engine_session_of
from tensortap.sink.budget import Budget
from tensortap.sink.retention import Retention, is_sample
from tensortap.store.updates import UpdateLog
from tensortap.watch.options import WatchOptions

if TYPE_CHECKING:
    from tensortap.analyze.checks import CheckFinding
    from tensortap.analyze.checks.live import LiveChecks

__all__ = ["CheckHook"]


class CheckHook(DumpingDebugHook):
    """Says what is silently wrong in a program: parameters that are not trained, gradients that are not cleared.

    Few runs are watched: the first ten, and then ever fewer; so the others cost next to nothing. What is found can be
    read from the directory afterwards, too: `tensortap check DIR`.

    Args:
        session_root: directory that does not exist, and is then made, or is empty.
        accept: findings not to be told of, as `kind:subject` with wildcards, besides those that the `pyproject.toml`
            in or above the working directory accepts.
        on_finding: called with each finding that is sure, as soon as it is known, from a thread of its own; by
            default a line is written to standard error.
        budget: see `DumpingDebugHook`.
        retention: which runs are watched and kept, instead of the few.

    Attributes:
        findings: all that are known, the most telling first; complete when the session has ended.

    >>> import tempfile, torch, tensortap as tt
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> hook = CheckHook(Path(tempfile.mkdtemp()) / "dumps", on_finding=lambda finding: None)
    >>> with tt.torch.monitor(model, optimizer, hooks=[hook]) as m:
    ...     for _ in range(4):
    ...         with m.run():
    ...             model(torch.randn(8, 3)).square().mean().backward()
    ...             optimizer.step()  # and nothing clears the gradients
    >>> [finding.kind for finding in hook.findings]
    ['gradients-not-cleared']
    """

    def __init__(
        self,
        session_root: str | os.PathLike[str],
        *,
        accept: Sequence[str] = (),
        on_finding: Callable[[CheckFinding], None] | None = None,
        budget: Budget | float | None = None,
        retention: Retention | None = None,
    ) -> None:
        from tensortap.analyze.accepted import accepted_near

        super().__init__(
            session_root,
            WatchOptions("DebugNumericSummary"),
            budget=budget,
            retention=Retention(steps=_Samples()) if retention is None else retention,
        )
        self.findings: list[CheckFinding] = []
        self._root = Path(session_root).expanduser()
        self._accept = (*accept, *accepted_near(Path.cwd()))
        self._on_finding = on_finding or _say
        self._checks: LiveChecks | None = None
        self._checking: Checking | None = None
        self._collector: Any = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Look at the updates of the session."""
        super().after_create_session(session, coord)
        engine = engine_session_of(session)
        self._stop_collecting()
        if isinstance(engine, UpdatingSession):
            self._checking = Checking(UpdateLog(self._root), self._glance)
            self._collector = engine.collect_updates(self._checking.add)

    def end(self, session: Any) -> None:
        """Look at all of it once more."""
        self._stop_collecting()
        super().end(session)
        self._look()

    def on_error(self, session: Any, error: BaseException) -> None:
        """The same, before an error goes its way."""
        self._stop_collecting()
        super().on_error(session, error)
        self._look()

    def _stop_collecting(self) -> None:
        if self._checks is not None:
            self._checks.ends.set()
        if self._collector is not None:
            self._collector.close()
            self._collector = None
        if self._checking is not None:
            self._checking.close()
            self._checking = None

    def _look(self) -> None:
        """All that is known so far."""
        if self._root.is_dir():
            self.findings = self._live().look()

    def _glance(self) -> None:
        """The same beside the program, as far as there is time."""
        known = self._live().glance() if self._root.is_dir() else None
        if known is not None:
            self.findings = known

    def _live(self) -> LiveChecks:
        from tensortap.analyze.checks.live import LiveChecks

        if self._checks is None:
            self._checks = LiveChecks(self._root, self._accept, self._on_finding)
        return self._checks


class _Samples:
    """The steps that are looked at."""

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and is_sample(step)


def _say(finding: CheckFinding) -> None:
    from tensortap.report.check import spoken

    print(f"tensortap: {spoken(finding)}", file=sys.stderr, flush=True)
