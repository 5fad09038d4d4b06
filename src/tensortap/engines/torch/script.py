"""Following a PyTorch program that nobody changed: where its runs begin and end, and what its models are called.

Runs follow each other without a gap, so that no op of the program goes unseen; what prepares a batch belongs to the
step that uses it. The first begins when the program makes an optimizer, or calls a model. A run ends

- when the optimizers that stepped in the run before have stepped again: normally, with the step of the only one;
- when a model is called after an optimizer has stepped (the two phases of a GAN are two runs);
- between calls of one model that train nothing: evaluation, or a program without an optimizer.

Steps that a gradient scaler leaves out end a run, too. Gradient accumulation stays in one run, as does whatever a
program does with several models on the way to its step. What goes on for long without a model or a step, such as making
a data set, is watched at its beginning only.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

import tensortap
from tensortap.engines.torch import source
from tensortap.engines.torch.choice import VARIABLE
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.loop import BlockSession, Monitor
from tensortap.engines.torch.program import Program, clean_path
from tensortap.errors import NativeBuildError

__all__ = ["Follower", "follow"]

log = logging.getLogger("tensortap.run")

_CALLS_LIMIT = 1024
"""Calls of models in one run, after which it ends in any case: a loop that trains nothing must not grow forever."""

_RECORDS_LIMIT = 5_000
"""Records of a run without a call of a model, after which it pauses: each op costs a name of its own there."""

_MOST_RECORDS = 1_000_000


class Watch(Protocol):
    """What a follower needs to know of whoever wants the runs."""

    @property
    def options(self) -> Any:
        """`interceptor`, `stop` and `hooks`."""

    @property
    def hook(self) -> Any:
        """The hook that watches runs."""

    @property
    def seen(self) -> Any:
        """Counts: `steps`, `skipped`, `elsewhere`."""

    @property
    def found(self) -> threading.Event:
        """Set when a bad value has been found."""

    @property
    def is_watching(self) -> bool:
        """Whether the run that has begun last is watched."""

    @property
    def records(self) -> int:
        """How many records the run that has begun last has made so far."""

    @property
    def on_records(self) -> Any:
        """To be set: called, in any thread, when records come in."""

    @on_records.setter
    def on_records(self, action: Callable[[], None]) -> None: ...

    def is_settled(self) -> bool:
        """Wait until it is known whether a bad value has been found."""


def follow(watch: Watch) -> Follower:
    """Follow the program of this process from now on."""
    _build_observer(watch.options.interceptor)
    follower = Follower(watch)
    follower.install()
    return follower


class Follower:
    """Cuts the program into runs, and has each of them watched.

    All of it happens in the thread that makes the first optimizer, or calls a model with parameters first.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._models = _Models()
        self._session = BlockSession(self._models.program, None, 0, watch.options.interceptor)
        self._monitor = Monitor(self._session, [watch.hook, *watch.options.hooks], 1.0)
        self._generation = generation()
        self._process = os.getpid()
        self._thread: int | None = None
        self._block: Any = None
        self._handles: list[Any] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._expected: set[int] = set()  # optimizers that stepped in the run before
        self._stepped: set[int] = set()
        self._called: set[int] = set()  # models called in this run
        self._calls = 0
        self._trains = False
        self._depth = 0
        self._records_limit = _RECORDS_LIMIT
        self._pause = _InMainThread(self._pause_if_long)
        self._paused = False
        self._given_up = False
        watch.on_records = self._on_records

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
        ]
        for owner, name, ours, _ in self._replaced:
            setattr(owner, name, ours)
        self._hook_modules()

    def end(self, error: BaseException | None = None) -> None:
        """The program is over, or about to end by an exception; what comes after is not watched."""
        if self._is_here() and not self._given_up:
            self._attempt(self._end_run, error)
            self._attempt(self._monitor.close)
        self._given_up = True
        self._unhook_modules()
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)

    # --- what the program does ---------------------------------------------------------------------

    def _on_optimizer(self, optimizer: Optimizer, frame: FrameType) -> None:
        if optimizer in self._optimizers or not self._is_ours():
            return
        self._optimizers.add(optimizer)
        # Hooks of the optimizer itself: PyTorch goes through them before it begins with the global ones, among
        # which those of a run may therefore come and go.
        optimizer.register_step_post_hook(self._after_step)
        learned = self._models.learn_of(optimizer, frame)
        if self._block is None or learned:
            self._next_run()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_here():
            self._watch.seen.elsewhere += generation() == self._generation
            return
        self._attempt(self._on_step, optimizer)
        self._stop_if_bad()

    def _on_step(self, optimizer: Optimizer) -> None:
        if self._paused:  # the program does without modules, and a step of it is that long
            self._records_limit = min(4 * self._records_limit, _MOST_RECORDS)
        repeated = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        expected = self._expected or {id(each) for each in self._optimizers}
        # Within the backward pass (an optimizer per parameter) the run goes on until a model is called.
        if (repeated or self._stepped >= expected) and torch._C._current_autograd_node() is None:
            self._next_run()

    def _on_skipped_step(self, optimizer: Optimizer) -> None:
        if self._is_here():
            self._watch.seen.skipped += 1
            self._on_step(optimizer)

    @never_compiled  # type: ignore[type-var]
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if self._thread is None:
            self._choose_thread(module)
        if threading.get_ident() == self._thread and generation() == self._generation:
            self._depth += 1
            if self._depth == 1:
                self._attempt(self._on_model, module, args)
                self._stop_if_bad()

    @never_compiled  # type: ignore[type-var]
    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and generation() == self._generation and self._depth:
            self._depth -= 1

    def _on_model(self, module: nn.Module, args: Any) -> None:
        """A module is called from outside all modules, by the program or, recomputing, by the backward pass."""
        if torch._C._current_autograd_node() is not None:
            return
        learned = self._models.learn(module, sys._getframe(1))
        trains = torch.is_grad_enabled() and module.training and bool(self._optimizers)
        again = id(module) in self._called
        if (
            self._block is None
            or learned
            or self._stepped
            or (again and not self._trains)
            or self._calls >= _CALLS_LIMIT
        ):
            known = set(module_hooks._global_forward_pre_hooks)
            self._next_run()
            # This call has collected its hooks already; those of the new run have to hear of it, too.
            for key, hook in list(module_hooks._global_forward_pre_hooks.items()):
                if key not in known and hook != self._enter_module:
                    hook(module, args)
            self._depth = 1
        self._called.add(id(module))
        self._calls += 1
        self._trains = self._trains or trains

    # --- runs --------------------------------------------------------------------------------------

    def _next_run(self) -> None:
        self._end_run(None)
        self._paused = False
        self._models.refresh()
        block = self._monitor.run()
        block.__enter__()
        self._block = block
        self._depth = 0
        self._unhook_modules()
        # A run that is not watched ends with a step; until then compiled models must not meet hooks of ours.
        if self._watch.is_watching or not self._optimizers:
            self._hook_modules()

    def _end_run(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        if self._stepped:
            self._watch.seen.steps += 1
            self._expected = self._stepped
        self._stepped, self._called, self._calls, self._trains = set(), set(), 0, False
        try:
            if error is None:
                block.__exit__(None, None, None)
            else:
                block.__exit__(type(error), error, error.__traceback__)
        finally:
            # Each block counts as a step to the monitor; here only runs are in which an optimizer stepped.
            self._session.global_step = self._watch.seen.steps

    def _on_records(self) -> None:
        if self._watch.records > self._records_limit and not self._calls:
            self._pause.call_soon()

    def _pause_if_long(self, frame: FrameType | None) -> None:
        """End a run that goes on without a model, if the program is between two operations now."""
        is_long = not self._calls and self._watch.records > self._records_limit
        if is_long and self._is_here() and not _is_inside_an_operation(frame):
            self._paused = True
            self._attempt(self._end_run, None)

    def _stop_if_bad(self) -> None:
        """End the program if that is wanted and there is reason to, by an exception that its loops let pass."""
        watch = self._watch
        if watch.options.stop and not self._given_up and watch.is_settled() and watch.found.is_set():
            self._given_up = True
            raise SystemExit(1)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something; if it fails for a reason of ours, the program goes on without being watched."""
        if self._given_up:
            return
        try:
            action(*arguments)
        except Exception:
            self._given_up = True
            self._unhook_modules()
            log.warning("tensortap stops watching this program, which goes on without it.", exc_info=True)

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
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def _unhook_modules(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _build_observer(interceptor: str | None) -> None:
    """Build the native interceptor now if it is missing, and not in the middle of the first step."""
    if (interceptor or os.environ.get(VARIABLE, "auto")) != "dispatch":
        from tensortap.engines.torch.native import build

        with suppress(NativeBuildError):  # whoever needs it says what is wrong
            build.ensure_built()


class _InMainThread:
    """Has a function called by the main thread between two instructions, as handlers of signals are.

    Args:
        action: called with the frame that is interrupted.
    """

    def __init__(self, action: Callable[[FrameType | None], None]) -> None:
        self._action = action
        self._waits = False
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)

    def call_soon(self) -> None:
        """Have it called, unless that is going to happen already."""
        if not self._waits:
            self._waits = not ctypes.pythonapi.Py_AddPendingCall(self._callback, None)

    def _call(self, _: int | None) -> int:
        self._waits = False
        self._action(sys._getframe(1))
        return 0


def _is_inside_an_operation(frame: FrameType | None) -> bool:
    """Whether Python code of torch or of ours is being executed, as it is when an op is implemented or seen in Python."""
    while frame is not None and not frame.f_code.co_filename.endswith(_STARTER):
        if frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
            return True
        frame = frame.f_back
    return False


_NOT_THE_PROGRAM = (os.path.dirname(torch.__file__), os.path.dirname(tensortap.__file__))
_STARTER = os.path.join("debug", "script", "python.py")


class _Models:
    """The models of the program, by the names the program has for them; they live as long as it wants."""

    def __init__(self) -> None:
        self.program = Program()
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def refresh(self) -> None:
        """Forget models that the program has let go of."""
        self.program.modules.clear()
        for name, reference in list(self._models.items()):
            module = reference()
            if module is None:
                del self._models[name]
            else:
                self.program.modules[name] = module

    def learn_of(self, optimizer: Optimizer, frame: FrameType) -> bool:
        """Find the models an optimizer is for among the variables of its makers; whether there are new ones."""
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        found = {
            name: module
            for name, module in _modules_around(frame)
            if any(id(parameter) in owned for parameter in module.parameters())
        }
        inner = {id(each) for module in found.values() for each in list(module.modules())[1:]}
        outermost = {name: module for name, module in found.items() if id(module) not in inner}
        return sum(self._add(name, module) for name, module in outermost.items()) > 0

    def learn(self, module: nn.Module, frame: FrameType) -> bool:
        """Take a model that is called to the known ones, unless it is a part or a wrapper of one of them."""
        if module in self._known:
            return False
        named = next((name for name, each in _modules_around(frame) if each is module), None)
        return self._add(named or type(module).__name__.lower(), module)

    def _add(self, name: str, module: nn.Module) -> bool:
        if module in self._known:
            return False
        self._known.add(module)
        self.refresh()
        known = {id(each) for model in self.program.modules.values() for each in model.parameters()}
        if all(id(each) in known for each in module.parameters()):
            return False
        self._known.update(module.modules())
        name = base = clean_path(name) or "model"
        number = 0
        while name in self._models and self._models[name]() is not None:
            number += 1
            name = f"{base}_{number}"
        self._models[name] = weakref.ref(module)
        self.program.modules[name] = module
        return True


def _modules_around(frame: FrameType | None) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the variables of the program's functions that are being executed, the outermost function first."""
    frames = []
    frame = source.first_user_frame(frame)
    while frame is not None:
        frames.append(frame)
        frame = source.first_user_frame(frame.f_back)
    for each in reversed(frames):
        names = {**each.f_globals, **each.f_locals}
        owner = names.get("self")
        if owner is not None and not isinstance(owner, nn.Module):
            names.update(getattr(owner, "__dict__", {}))
        for name, value in names.items():
            if name != "self" and not name.startswith("__") and issubclass(type(value), nn.Module):
                yield name.lstrip("_"), value
