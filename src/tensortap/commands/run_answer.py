"""What `tensortap run` says: where it records, the answer the moment there is one, and at the end what was seen.

All of it goes to standard error, in one piece each time, around the progress bars of the program. The parts that
read and analyse are imported when a value has turned bad, in the thread that judges it.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands import unwatched
from tensortap.commands.run_summary import add_advice, count, seen_by_all, summary_page, trained_in
from tensortap.frameworks import FRAMEWORKS
from tensortap.records.task import task_name
from tensortap.store.processes import UnwatchedChild
from tensortap.suggest import alternatives

if TYPE_CHECKING:
    from tensortap.analyze.checks import CheckFinding
    from tensortap.analyze.checks.live import LiveChecks
    from tensortap.analyze.findings import Finding, Report
    from tensortap.analyze.first_bad import Condition
    from tensortap.report.page import Page

__all__ = ["Answerer", "name_warnings"]

RANKS_SECS = 1.0
"""How long to wait for the records of other ranks before an answer that is about all of them."""

LAST_SECS = 60.0
"""How long the end of the program waits for what is not written; what comes later is still written."""

CHILD_SECS = 10.0
"""The same for a process that the program has started, and for which it may wait."""

PATIENCE_SECS = 1.0
"""After how long at the end of the program we say what we are still doing."""


def name_warnings(who: Callable[[], str] = str) -> None:
    """Have our warnings begin with our name, and with `who` speaks, if there are several.

    Where the program has set up logging, they come in its form instead.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("tensortap%(who)s: %(message)s"))

    def is_ours(record: logging.LogRecord) -> bool:
        record.who = who()
        return not logging.getLogger().handlers

    handler.addFilter(is_ours)
    logging.getLogger("tensortap").addHandler(handler)


