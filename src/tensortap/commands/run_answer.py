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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import size_text

if TYPE_CHECKING:
    from tensortap.analyze.findings import Finding, Report
    from tensortap.analyze.first_bad import Condition
    from tensortap.report.page import Page

__all__ = ["Answerer", "name_warnings"]

RANKS_SECS = 1.0
"""How long to wait for the records of other ranks before an answer that is about all of them."""


def name_warnings() -> None:
    """Have our warnings begin with our name; where the program has set up logging, they come in its form instead."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("tensortap: %(message)s"))
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    logging.getLogger("tensortap").addHandler(handler)


class Answerer:
    """Speaks about one program.

    Args:
        root: the session directory.
        program: name of the program.
        voice: decides which of several ranks speaks.
        quiet: say nothing unless a value turns bad.
        exclude: regular expression for names of nodes that are never bad.
        filter: what is bad instead of NaN and infinities.
        condition: the same, ready to be asked.

    Attributes:
        failed: whether the program is ending by an exception.
    """

    def __init__(
        self,
        root: Path,
        program: str,
        voice: Any,
        quiet: bool = False,
        exclude: str | None = None,
        filter: str | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._root = root
        self._shown_root = _shown(root)
        self._program = program
        self._voice = voice
        self._quiet = quiet
        self._exclude = exclude
        self._filter = filter
        self._condition = condition
        self._stream = sys.stderr
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._finding: Finding | None = None
        self._ends_blank = False
        self.failed = False

    def begin(self) -> None:
        """The program is being watched."""
        if self._voice.rank == 0:
            self.say(f"watching {self._program}, records in {self._shown_root}")

    def judge(self, run_dir: Path) -> bool:
        """Whether something is really bad in a session to which this run has been added; if so, say what."""
        if self._voice.launch is not None:
            time.sleep(RANKS_SECS)
        report = self._report()
        if report.first_bad is None:
            return False
        self._finding = report.first_bad
        if self._voice.takes("answer"):
            self._answer(report)
        return True

    def finish(self, watch: Any) -> None:
        """The program is over: write what is left, and say what was seen."""
        if os.getpid() != self._process:  # a forked child that ends by itself
            return
        try:
            watch.close()
            self._voice.ends()
            if self._voice.rank and not self.failed:
                return
            if not watch.seen.runs and self._voice.launch is None:
                _remove_unused(self._root)
            if self._voice.takes("summary"):
                if not self.failed:
                    self._voice.waits_for_the_others()
                self._summarise(watch)
        except KeyboardInterrupt:  # the user has lost patience with us, not with the program
            pass
        except Exception as error:
            self.say(f"the summary failed: {error!r}")

    def say(self, sentence: str) -> None:
        """One line, unless we are to be quiet."""
        if not self._quiet:
            self._write(f"tensortap: {sentence}\n")

    # ---

    def _report(self) -> Report:
        from tensortap.analyze.session import search_session
        from tensortap.reader import SessionDir

        return search_session(SessionDir(self._root), exclude=self._exclude, condition=self._condition)

    def _summarise(self, watch: Any) -> None:
        seen = watch.seen
        if not seen.runs:
            why = (
                "it used no PyTorch"
                if "torch" not in sys.modules
                else "it called no model and made no optimizer"
            )
            self.say(f"nothing was seen of {self._program}: {why}")
            return
        self._ends_blank = False  # the program may have printed something since
        report = self._report()
        if report.first_bad is not None and self._finding is None and self._voice.takes("answer"):
            self._answer(report)
        elif report.first_bad is None and self._quiet:
            return
        given = (("--exclude", self._exclude), ("--filter", self._filter))
        question = "".join(f" {option} {shlex.quote(text)}" for option, text in given if text is not None)
        self._show(_summary(watch, report, self._shown_root, self._voice.rank, question))

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
                tqdm = sys.modules.get("tqdm")
                if tqdm is not None and hasattr(tqdm, "tqdm"):
                    tqdm.tqdm.write(text, file=self._stream, end="")  # takes its bars away for a moment
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


def _summary(watch: Any, report: Report, root: str, rank: int, question: str) -> Page:
    """What was seen, what of it was kept where, and what to look at next."""
    from tensortap.report.page import LABEL_WIDTH, Page

    seen = watch.seen
    page = Page()
    facts = [
        _count(seen.runs, "run"),
        _count(seen.steps, "optimizer step"),
        _count(seen.tensors, "tensor"),
        _count(seen.records, "record"),
        f"{sum(counts.lost for counts in seen.kept):,} dropped",
    ]
    if seen.skipped:
        facts.append(f"{_count(seen.skipped, 'step')} skipped by the gradient scaler")
    if seen.elsewhere:
        facts.append(f"{_count(seen.elsewhere, 'step')} in other threads, which were not watched")
    page.line(("tensortap", "bold"))
    ranks = f" (rank {rank} of {len(report.ranks)})" if len(report.ranks) > 1 else ""
    page.field("seen", ", ".join(facts) + ranks)
    if watch.budget is not None:
        page.field("budget", _budget_text(watch.budget))
    found = report.first_bad
    where = shlex.quote(root)
    unwatched = None if watch.budget is None else watch.budget.bad
    if unwatched is not None:
        step, what = unwatched
        page.field("health", f"bad since step {step}, which was not watched: {what}", "red")
        commands = [f"tensortap why {where}{question}"]
    elif found is None:
        page.field("health", "no bad value" if "--filter" not in question else "no match", "green")
        commands = [f"tensortap ls {where}", f"tensortap health {where}"]
    else:
        line = "" if found.source is None else f", {os.path.basename(found.source.file)}:{found.source.line}"
        place = f" on rank {found.rank}" if len(report.ranks) > 1 else ""
        since = "bad since" if "--filter" not in question else "first match at"
        page.field("health", f"{since} step {found.step}{place}: {found.node.name}{line}", "red")
        task = f" --task {found.rank}" if found.rank else ""
        commands = [f"tensortap why {where}{question}", f"tensortap ls {where} --run {found.run}{task} --bad"]
    if any(watch.root.glob("timelines/timeline-*")):
        commands.append(f"tensortap profile {shlex.quote(os.path.join(root, 'timelines'))}")
    written = size_text(sum(counts.written_bytes for counts in seen.kept))
    page.field("kept", f"{_count(report.runs, 'run')}, {written}, in {root}")
    for number, command in enumerate(commands):
        page.line("  ", (f"{'' if number else 'next':<{LABEL_WIDTH}}", "dim"), (command, "cyan"))
    return page


def _budget_text(budget: Any) -> str:
    """Which runs were watched, and what it cost."""
    runs = budget.watched + budget.left_out
    text = f"{budget.watched:,} of {_count(runs, 'run')} watched, at {budget.cost:.2f} times the program's own time"
    return text + "; in the others, gradients and parameters were looked at after each step"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
