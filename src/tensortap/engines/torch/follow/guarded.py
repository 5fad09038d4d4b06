"""Runs that are not watched, for the sake of a budget of time: a look at what each of them leaves behind."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from tensortap.engines.torch.devices import world_size
from tensortap.engines.torch.follow.models import Models
from tensortap.engines.torch.follow.pace import Pace
from tensortap.engines.torch.follow.root_calls import RootCalls
from tensortap.engines.torch.follow.watch import Watch
from tensortap.engines.torch.guard import Guard
from tensortap.engines.torch.loop import TorchBlockSession

__all__ = ["GuardedRuns"]


class _Follower(Protocol):
    """What guarded runs ask of whoever cuts the program into runs."""

    @property
    def optimizers(self) -> Collection[Optimizer]: ...

    @property
    def has_stepped(self) -> bool: ...

    @property
    def step(self) -> int: ...

    def on_model(self, module: nn.Module, args: Any) -> None: ...

    def attempt(self, action: Any, *arguments: Any) -> None: ...

    def stop_if_bad(self) -> None: ...


_UNTIMED = nullcontext()


class GuardedRuns:
    """Says which runs are watched, and guards the others.

    Args:
        watch: has the budget, and hears of what is bad; without a budget, every run is watched.
        session: of the runs that are watched.
        models: of the program.
        follower: is told of calls that may end a run.

    Attributes:
        is_idle: in a run that is not watched.
        guard: what looks.
        hears_calls: whether calls of models are heard of in such a run.
    """

    def __init__(self, watch: Watch, session: TorchBlockSession, models: Models, follower: _Follower) -> None:
        self._watch = watch
        self._session = session
        self._models = models
        self._follower = follower
        self._pace = None if watch.budget is None else Pace(watch.budget)
        self.guard = Guard(models.program)
        self._calls: RootCalls | None = None
        self._is_guarding = False
        self._granted = 0  # calls of which nothing is to be heard
        self._is_only_rank = True
        self.is_idle = False

    @property
    def may_be(self) -> bool:
        """Whether there is a budget."""
        return self._pace is not None

    def timed(self) -> Any:
        """A block that counts as time of ours."""
        return _UNTIMED if self._pace is None else self._pace

    def takes_next(self, stepped: bool) -> bool:
        """A run is over, in which an optimizer may have stepped; whether the next one is not watched."""
        self._take_account()
        if self._pace is None or self._pace.watches_next(stepped):
            self.end()
            return False
        self.is_idle = True
        self._is_only_rank = world_size() < 2
        self._open_gate()
        self._models.refresh()  # a model that the program lets go of must not wait for the next watched run
        return True

    def begin(self) -> None:
        """Guard from now on; nothing of a watched run is installed any more."""
        if self._is_guarding:
            return
        self._is_guarding = True
        self._session.release()
        self.guard.excuse(self._follower.optimizers)
        self.guard.listen()
        if not self._session.runs_compiled:  # compiled models must not meet hooks of ours
            self._calls = RootCalls(self._enter, self._leave)
            self._open_gate()

    def end(self) -> None:
        """Remove what guards; harmless when nothing does."""
        if self._is_guarding:
            if self._pace is not None:
                self._pace.end()
            self._is_guarding = False
            self.guard.stop_listening()
            if self._calls is not None:
                self._calls.remove()
                self._calls = None

    def ends_unit(self, module: nn.Module) -> bool:
        """A model is called; whether that ends a unit of a program with a budget."""
        trains = bool(self._follower.optimizers)
        if self._pace is None or (trains and torch.is_grad_enabled() and getattr(module, "training", False)):
            return False
        return self._pace.call_ends_unit(trains)

    # --- looking -----------------------------------------------------------------------------------

    def look_at_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped, or is about to apply bad gradients."""
        self.notice(self.guard.after_step(optimizer))

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped: look, and hear of the next call."""
        self.look_at_step(optimizer)
        if self._calls is not None:
            self._calls.resume()
            if self._calls.in_c is not None:
                self._calls.in_c.gate.stepped = 1

    def goes_on(self, optimizer: Optimizer) -> bool:
        """The step of an optimizer has ended a unit; whether nothing is bad, and the next one is guarded for certain.

        What most steps of a program come to, and all that there is to do about them.
        """
        began = time.perf_counter()
        pace, calls = self._pace, self._calls
        if (
            pace is None
            or not self._is_only_rank
            or not pace.goes_on(began)
            or self._watch.budget.bad is not None
            or not self.guard.is_fine_after(optimizer)
        ):
            return False
        if calls is not None and calls.in_c is not None:
            gate = calls.in_c.gate
            gate.leads = 0
            if gate.quiet != self._granted:
                self._take_account()
                self._open_gate()
        if calls is not None and (calls.in_c is None or not calls.in_c.is_there):
            calls.resume()
        pace.go_on(began)
        return True

    def look_at_update(self) -> None:
        """In a program without an optimizer, it may have updated its models itself."""
        if self.is_idle and not self._follower.optimizers:
            self.notice(self.guard.after_backward())

    def _look_at_output(self, module: nn.Module, output: Any) -> None:
        self.notice(self.guard.output(module, output))

    def notice(self, bad: str | None) -> None:
        """Tell what is bad in the present run, if something is, and nothing was before."""
        if bad is not None and self._watch.budget.bad is None:
            self._watch.finds_unwatched(self._follower.step, bad)
            self._take_account()  # the next call ends the unit

    # --- calls of models ---------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any) -> bool:
        follower = self._follower
        with self.timed():  # hooks of small models cost as much as what they look at
            if follower.optimizers and torch.is_grad_enabled() and module.training:
                if follower.has_stepped:  # the next phase of a program with several optimizers
                    follower.attempt(follower.on_model, module, args)
                return False  # what leads to a step shows in it
            follower.attempt(self._on_model, module, args)
        follower.stop_if_bad()
        return self.is_idle

    def _leave(self, module: nn.Module, output: Any) -> None:
        with self.timed():
            self._follower.attempt(self._look_at_output, module, output)
        self._follower.stop_if_bad()

    def _on_model(self, module: nn.Module, args: Any) -> None:
        if torch._C._current_autograd_node() is None:
            self.look_at_update()
            self._take_account()
            if self.ends_unit(module):
                self._follower.on_model(module, args)

    def _open_gate(self) -> None:
        """Say which calls of the unit that begins need not be heard of."""
        if self._calls is not None and self._calls.in_c is not None and self._pace is not None:
            gate = self._calls.in_c.gate
            gate.trains, gate.stepped, gate.leads = bool(self._follower.optimizers), 0, 0
            gate.quiet = self._granted = self._pace.calls_left(bool(gate.trains))

    def _take_account(self) -> None:
        """Add up what was not heard of; all calls are, from now on."""
        if self._calls is not None and self._calls.in_c is not None and self._pace is not None:
            gate = self._calls.in_c.gate
            self._pace.add(self._granted - gate.quiet, gate.own_ns / 1e9)
            self._granted = gate.quiet = gate.own_ns = 0