class Answerer:
    """Speaks about one program.

    Args:
        root: the session directory.
        program: name of the program.
        words: the program and its arguments, as they were typed.
        voice: decides which of several ranks speaks.
        quiet: say nothing unless a value turns bad.
        exclude: regular expression for names of nodes that are never bad.
        filter: what is bad instead of NaN and infinities.
        condition: the same, ready to be asked.

    Attributes:
        failed: whether the program is ending by an exception.
        rank: asked for the number by which this process is known.
    """

    def __init__(
        self,
        root: Path,
        program: str,
        words: Sequence[str],
        voice: Any,
        quiet: bool = False,
        exclude: str | None = None,
        filter: str | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._root = root
        self._shown_root = _shown(root)
        self._program = program
        self._words = words
        self._unwatched: Sequence[UnwatchedChild] = ()
        self._voice = voice
        self._quiet = quiet
        self._exclude = exclude
        self._filter = filter
        self._condition = condition
        self._stream = sys.stderr
        self._lock = threading.Lock()
        self._answering = threading.Lock()
        self._process = os.getpid()
        self._is_answered = False
        self._ends: float | None = None
        self._asked_for_patience = False
        self._cleared: set[str] = set()
        self._ends_blank = False
        self.failed = False
        self.rank: Callable[[], int] = lambda: 0
        self._left_out = False
        self._checks: LiveChecks | None = None

    def begin(self) -> None:
        """The program is being watched."""
        self.say(f"watching {self._program}, records in {self._shown_root}")

    def who(self) -> str:
        """Of several processes this one; empty for one that is alone."""
        return f" ({task_name(self.rank())})" if self._voice.has_company else ""

    def judge(self, run_dir: Path) -> bool:
        """Whether something is really bad in a session to which this run has been added; if so, say what."""
        has_company = self._voice.has_company
        if has_company:
            time.sleep(RANKS_SECS)
        # What came from another rank may have been made there: then all that is new is looked at.
        report = self._report(None if has_company else run_dir.name, goes_on=self._ends is None)
        if report.first_bad is None or self._is_being_written(report.first_bad):
            return False
        self._answer_once(report)
        return True

    def check(self, accept: Sequence[str]) -> Callable[[], None]:
        """Check the program from now on; what is returned looks at what is there."""
        # All that is needed is loaded now: beside the program it would take ten times as long.
        from tensortap.analyze.checks.live import LiveChecks
        from tensortap.report.check import spoken

        checks = LiveChecks(self._root, accept, lambda finding: self._say_of(spoken(finding)))
        if not self._voice.is_first:  # the first rank looks at what all have recorded
            return lambda: None
        self._checks = checks

        def glance() -> None:
            checks.glance()

        return glance

    def _say_of(self, finding: str) -> None:
        """Tell of something silently wrong, whether or not we are to be quiet; after the program, only the list is."""
        if self._ends is None:
            self._write(f"tensortap: {finding}\n")

    def leaves_out(self, step: int) -> None:
        """The update of a step is left out; said of the first, counted in the summary."""
        if not self._left_out:
            self._left_out = True
            self.say(
                f"the update of step {step} is left out, because of --skip-bad: gradients are not finite"
            )

    def stopping(self) -> None:
        """The program is about to be ended, for the answer that has been given."""
        self._write(f"tensortap: ending {self._program}, because of --stop\n")

    def leaves_unwatched(self, children: Sequence[UnwatchedChild]) -> None:
        """The program has started these processes, which are not watched; the first is told of at once, and always."""
        if not self._unwatched:
            self._write(f"tensortap: {unwatched.sentence(children[0])}\n")
        self._unwatched = children

    def finish(self, watch: Any) -> None:
        """The program is over: write what is left, and say what was seen."""
        if os.getpid() != self._process:  # a forked child that ends by itself
            return
        self._ends = time.monotonic()
        if self._checks is not None:
            self._checks.ends.set()
        try:
            watch.close(LAST_SECS if self._voice.is_head else CHILD_SECS, self._ask_for_patience)
            self._voice.ends()
            if not self._speaks_last():
                return
            if not watch.seen.runs and self._voice.launch is None:
                _remove_unused(self._root)
            if self._voice.launch is None or self._voice.takes("summary"):
                if not self.failed:
                    self._voice.waits_for_the_others()
                self._summarise(watch)
        except Exception as error:
            self.say(f"the summary failed: {error!r}")

    def _speaks_last(self) -> bool:
        voice = self._voice
        return bool(
            voice.is_first or (self.failed and voice.is_head) or (voice.is_orphan and not self.rank())
        )

    def leave(self) -> None:
        """The user has lost patience with us, not with the program."""
        self.say(f"left as it is; what was written can be read in {self._shown_root}")

    def say(self, sentence: str) -> None:
        """One line, unless we are to be quiet."""
        if not self._quiet:
            self._write(f"tensortap: {sentence}\n")

    # ---

    def _report(self, only: str | None = None, goes_on: bool = False) -> Report:
        from tensortap.analyze.session import search_session
        from tensortap.reader import SessionDir

        # A finished run stays as it is: what has been looked at once is not looked at again.
        report = search_session(
            SessionDir(self._root),
            exclude=self._exclude,
            condition=self._condition,
            only=only,
            cleared=self._cleared,
            goes_on=goes_on,
            progress=self._with_patience,
        )
        self._cleared.update(
            each.name
            for each in report.reports
            if not each.findings and not each.was_tested and self._is_finished(each.name)
        )
        return report

    def _ask_for_patience(self) -> None:
        """Say, once, that the program is over and we are not."""
        if (
            not self._voice.is_head
            or self._ends is None
            or self._asked_for_patience
            or time.monotonic() - self._ends < PATIENCE_SECS
        ):
            return
        self._asked_for_patience = True
        self._write(
            f"tensortap: {self._program} is over; writing and judging its last runs, Ctrl-C to leave\n"
        )

    def _with_patience(self, runs: Iterable[Any], number: int) -> Iterator[Any]:
        for run in runs:
            self._ask_for_patience()
            yield run

    def _is_finished(self, run: str) -> bool:
        from tensortap.store.description import RUNNING, read_description

        return read_description(self._root / run).status != RUNNING

    def _last_report(self, watch: Any) -> Report:
        if watch.seen.suspected or self._voice.has_company:
            return self._report()
        from tensortap.analyze.findings import Report
        from tensortap.reader import SessionDir

        session = SessionDir(self._root)  # nothing in it was ever bad
        return Report(self._root, None, (), len(session), watch.seen.tensors, coverage=session.coverage())

    def _is_being_written(self, finding: Finding) -> bool:
        """Whether a finding is in a run of this process that goes on: it may yet take its infinities out again.

        Such a run is judged when it is over. That of another rank may wait for us, and cannot be waited for.
        """
        from tensortap.reader import SessionDir
        from tensortap.store.description import RUNNING, read_description

        for run in SessionDir(self._root).runs:
            if run.index == finding.run and finding.rank == self.rank():
                with suppress(OSError, ValueError):
                    description = read_description(run.path)
                    if description.info.task == finding.rank and description.status == RUNNING:
                        return True
        return False

    def _summarise(self, watch: Any) -> None:
        seen = watch.seen
        # A process that was killed may have written more than it had time to tell of.
        runs = seen_by_all(watch, trained_in(self._root))["seen_runs"] or any(self._root.glob("run_*"))
        if not runs and seen.checked:
            steps = f" in {count(seen.steps, 'step')}" if seen.steps else ""
            calls = count(seen.checked, "call")
            self.say(f"no bad value in what {calls} of compiled functions{steps} returned")
            return
        if not runs:
            used = next((each for each in FRAMEWORKS if each.module in sys.modules), None)
            why = (
                f"it used no {alternatives([each.title for each in FRAMEWORKS])}. If it starts the program that does, "
                "write `tensortap run` before that one"
                if used is None
                else used.loop_advice
            )
            why += "".join(f"; {number:,} {what}" for what, number in seen.unseen.items())
            if self._unwatched:
                instead = filter(None, unwatched.advice(self._words, self._unwatched))
                why = f"{unwatched.summary(self._unwatched)} Instead: {' '.join(instead)}"
            self.say(f"nothing was seen of {self._program}: {why}")
            return
        self._ends_blank = False  # the program may have printed something since
        report = self._last_report(watch)
        findings = [] if self._checks is None else self._checks.look()
        if report.first_bad is not None:
            self._answer_once(report)
        elif report.is_healthy and self._quiet and not any(each.is_sure for each in findings):
            return
        if findings:
            self._list(findings, len(report.ranks) > 1)
        given = (("--exclude", self._exclude), ("--filter", self._filter))
        question = "".join(f" {option} {shlex.quote(text)}" for option, text in given if text is not None)
        page = summary_page(watch, report, findings, self._shown_root, question)
        if self._unwatched:
            add_advice(page, *unwatched.advice(self._words, self._unwatched))
        self._show(page)

    def _list(self, findings: Sequence[CheckFinding], name_rank: bool) -> None:
        from tensortap.analyze.checks import told
        from tensortap.report.check import findings_page

        shown = told(findings)
        page = findings_page(shown, len(findings) - len(shown), name_rank)
        page.line()
        self._show(page)

    def _answer_once(self, report: Report) -> None:
        with self._answering:  # whoever comes second waits until it has been said
            if not self._is_answered and self._voice.takes("answer"):
                self._answer(report)
            self._is_answered = True

    def _answer(self, report: Report) -> None:
        from tensortap.report.answer import answer_of_finding

        assert report.first_bad is not None
        page = answer_of_finding(report.first_bad, name_rank=len(report.ranks) > 1)
        page.line()
        self._show(page)

    def _show(self, page: Page) -> None:
        text = _Text(self._stream)
        page.show(text)
        # After an answer there is a blank line already, unless a traceback has come since.
        follows = self._ends_blank and not self.failed
        self._write(text.getvalue() if follows else f"\n{text.getvalue()}")

    def _write(self, text: str) -> None:
        with self._lock:
            self._ends_blank = text.endswith("\n\n")
            try:
                bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
                # Without bars nothing of it is touched: its first lock decides how the program starts processes.
                if getattr(bar, "_instances", None):
                    bar.write(text, file=self._stream, end="")  # takes its bars away for a moment
                else:
                    self._stream.write(text)
                self._stream.flush()
            except Exception:  # nobody listens any more
                pass


class _Text(io.StringIO):
    """Collects what is written as if it were written to another stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        """As the other stream."""
        return bool(self._stream.isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the other stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _remove_unused(root: Path) -> None:
    """Take away a directory in which nothing was recorded."""
    if not any(root.glob("run_*")):
        shutil.rmtree(root, ignore_errors=True)
        with suppress(OSError):  # unless there is more in it
            root.parent.rmdir()
