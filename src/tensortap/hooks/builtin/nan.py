"""NanTensorHook: stop when the loss is no longer a number."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from tensortap.errors import NanLossDuringTrainingError
from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import as_fetch
from tensortap.hooks.hook import SessionRunHook

__all__ = ["NanTensorHook"]

_log = logging.getLogger("tensortap.hooks")


class NanTensorHook(SessionRunHook):
    """Checks a tensor of any shape and float type after every run for NaN and infinity.

    Args:
        loss_tensor: what to check, usually the loss.
        fail_on_nan_loss: raise `NanLossDuringTrainingError`; else warn and request a stop.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.log().sum()})
        >>> with tt.MonitoredSession(step, hooks=[NanTensorHook("loss")]) as session:
        ...     session.run(feed_dict={"x": torch.zeros(3)})
        Traceback (most recent call last):
        tensortap.errors.NanLossDuringTrainingError: loss is infinite.
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        self._tensor = loss_tensor
        self._fail = fail_on_nan_loss

    def begin(self) -> None:
        """Resolve the name."""
        self._fetch = as_fetch(self._tensor)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the tensor."""
        return SessionRunArgs(self._fetch)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Check it."""
        values = np.asarray(run_values.results)
        if np.isfinite(values).all():
            return
        what = _describe(self._fetch, values)
        if self._fail:
            _log.error("%s", what)
            raise NanLossDuringTrainingError(what)
        _log.warning("%s Stopping.", what)
        run_context.request_stop()


def _describe(name: Any, values: Any) -> str:
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if values.ndim == 0:
        return f"{name} is {'NaN' if nan else 'infinite'}."
    return f"{name} has {nan} NaN and {infinite} infinite elements of {values.size}."
