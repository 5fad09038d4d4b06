"""Where the runs of a program begin and end that nobody changed.

Runs follow each other without a gap, so that no op of the program goes unseen; what prepares a batch belongs to the
step that uses it. What the program does before it makes an optimizer, or calls a model, is a run of its own, the
preparation, which is kept if a bad value is made in it. Any other run ends

- when the optimizers that stepped in the run before have stepped again: normally, with the step of the only one;
- when a model is called after an optimizer has stepped (the two phases of a GAN are two runs);
- between calls of one model that train nothing: evaluation, or a program without an optimizer. Small calls without
  gradients in a program that trains (the steps of a rollout) share a run, which knows when each of them began.

Steps that a gradient scaler leaves out end a run, too. Gradient accumulation stays in one run, as does whatever a
program does with several models on the way to its step. What goes on for long without a model or a step, such as making
a data set, is recorded at its beginning only (`limits.py`).
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.data import Dataset

from tensortap.engines.observe.limits import MOST_NODES, Limits
from tensortap.engines.session.block import Monitor
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.follow.models import Models, variables_of
from tensortap.engines.torch.follow.pace import Pace
from tensortap.engines.torch.follow.root_calls import RootCalls
from tensortap.engines.torch.follow.updates import ask_before_steps, has_bad_gradient
from tensortap.engines.torch.forgetting import Forgetting
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.global_hooks import GlobalHooks
from tensortap.engines.torch.guard import Guard
from tensortap.engines.torch.loop import TorchBlockSession
from tensortap.engines.torch.scopes import announcing
from tensortap.engines.torch.tracing import is_being_traced
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.records import Circumstances

__all__ = ["Follower", "Watch"]

log = logging.getLogger("tensortap.hooks")

_CALLS_LIMIT = 1024
"""Calls of models in one run, after which it ends in any case: a loop that trains nothing must not grow forever."""

_SHARED_CALLS = 16
_SHARED_MODULES = 128
"""How many calls without gradients share a run, and how many modules they call, those within modules included: what a
call costs besides its ops is then little, there are few names to learn, and large models are on their own."""

_MOST_OUTSIDE = 2_000
"""Nodes of a run that has called no model: each op costs a name of its own there. A program whose steps are longer
shows it by stepping, and then has more."""

_FETCHES_DATA = "/torch/utils/data/_utils/fetch.py"
_FRAMES_LOOKED_AT = 40

_COMPILED = "tensortap.engines.torch.compiled"
"""Imported when a program compiles with our backend: in watched runs it stays compiled, if no hook disturbs it."""


class Watch(Protocol):
    """What a follower needs to know of whoever wants the runs."""

    @property
    def options(self) -> Any:
        """`interceptor` and `stop`."""

    @property
    def hooks(self) -> list[Any]:
        """The hooks around runs."""

    @property
    def seen(self) -> Any:
        """Counts: `steps`, `skipped`, `elsewhere`, `suspected`."""

    @property
    def found(self) -> threading.Event:
        """Set when a bad value has been found."""

    @property
    def is_watching(self) -> bool:
        """Whether the run that has begun last is watched."""

    @property
    def prepares(self) -> bool:
        """To be set: whether the run that begins next comes before all others, and is kept only for bad values."""

    @prepares.setter
    def prepares(self, value: bool) -> None: ...

    @property
    def keeps_preparation(self) -> bool:
        """Whether such a run was kept."""

    @property
    def budget(self) -> Any:
        """Decides which runs are watched (`wants_next`, `ran`, `bad`, `owes`); None for all of them."""

    def finds_unwatched(self, step: int, what: str) -> None:
        """Hear what is bad in a run that was not watched."""

    def forget_preparation(self) -> None:
        """Count runs from the next one on."""

    def leaves_out(self, step: int) -> None:
        """Hear that the update of a step is left out, because gradients are bad."""

    def stopping(self) -> None:
        """Hear that the program is about to be ended."""

    def is_settled(self) -> bool:
        """Wait until it is known whether a bad value has been found."""


class Follower:
    """Cuts the program into runs, and has each of them watched.

    All of it happens in the thread that makes the first optimizer, or calls a model with parameters first.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._models = Models()
        self._session = TorchBlockSession(self._models.program, 0, watch.options.interceptor)
        self._session.stays_installed = True
        self._session.forgetting = Forgetting()
        self._monitor = Monitor(self._session, watch.hooks, 1.0)
        self._generation = generation()
        self._thread: int | None = None
        self._block: Any = None
        self._hooks: GlobalHooks | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._step_handle: Any = None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._expected: set[int] = set()  # optimizers that stepped in the run before
        self._stepped: set[int] = set()
        self._called: set[int] = set()  # models called in this run
        self._calls = 0
        self._trains = False
        self._call_times: list[int] = []  # of calls that share this run, in microseconds
        self._modules = 0  # calls of modules in this run
        self._depth = 0
        self._preparation: Any = None
        self._stranded: Any = None  # the preparation, if another thread began to train
        self._limits = self._session.limits = Limits(outside=_MOST_OUTSIDE)
        self._pace = None if watch.budget is None else Pace(watch.budget)
        self._is_idle = False  # in a run that is not watched, for the sake of the budget
        self._guard = Guard(self._models.program)
        self._guard_hooks: RootCalls | None = None
        self._is_guarding = False
        self._suspected = 0  # runs that were, when this one began
        self._stops = False
        self._given_up = False

    def install(self) -> None:
        """Learn of optimizers when they are made, and of models when they are called."""
        follower = self
        make: Any = Optimizer.__init__
        scaled_step: Any = torch.amp.GradScaler.step

        @functools.wraps(make)
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            follower._attempt(follower._on_optimizer, optimizer, sys._getframe(1))

        @functools.wraps(scaled_step)
        def step_or_skip(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = follower._watch.seen.steps, len(follower._stepped)
            result = scaled_step(scaler, optimizer, *args, **kwargs)
            if before == (follower._watch.seen.steps, len(follower._stepped)):
                follower._attempt(follower._on_skipped_step, optimizer)
            return result

        self._replaced = [
            (Optimizer, "__init__", made, make),
            (torch.amp.GradScaler, "step", step_or_skip, scaled_step),
            *(
                (torch.jit, name, self._outside_runs(getattr(torch.jit, name)), getattr(torch.jit, name))
                for name in ("trace", "trace_module")
            ),
        ]
        for owner, name, ours, _ in self._replaced:
            setattr(owner, name, ours)
        self._step_handle = register_optimizer_step_pre_hook(self._before_step)
        self._hook_modules()
        if threading.current_thread() is threading.main_thread():
            self._attempt(self._prepare)

    def _outside_runs(self, function: Any) -> Any:
        """A function that ends the run, for nothing can be traced in a dispatch mode; the next model begins one."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._preparation is not None and threading.current_thread() is threading.main_thread():
                self._attempt(self._end_preparation)
            if self._is_here():
                self._attempt(self._end_run, None)
            self._session.release()
            return function(*args, **kwargs)

        return called

    def end(self, error: BaseException | None = None) -> None:
        """The program is over, or about to end by an exception; what comes after is not watched."""
        if generation() == self._generation and threading.current_thread() is threading.main_thread():
            self._attempt(self._end_preparation)
            self._attempt(self._end_stranded)
        if self._is_here():
            self._attempt(self._look_at_update)
            self._attempt(self._end_run, error)
            self._attempt(self._monitor.close)
        self._session.release()
        self._given_up = True
        self._unhook_modules()
        self._end_guarding()
        if self._step_handle is not None:
            self._step_handle.remove()
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)

    # --- what the program does ---------------------------------------------------------------------

    def _on_optimizer(self, optimizer: Optimizer, frame: FrameType) -> None:
        if optimizer in self._optimizers or not self._is_ours():
            return
        with self._timed():
            self._listen_to(optimizer)
            if self._is_idle:
                self._guard.excuse_new(optimizer)
                if self._watch.budget.owes:  # a program that makes many is learned when there is time for it
                    return
            learned = self._models.learn_of(optimizer, frame)
            if not self._is_idle and (self._block is None or learned):
                self._next_run()

    @never_compiled  # type: ignore[type-var]
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._optimizers and self._is_ours():  # a copy, which its class did not make
            self._attempt(self._listen_to, optimizer)

    def _listen_to(self, optimizer: Optimizer) -> None:
        self._optimizers.add(optimizer)
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
        if self._is_idle:
            self._attempt(self._look_at_step, optimizer)
        if self._watch.options.skip_bad:
            self._watch.leaves_out(self._watch.seen.steps)
            self._attempt(self._on_step, optimizer)
            return False
        # The run ends before its update, which will be part of the next if the bad values turn out to be meant.
        self._attempt(self._next_run)
        self._stop_if_bad()
        return True

    @never_compiled  # type: ignore[type-var]
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_here():
            self._watch.seen.elsewhere += generation() == self._generation
            return
        with self._timed():
            self._attempt(self._on_guarded_step if self._is_idle else self._on_step, optimizer)
        self._stop_if_bad()

    def _on_step(self, optimizer: Optimizer) -> None:
        if self._limits.reached and not self._calls:  # it does without modules, and a step of it is that long
            self._limits.outside = min(4 * self._limits.outside, MOST_NODES)
        repeated = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        # Within the backward pass (an optimizer per parameter) the run goes on until a model is called.
        if (repeated or self._all_stepped()) and torch._C._current_autograd_node() is None:
            self._next_run()

    def _all_stepped(self) -> bool:
        if self._expected and self._stepped >= self._expected:
            return True
        living = {id(each) for each in self._optimizers}
        return self._stepped >= (self._expected & living or living)

    def _on_skipped_step(self, optimizer: Optimizer) -> None:
        if self._is_here():
            self._watch.seen.skipped += 1
            self._guard.after_skipped_step()
            self._on_step(optimizer)

    @never_compiled  # type: ignore[type-var]
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        # What dynamo asks is a constant to it, and it makes nothing of this hook then.
        if is_dynamo_compiling():
            return
        if self._depth and threading.get_ident() == self._thread and generation() == self._generation:
            self._depth += 1
            self._modules += 1
            return
        if is_being_traced():
            return
        if self._thread is None:
            self._choose_thread(module)
        if threading.get_ident() == self._thread and generation() == self._generation:
            self._depth = 1
            self._modules += 1
            self._attempt(self._on_model, module, args)
            self._stop_if_bad()

    @never_compiled  # type: ignore[type-var]
    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_dynamo_compiling():
            return
        if threading.get_ident() == self._thread and generation() == self._generation and self._depth:
            self._depth -= 1
            if self._pace is not None and not self._depth and not torch.is_grad_enabled():
                self._attempt(self._guard.excuse_output, module, output)

    def _on_model(self, module: nn.Module, args: Any) -> None:
        """A module is called from outside all modules, by the program or, recomputing, by the backward pass."""
        if torch._C._current_autograd_node() is not None or _is_loading_data(sys._getframe(1)):
            return
        learned = self._models.learn(module, sys._getframe(1))
        # A frozen script has no mode.
        is_training = getattr(module, "training", False)
        has_gradients, has_optimizers = torch.is_grad_enabled(), bool(self._optimizers)
        trains = has_gradients and is_training and has_optimizers
        again = id(module) in self._called
        shares = not has_gradients and has_optimizers
        repeats = self._calls > len(self._called)
        if (
            self._block is None
            or learned
            or self._ends_unit(module)
            or self._stepped
            or (self._limits.reached and not self._calls)
            or (again and not self._trains and not (shares and self._may_share()))
            or (trains and repeats and not self._trains)
            or self._calls >= _CALLS_LIMIT
            or (self._hooks and self._goes_around_compiled())
        ):
            known = set(module_hooks._global_forward_pre_hooks) - announcing()
            self._next_run()
            # This call has collected its hooks already; those of the new run have to hear of it, too.
            for key, hook in list(module_hooks._global_forward_pre_hooks.items()):
                if key not in known and hook != self._enter_module:
                    hook(module, args)
            self._depth = self._modules = 1
        if shares and len(self._call_times) == self._calls:
            self._call_times.append(time.time_ns() // 1000)
        self._called.add(id(module))
        self._calls += 1
        self._trains = self._trains or trains

    def _may_share(self) -> bool:
        """Whether a call without gradients may join those that make up the run so far."""
        return (
            len(self._call_times) == self._calls < _SHARED_CALLS
            and self._modules < _SHARED_MODULES
            and not self._watch.options.stop
            and self._watch.seen.suspected == self._suspected  # whose answer must not wait
        )

    # --- runs --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Watch what the main thread does before the first model and optimizer."""
        self._watch.prepares = True
        self._session.circumstances = Circumstances(is_preparation=True)
        block = self._monitor.run(hooks=self._watch.hooks[:1])
        block.__enter__()
        self._preparation = block
        self._unhook_modules()  # behind the hooks of the run, as always
        self._hook_modules()

    def _end_preparation(self) -> None:
        """The program begins to train or to evaluate, or is over."""
        block, self._preparation = self._preparation, None
        if block is None:
            return
        if threading.current_thread() is not threading.main_thread():
            # It began in another thread, and only there it can be ended: when the program is over.
            self._stranded = block
            self._monitor.abandon_run()
            self._watch.forget_preparation()
        else:
            block.__exit__(None, None, None)
        self._session.global_step = 0
        self._session.circumstances = Circumstances()
        if not self._watch.keeps_preparation:
            self._session.number_runs_anew()
        self._watch.prepares = False

    def _end_stranded(self) -> None:
        block, self._stranded = self._stranded, None
        if block is not None:
            self._session.circumstances = Circumstances(is_preparation=True)
            block.__exit__(None, None, None)

    def _next_run(self) -> None:
        self._end_preparation()
        stepped = bool(self._stepped)
        self._end_run(None)
        if self._pace is not None and not self._pace.watches_next(stepped):
            self._begin_guarding()
            return
        self._end_guarding()
        self._models.refresh()
        self._suspected = self._watch.seen.suspected
        block = self._monitor.run()
        block.__enter__()
        self._block = block
        self._depth = 0
        # A run that is not watched ends with a step; until then compiled models must not meet hooks of ours.
        if (self._watch.is_watching and not self._goes_around_compiled()) or not self._optimizers:
            self._hook_modules()
        else:
            self._unhook_modules()

    def _goes_around_compiled(self) -> bool:
        return bool(self._optimizers) and _COMPILED in sys.modules

    # --- runs that are not watched, for the sake of the budget ---------------------------------------

    def _begin_guarding(self) -> None:
        self._is_idle = True
        self._depth = 0
        self._models.refresh()  # a model that the program lets go of must not wait for the next watched run
        if self._is_guarding:
            return
        self._is_guarding = True
        self._unhook_modules()
        self._session.release()
        self._guard.excuse(self._optimizers)
        self._guard.listen()
        if not self._session.runs_compiled:  # compiled models must not meet hooks of ours
            self._guard_hooks = RootCalls(self._enter_guarded, self._leave_guarded)

    def _end_guarding(self) -> None:
        if self._is_guarding:
            self._is_guarding = False
            self._guard.stop_listening()
            if self._guard_hooks is not None:
                self._guard_hooks.remove()
                self._guard_hooks = None

    def _enter_guarded(self, module: nn.Module, args: Any) -> bool:
        if self._optimizers and torch.is_grad_enabled() and module.training:
            if self._stepped:  # the next phase of a program with several optimizers
                with self._timed():
                    self._attempt(self._on_model, module, args)
            return False  # what leads to a step shows in it
        self._attempt(self._on_guarded_model, module, args)
        self._stop_if_bad()
        return self._is_idle

    def _leave_guarded(self, module: nn.Module, output: Any) -> None:
        self._attempt(self._look_at_output, module, output)
        self._stop_if_bad()

    def _on_guarded_model(self, module: nn.Module, args: Any) -> None:
        if torch._C._current_autograd_node() is None:
            with self._timed():
                self._look_at_update()
                if self._ends_unit(module):
                    self._on_model(module, args)

    def _ends_unit(self, module: nn.Module) -> bool:
        """A model is called; whether that ends a unit of a program with a budget."""
        trains = bool(self._optimizers)
        if self._pace is None or (trains and torch.is_grad_enabled() and getattr(module, "training", False)):
            return False
        return self._pace.call_ends_unit(trains)

    def _on_guarded_step(self, optimizer: Optimizer) -> None:
        self._look_at_step(optimizer)
        if self._guard_hooks is not None:
            self._guard_hooks.resume()
        self._on_step(optimizer)

    def _look_at_step(self, optimizer: Optimizer) -> None:
        self._notice(self._guard.after_step(optimizer))

    def _look_at_update(self) -> None:
        """In a program without an optimizer, it may have updated its models itself."""
        if self._is_idle and not self._optimizers:
            self._notice(self._guard.after_backward())

    def _look_at_output(self, module: nn.Module, output: Any) -> None:
        with self._timed():
            self._notice(self._guard.output(module, output))

    def _notice(self, bad: str | None) -> None:
        if bad is not None and self._watch.budget.bad is None:
            self._watch.finds_unwatched(self._watch.seen.steps if self._optimizers else -1, bad)

    def _timed(self) -> Any:
        """A block that counts as time of ours."""
        return nullcontext() if self._pace is None else self._pace

    # --- how runs end ------------------------------------------------------------------------------

    def _end_run(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        was_idle, self._is_idle = self._is_idle, False
        if block is None and not was_idle:
            return
        if block is not None:
            self._session.circumstances = self._circumstances()
        if self._stepped:
            self._watch.seen.steps += 1
            self._expected = self._stepped
        self._stepped, self._called, self._calls, self._trains = set(), set(), 0, False
        self._call_times, self._modules = [], 0
        if block is None:
            self._session.global_step = self._watch.seen.steps
            return
        try:
            if error is None:
                block.__exit__(None, None, None)
            else:
                block.__exit__(type(error), error, error.__traceback__)
        finally:
            # Each block counts as a step to the monitor; here only runs are in which an optimizer stepped.
            self._session.global_step = self._watch.seen.steps

    def _circumstances(self) -> Circumstances:
        optimizers = list(self._optimizers)
        rates = {
            type(optimizer).__name__: float(optimizer.param_groups[0].get("lr", math.nan))
            for optimizer in optimizers
            if optimizer.param_groups
        }
        return Circumstances(
            trains=(self._trains or bool(self._stepped)) if self._calls or self._stepped else None,
            learning_rates={name: rate for name, rate in rates.items() if math.isfinite(rate)},
            counts_steps=bool(optimizers),
            calls=tuple(self._call_times) if self._calls > len(self._called) else (),
        )

    def _stop_if_bad(self) -> None:
        """End the program if that is wanted and there is reason to, by an exception that its loops let pass."""
        watch = self._watch
        if watch.options.stop and not self._stops and watch.is_settled() and watch.found.is_set():
            self._stops = True
            watch.stopping()
            raise SystemExit(1)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something; if it fails for a reason of ours, the program goes on without being watched."""
        if self._given_up or is_being_traced():
            return
        try:
            with unnoticed():
                action(*arguments)
        except Exception:
            self._given_up = True
            self._unhook_modules()
            self._end_guarding()
            self._session.release()
            log.warning("Watching has failed; the program goes on without tensortap.", exc_info=True)

    # --- whose thread it is ------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether to listen to this thread; the first that has something to say is the one."""
        if self._thread is None:
            self._thread = threading.get_ident()
        return self._is_here()

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread and generation() == self._generation

    def _choose_thread(self, module: nn.Module) -> None:
        if generation() == self._generation and next(module.parameters(), None) is not None:
            self._thread = threading.get_ident()

    def _hook_modules(self) -> None:
        # Behind the hooks of the run, so that a run may be ended and another begun from here.
        if self._hooks is None:
            self._hooks = GlobalHooks(self._enter_module, self._leave_module)
        else:
            self._hooks.move_behind_others()

    def _unhook_modules(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None


def _is_loading_data(frame: FrameType | None) -> bool:
    """Whether a data set or a loader is at work: what it calls belongs to the step that will use its data."""
    for _ in range(_FRAMES_LOOKED_AT):
        if frame is None:
            return False
        code = frame.f_code
        if _fetches_data(code.co_filename):
            return True
        if code.co_name == "__getitem__" and isinstance(variables_of(frame).get("self"), Dataset):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=1024)
def _fetches_data(file: str) -> bool:
    return file.endswith(_FETCHES_DATA)
