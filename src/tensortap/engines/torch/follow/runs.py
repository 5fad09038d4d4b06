"""The runs of a program that nobody changed: how one is begun and ended, and what comes before the first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from typing import Any

from torch.optim.optimizer import Optimizer

from tensortap.engines.observe.limits import Limits
from tensortap.engines.session.block import Monitor
from tensortap.engines.session.succession import Succession
from tensortap.engines.torch.follow.bad_samples import BadSamples
from tensortap.engines.torch.follow.present_run import PresentRun
from tensortap.engines.torch.follow.watch import Watch
from tensortap.engines.torch.forgetting import Forgetting
from tensortap.engines.torch.loop import TorchBlockSession
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.updates.samples import number_of
from tensortap.records import Circumstances

__all__ = ["Runs"]

_MOST_OUTSIDE = 2_000
"""Nodes of a run that has called no model: each op costs a name of its own there. A program whose steps are longer
shows it by stepping, and then has more."""


class Runs:
    """Begins and ends runs: blocks of a monitor, or a succession where no other hooks want something of them.

    What a program does before it makes an optimizer, or calls a model, is a run of its own, the preparation, which is
    kept if a bad value is made in it.

    Args:
        watch: wants the runs.
        program: what they are runs of.

    Attributes:
        session: of the monitor.
        limits: beyond which a run is not recorded.
        suspected: how many runs were, when the present one began.
        own_secs: how long the last run went on before ranks exchanged something in it; 0 if that is not known.
        counts_passes: whether backward passes are steps.
    """

    def __init__(self, watch: Watch, program: Program) -> None:
        self._watch = watch
        self.session = TorchBlockSession(program, 0, watch.options.interceptor)
        self.session.stays_installed = True
        self.session.forgetting = Forgetting()
        self.limits = self.session.limits = Limits(outside=_MOST_OUTSIDE)
        self._monitor = Monitor(self.session, watch.hooks, 1.0)
        self._succession = Succession(self.session)
        self._bad_samples = BadSamples(watch.root)
        self._block: Any = None
        self._preparation: Any = None
        self._stranded: Any = None  # the preparation, if another thread began to train
        self.suspected = 0
        self.own_secs = 0.0
        self.counts_passes = True
        self._began = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a run has begun, the preparation not counted."""
        return self._block is not None

    @property
    def is_native(self) -> bool:
        """Whether the present run is observed by the native interceptor."""
        return self._watch.is_watching and self.session.is_observed_natively

    def begin(self) -> None:
        """A run begins."""
        self.suspected = self._watch.seen.suspected
        self._began = time.time()
        if len(self._watch.hooks) == 1:  # which wants nothing but to have runs watched
            self._succession.begin(self._watch.wanted_of_next(self.session))
            self._block = self._succession
            return
        block = self._monitor.run()
        block.__enter__()
        self._block = block

    def end(self, error: BaseException | None, run: PresentRun, optimizers: Iterable[Optimizer]) -> None:
        """The present run is over, if there is one; `run` is what has happened in it."""
        block, self._block = self._block, None
        if block is not None:
            self.session.circumstances = _circumstances(run, optimizers, self._bad_samples)
        self._count(run)
        try:
            if block is self._succession:
                self._succession.end(error)
            elif block is not None and error is None:
                block.__exit__(None, None, None)
            elif block is not None and error is not None:
                block.__exit__(type(error), error, error.__traceback__)
            met = self._succession.met if block is self._succession else 0
            self.own_secs = max(0.0, met / 1e6 - self._began) if met else 0.0
        finally:
            # Each block counts as a step to the monitor; here only runs are in which an optimizer stepped.
            self.session.global_step = self.step

    def _count(self, run: PresentRun) -> None:
        if run.passes:
            self._watch.seen.passes += run.passes
        elif run.stepped:
            self._watch.seen.steps += 1

    @property
    def step(self) -> int:
        """How many steps there were; backward passes are some until there is an optimizer."""
        seen = self._watch.seen
        return int(seen.passes if self.counts_passes else seen.steps)

    def count_step(self) -> None:
        """A run that nobody watched has ended with a step, and another has begun."""
        self._watch.seen.steps += 1
        self.session.global_step = self._watch.seen.steps

    def close(self) -> None:
        """No more runs."""
        self._monitor.close()

    # --- before the first run ----------------------------------------------------------------------

    @property
    def is_preparing(self) -> bool:
        """Whether neither a model nor an optimizer has been seen yet."""
        return self._preparation is not None

    def prepare(self) -> None:
        """Watch what the main thread does before the first model and optimizer."""
        self._watch.prepares = True
        self.session.circumstances = Circumstances(is_preparation=True)
        block = self._monitor.run(hooks=self._watch.hooks[:1])
        block.__enter__()
        self._preparation = block

    def end_preparation(self, run: PresentRun, is_over: bool = False) -> None:
        """The program begins to train or to evaluate, or is over. If it has trained already, without an optimizer, the
        preparation was its first step."""
        block, self._preparation = self._preparation, None
        if block is None:
            return
        if run.passes:
            self._count(run)
        if threading.current_thread() is not threading.main_thread():
            # It began in another thread, and only there it can be ended: when the program is over.
            self._stranded = block
            self._monitor.abandon_run()
            self._watch.forget_preparation()
        else:
            if is_over:
                self.session.circumstances = Circumstances(is_preparation=True, counts_steps=False)
            if run.passes:
                self.session.circumstances = _circumstances(run, [], self._bad_samples)
                self._watch.keeps_preparation = True
            block.__exit__(None, None, None)
        self.session.global_step = self.step
        self.session.circumstances = Circumstances()
        if not self._watch.keeps_preparation:
            self.session.number_runs_anew()
        self._watch.prepares = False

    def end_stranded(self) -> None:
        """End a preparation that another thread could not end, in its own one."""
        block, self._stranded = self._stranded, None
        if block is not None:
            self.session.circumstances = Circumstances(is_preparation=True)
            block.__exit__(None, None, None)


def _circumstances(
    run: PresentRun, optimizers: Iterable[Optimizer], bad_samples: BadSamples
) -> Circumstances:
    rates = {}
    there_are = False
    for optimizer in optimizers:
        there_are = True
        groups = optimizer.param_groups
        rate = number_of(groups[0].get("lr")) if groups else None
        if rate is not None and math.isfinite(rate):
            rates[type(optimizer).__name__] = rate
    return Circumstances(
        trains=run.is_for_training,
        learning_rates=rates,
        counts_steps=there_are or run.passes > 0,
        calls=run.call_times,
        modes=run.modes,
        bad_samples=bad_samples.recent(),
        by_passes=run.passes > 0,
    )
