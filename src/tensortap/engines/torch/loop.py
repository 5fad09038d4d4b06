"""Hooks around a PyTorch training loop that stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tensortap.engines.session.block import BlockSession, Monitor
from tensortap.engines.torch.engine_session import TorchSession
from tensortap.engines.torch.program import Program

__all__ = ["TorchBlockSession", "monitor"]


class TorchBlockSession(TorchSession, BlockSession):
    """The session behind a monitor.

    Args:
        program: what is trained.
        global_step: where to start counting.
        interceptor: what observes watched runs.
    """

    def __init__(self, program: Program, global_step: int = 0, interceptor: str | None = None) -> None:
        self.set_up(program, interceptor)
        BlockSession.__init__(self, None, global_step, self.state_nodes())


def monitor(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
    *,
    hooks: Iterable[Any] | None = None,
    extras: Mapping[str, Any] | None = None,
    global_step: int = 0,
    stop_grace_period_secs: float = 120,
    interceptor: str | None = None,
    budget: float | None = None,
) -> Monitor:
    """Put hooks around the steps of an existing loop.

    Args:
        model: the module, called `model` in tensor names; or several by name.
        optimizer: the optimizer, or several by name, so that checkpoints include them.
        hooks: called as in a `MonitoredSession`, except that nothing is ever repeated.
        extras: other objects with a `state_dict`, saved in checkpoints.
        global_step: where to start counting; each completed block counts one.
        stop_grace_period_secs: how long threads may take to stop at the end.
        interceptor: what observes watched runs: `native`, `dispatch` or `auto`; see docs/native.md.
        budget: time of the loop with its debug hooks over its time without, as in 1.1: they watch so few runs, all of
            them the same, and the others are only guarded. All runs by default.

    Raises:
        ValueError: a budget that leaves no time, or none of the hooks is a debug hook, or one has a budget of its own.

    >>> import torch, tensortap as tt
    >>> model = torch.nn.Linear(3, 1)
    >>> with tt.torch.monitor(model, hooks=[tt.StopAtStepHook(last_step=2)]) as m:
    ...     while not m.should_stop():
    ...         with m.run("model/addmm:0") as run:
    ...             loss = model(torch.ones(2, 3)).sum()
    ...         print(run.results.shape)
    (2, 1)
    (2, 1)
    """
    modules = model if isinstance(model, Mapping) else {"model": model}
    optimizers = (
        optimizer if optimizer is None or isinstance(optimizer, Mapping) else {"optimizer": optimizer}
    )
    session = TorchBlockSession(Program(modules, optimizers, extras), global_step, interceptor)
    return Monitor(session, hooks, stop_grace_period_secs, budget)
