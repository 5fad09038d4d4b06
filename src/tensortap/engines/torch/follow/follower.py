"""Following a program that nobody changed: what it does, and in which runs.

Runs follow each other without a gap, so that no op of the program goes unseen; what prepares a batch belongs to the
step that uses it. `present_run.py` says where they end, `runs.py` how. What goes on for long without a model or a step,
such as making a data set, is recorded at its beginning only (`limits.py`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from tensortap.engines.observe.limits import MOST_NODES
from tensortap.engines.torch import devices
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.follow.backward_steps import BackwardSteps
from tensortap.engines.torch.follow.copies import sums
from tensortap.engines.torch.follow.data_loading import FETCHES_DATA, is_loading_data
from tensortap.engines.torch.follow.entrances import Entrances
from tensortap.engines.torch.follow.guarded import GuardedRuns
from tensortap.engines.torch.follow.models import Models
from tensortap.engines.torch.follow.modes import Modes
from tensortap.engines.torch.follow.module_hooks import ModuleHooks
from tensortap.engines.torch.follow.optimizers import Optimizers
from tensortap.engines.torch.follow.present_run import PresentRun
from tensortap.engines.torch.follow.rehearsals import PIPELINES, Rehearsals
from tensortap.engines.torch.follow.runs import Runs
from tensortap.engines.torch.follow.updates import ask_before_steps, has_bad_gradient
from tensortap.engines.torch.follow.watch import Watch
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.scopes import announcing
from tensortap.engines.torch.tracing import is_being_traced
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.updates import UpdateCollector

__all__ = ["Follower"]

log = logging.getLogger("tensortap.hooks")

_COMPILED = "tensortap.engines.torch.compiled"
"""Imported when a program compiles with our backend: in watched runs it stays compiled, if no hook disturbs it."""


class Follower:
    """Cuts the program into runs, and has each of them watched.

    All of it happens in the thread that makes the first optimizer, or calls a model with parameters first.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._models = Models()
        self._runs = Runs(watch, self._models.program)
        self._present = PresentRun()
        self._guarded = GuardedRuns(watch, self._runs.session, self._models, self)
        self._optimizers = Optimizers()
        facts = (
            self._optimizers.by_identity,
            self._runs.limits,
            watch.seen,
            sys.modules,
            _COMPILED,
            FETCHES_DATA,
            PIPELINES,
            watch.options.condition is not None,
        )
        self._hooks = ModuleHooks(self._enter_model, self._leave_model, facts)
        self._hooks.calls.hears_leave = int(self._guarded.may_be)
        self._generation = generation()
        self._thread: int | None = None
        self._entrances: Entrances | None = None
        self._step_handle: Any = None
        self._backward_steps = BackwardSteps(self._after_backward)
        self._updates: UpdateCollector | None = None
        self._modes = Modes()
        self._rehearsals = Rehearsals(self._runs.session.is_unwritten)
        self._has_learned = False  # of models that were only rehearsed yet
        self._stops = False
        # Where every call may end the program, or a unit of it, each is heard of.
        self._notes_calls = not watch.options.stop and not self._guarded.may_be
        self._given_up = False

    def install(self) -> None:
        """Learn of optimizers when they are made, and of models when they are called."""
        self._entrances = Entrances(
            lambda optimizer, frame: self.attempt(self._on_optimizer, optimizer, frame),
            lambda: (self._watch.seen.steps, len(self._present.stepped)),
            lambda optimizer: self.attempt(self._on_skipped_step, optimizer),
            self._before_tracing,
        )
        self._step_handle = register_optimizer_step_pre_hook(self._before_step)
        if self._watch.updates is not None:
            seen = self._watch.seen
            self._updates = UpdateCollector(
                self._models.program, lambda: int(seen.steps), self._watch.updates.add
            )
        self._hook_modules()
        self._backward_steps.listen()
        if threading.current_thread() is threading.main_thread():
            self.attempt(self._prepare)

    def end(self, error: BaseException | None = None) -> None:
        """The program is over, or about to end by an exception; what comes after is not watched."""
        if generation() == self._generation and threading.current_thread() is threading.main_thread():
            self.attempt(self._runs.end_preparation, self._present, True)
            self.attempt(self._runs.end_stranded)
        if self._is_here():
            self.attempt(self._guarded.look_at_update)
            self.attempt(self._end_run, error)
            self.attempt(self._runs.close)
        self._give_up()
        self._backward_steps.stop_listening()
        if self._updates is not None:
            self._updates.close()
        if self._step_handle is not None:
            self._step_handle.remove()
        if self._entrances is not None:
            self._entrances.close()

    # --- optimizers --------------------------------------------------------------------------------

    @property
    def optimizers(self) -> Collection[Optimizer]:
        """All that the program has."""
        return self._optimizers

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped in the present run."""
        return bool(self._present.stepped)

    def _on_optimizer(self, optimizer: Optimizer, frame: FrameType) -> None:
        if optimizer in self._optimizers or not self._is_ours():
            return
        with self._guarded.timed():
            if self._updates is not None:
                self._updates.made(optimizer, frame)
            self._listen_to(optimizer)
            if self._guarded.is_idle:
                self._guarded.guard.excuse_new(optimizer)
                if self._watch.budget.owes:  # a program that makes many is learned when there is time for it
                    return
            learned = self._models.learn_of(optimizer, frame)
            if not self._guarded.is_idle and (not self._runs.is_open or learned):
                self._next_run()

    @never_compiled  # type: ignore[type-var]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._optimizers and self._is_ours():  # a copy, which its class did not make
            self.attempt(self._listen_to, optimizer)

    def _listen_to(self, optimizer: Optimizer) -> None:
        self._optimizers.add(optimizer)
        self._backward_steps.stop_listening()
        self._runs.counts_passes = False
        # A hook of the optimizer itself: PyTorch goes through them before it begins with the global ones, among
        # which those of a run may therefore come and go.
        optimizer.register_step_post_hook(self._after_step)
        if self._watch.options.stop or self._watch.options.skip_bad:
            ask_before_steps(optimizer, self._may_step)

    def _may_step(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer may apply its gradients; ends the program if it is to end at the first bad value."""
        if not self._is_here() or self._given_up:
            return True
        try:
            is_bad = has_bad_gradient(optimizer)
        except Exception:
            log.warning("The gradients could not be looked at; they are applied.", exc_info=True)
            return True
        if not is_bad:
            return True
        if self._guarded.is_idle:
            self.attempt(self._guarded.look_at_step, optimizer)
        if self._watch.options.skip_bad:
            self._watch.leaves_out(self._watch.seen.steps)
            self.attempt(self._on_step, optimizer)
            return False
        # The run ends before its update, which will be part of the next if the bad values turn out to be meant.
        self.attempt(self._next_run)
        self.stop_if_bad()
        return True

    @never_compiled  # type: ignore[type-var]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_here():
            self._watch.seen.elsewhere += generation() == self._generation
            return
        if self._guarded.is_idle and self._goes_on(optimizer):
            return
        with self._guarded.timed():
            self.attempt(self._on_guarded_step if self._guarded.is_idle else self._on_step, optimizer)
        self.stop_if_bad()

    def _goes_on(self, optimizer: Optimizer) -> bool:
        """Whether a guarded step was like the one before, and fine: then all that follows from it is done."""
        if not self._present.is_step_alone(id(optimizer)) or torch._C._current_autograd_node() is not None:
            return False
        try:
            if self._given_up or not self._guarded.goes_on(optimizer):
                return False
            self._runs.count_step()
        except Exception:
            return False  # who looks again has the same trouble, and tells of it
        return True

    def _on_guarded_step(self, optimizer: Optimizer) -> None:
        self._guarded.after_step(optimizer)
        self._on_step(optimizer)

    def _on_step(self, optimizer: Optimizer) -> None:
        limits = self._runs.limits
        self._hooks.hear_next()
        if limits.reached:
            self._hooks.catch_up(self._present)
            if not self._present.calls:  # it does without modules, and a step of it is that long
                limits.outside = min(4 * limits.outside, MOST_NODES)
        ends = self._present.ends_with_step(id(optimizer), self._optimizers.by_identity)
        # Within the backward pass (an optimizer per parameter) the run goes on until a model is called.
        if ends and torch._C._current_autograd_node() is None:
            self._look_at_copies()
            self._next_run()

    def _look_at_copies(self) -> None:
        """Take checksums of what other ranks have, too, before the next step changes it."""
        checks, step = self._watch.copies, self._watch.seen.steps
        if checks is None or devices.world_size() < 2:
            return
        if self._runs.own_secs:
            checks.worked(self._runs.own_secs)
        if not checks.is_due(step):
            return
        try:
            checks.take(
                step,
                devices.rank(),
                devices.world_size(),
                torch.initial_seed(),
                lambda: sums(self._models.program),
            )
        except Exception:
            log.warning("Ranks will not be compared: checksums could not be taken.", exc_info=True)
            self._watch.copies = None

    def _on_skipped_step(self, optimizer: Optimizer) -> None:
        if self._is_here():
            self._watch.seen.skipped += 1
            self._guarded.guard.after_skipped_step()
            self._on_step(optimizer)

    # --- programs without optimizers and models ----------------------------------------------------

    @property
    def step(self) -> int:
        """The number of the present step; -1 if there are none."""
        return self._runs.step if self._optimizers or self._watch.seen.passes else -1

    def _after_backward(self, steps: int) -> None:
        if generation() == self._generation and self._is_ours():
            with self._guarded.timed():
                self.attempt(self._on_backward_steps, steps)
            self.stop_if_bad()

    def _on_backward_steps(self, steps: int) -> None:
        limits = self._runs.limits
        if limits.reached:
            limits.outside = min(4 * limits.outside, MOST_NODES)
        if self._guarded.is_idle:
            self._guarded.notice(self._backward_steps.bad)
        self._present.end_with_passes(steps)
        self._next_run()
        self._backward_steps.looks, self._backward_steps.bad = self._guarded.is_idle, None

    # --- models ------------------------------------------------------------------------------------

    @never_compiled  # type: ignore[type-var]
    def _enter_model(self, module: nn.Module, args: Any) -> None:
        if is_being_traced():
            return
        if self._backward_steps.listens and generation() == self._generation:
            if next(module.parameters(), None) is None:
                return
            if self._is_ours():
                self._backward_steps.stop_listening()
        if self._is_here():
            self._hooks.calls.depth = 1
            self._hooks.calls.modules += 1
            self.attempt(self.on_model, module, args)
            self.stop_if_bad()

    @never_compiled  # type: ignore[type-var]
    def _leave_model(self, module: nn.Module, args: Any, output: Any) -> None:
        self._hooks.calls.depth = 0
        if not torch.is_grad_enabled():
            self.attempt(self._guarded.guard.excuse_output, module, output)

    def on_model(self, module: nn.Module, args: Any) -> None:
        """A module is called from outside all modules, by the program or, recomputing, by the backward pass."""
        frame = sys._getframe(1)
        if torch._C._current_autograd_node() is not None or is_loading_data(frame):
            return
        self._hooks.catch_up(self._present)
        learned = self._models.learn(module, frame) or self._has_learned
        is_rehearsal = self._rehearsals.has(module, args, frame)
        self._has_learned = is_rehearsal and learned
        if is_rehearsal:
            return
        has_gradients, has_optimizers = torch.is_grad_enabled(), bool(self._optimizers)
        # A frozen script has no mode.
        trains = has_gradients and has_optimizers and getattr(module, "training", False)
        shares = not has_gradients and has_optimizers
        run = self._present
        if (
            not self._runs.is_open
            or learned
            or self._guarded.ends_unit(module)
            or run.ends_before_call(id(module), trains, shares and self._may_share())
            or (self._runs.limits.reached and not run.calls)
            or (self._hooks.are_there and self._goes_around_compiled())
        ):
            known = set(module_hooks._global_forward_pre_hooks) - announcing()
            self._next_run()
            # This call has collected its hooks already; those of the new run have to hear of it, too.
            for key, hook in list(module_hooks._global_forward_pre_hooks.items()):
                if key not in known and not self._hooks.is_own(hook):
                    hook(module, args)
            self._hooks.calls.depth = self._hooks.calls.modules = 1
        run.note_call(id(module), trains, shares)
        if passed := self._hooks.passed(module):
            self._modes.passed(module, passed)
        if not trains and (mode := self._modes.told(module, self._models.program.modules)) is not None:
            run.modes[mode[0]] = mode[1]
        if self._notes_calls and self._models.knows(module):
            self._hooks.go_on(run, module, self._modes.unlooked(module))

    def _may_share(self) -> bool:
        """Whether a call without gradients may join those that make up the run so far."""
        return (
            self._present.has_room(self._hooks.calls.modules)
            and not self._watch.options.stop
            and self._watch.seen.suspected == self._runs.suspected  # whose answer must not wait
        )

    # --- runs --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._runs.prepare()
        self._hook_modules()

    def _before_tracing(self) -> None:
        """Nothing can be traced in a dispatch mode: end the run; the next model begins one."""
        if self._runs.is_preparing and threading.current_thread() is threading.main_thread():
            self.attempt(self._runs.end_preparation, self._present)
        if self._is_here():
            self.attempt(self._end_run, None)
        self._runs.session.release()

    def _next_run(self) -> None:
        self._runs.end_preparation(self._present)
        stepped = self.has_stepped
        self._end_run(None)
        if self._guarded.takes_next(stepped):
            self._hooks.calls.depth = 0
            self._hooks.remove()
            self._guarded.begin()
            return
        self._models.refresh()
        self._runs.begin()
        # A run that is not watched ends with a step; until then compiled models must not meet hooks of ours.
        if (self._watch.is_watching and not self._goes_around_compiled()) or not self._optimizers:
            self._hook_modules()
        else:
            self._hooks.remove()
        self._hooks.calls.depth = 0
        if self._notes_calls:
            self._hooks.begin_run(self._runs.suspected)

    def _end_run(self, error: BaseException | None) -> None:
        was_idle, self._guarded.is_idle = self._guarded.is_idle, False
        if not self._runs.is_open and not was_idle:
            if self._present.passes:  # which ended the preparation
                self._present.next()
            return
        self._hooks.catch_up(self._present)
        try:
            self._runs.end(error, self._present, self._optimizers)
        finally:
            self._present.next()
            self._hooks.calls.modules = 0

    def _hook_modules(self) -> None:
        self._hooks.add(natively=self._runs.is_native and _COMPILED not in sys.modules)

    def _goes_around_compiled(self) -> bool:
        return bool(self._optimizers) and _COMPILED in sys.modules

    def stop_if_bad(self) -> None:
        """End the program if that is wanted and there is reason to, by an exception that its loops let pass."""
        watch = self._watch
        if watch.options.stop and not self._stops and watch.is_settled() and watch.found.is_set():
            self._stops = True
            watch.stopping()
            raise SystemExit(1)

    def attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something; if it fails for a reason of ours, the program goes on without being watched."""
        if self._given_up or is_being_traced():
            return
        try:
            with unnoticed():
                action(*arguments)
        except Exception:
            self._give_up()
            log.warning("Watching has failed; the program goes on without tensortap.", exc_info=True)

    def _give_up(self) -> None:
        self._given_up = True
        self._hooks.hear_next()
        self._hooks.remove()
        self._guarded.end()
        self._runs.session.release()

    # --- whose thread it is ------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether to listen to this thread; the first that has something to say is the one."""
        if self._thread is None:
            self._belong_to_this_thread()
        return self._is_here()

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread and generation() == self._generation

    def _belong_to_this_thread(self) -> None:
        self._thread = threading.get_ident()
        self._hooks.belong_to(self._thread)
