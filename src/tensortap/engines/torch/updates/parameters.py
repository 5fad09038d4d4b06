"""A parameter before and after an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.updates.rows import QuietGradients, rows_differ
from tensortap.engines.torch.updates.samples import mark_of, sample_of
from tensortap.engines.torch.values import dtype_name, shape_of
from tensortap.records import ParameterUpdate

__all__ = ["SeenParameter"]


class SeenParameter:
    """A parameter as it is before an update.

    Args:
        name: in the graph.
        parameter: itself.
        is_owned: whether a known model has it.
        held: the optimizers that have it.
        is_own: whether the optimizer that steps has it.
        is_stale: whether its gradient holds what was applied before.
        quiet: knows which gradients have always been zero.

    Attributes:
        declared: where it comes from, if somebody has found out.
        is_unwritten: whether nobody has written to its memory, if somebody has found out.
    """

    __slots__ = (
        "_gradient",
        "_has_gradient",
        "_held",
        "_is_own",
        "_is_owned",
        "_is_stale",
        "_quiet",
        "_rows_differ",
        "_values",
        "declared",
        "is_unwritten",
        "name",
        "parameter",
    )

    def __init__(
        self,
        name: str,
        parameter: torch.Tensor,
        is_owned: bool,
        held: tuple[str, ...],
        is_own: bool,
        is_stale: bool,
        quiet: QuietGradients,
    ) -> None:
        gradient = parameter.grad
        self.name, self.parameter = name, parameter
        self.declared: str | None = None
        self.is_unwritten: bool | None = None
        self._is_owned, self._held, self._is_own = is_owned, held, is_own
        self._values = sample_of(parameter)
        self._has_gradient = gradient is not None
        self._gradient = None if gradient is None else sample_of(gradient)
        self._is_stale = is_stale if gradient is not None else None
        self._quiet = quiet.share_of(parameter, self._gradient)
        self._rows_differ = rows_differ(parameter)

    @property
    def has_equal_rows(self) -> bool:
        """Whether all its rows are equal."""
        return self._rows_differ is False

    def after(self, reached: dict[int, Any] | None) -> ParameterUpdate:
        """What the update has meant to it.

        Args:
            reached: what the loss led to, by identity; None if that is not known.
        """
        parameter, before, gradient = self.parameter, self._values, self._gradient
        now = sample_of(parameter)
        changed = lost = nonzero = None
        if gradient is not None:
            nonzero = float(np.count_nonzero(gradient)) / len(gradient)
        if self._is_own and now is not None and before is not None and now.shape == before.shape:
            moved = now != before
            changed = float(np.count_nonzero(moved)) / len(now)
            if gradient is not None and gradient.shape == now.shape:
                lost = float(np.count_nonzero(~moved & (gradient != 0))) / len(now)
        return ParameterUpdate(
            self.name,
            tuple(each or 0 for each in shape_of(parameter)),
            dtype_name(parameter.dtype),
            parameter.requires_grad,
            self._is_owned,
            self._held,
            None if reached is None else id(parameter) in reached,
            _largest(gradient) if self._has_gradient else None,
            nonzero,
            self._is_stale,
            changed,
            lost,
            _root_mean_square(before),
            mark_of(now),
            mark_of(before),
            self.declared,
            self._quiet,
            self._rows_differ,
            self.is_unwritten,
        )


def _largest(sample: Any) -> float | None:
    if sample is None:
        return None
    largest = float(np.abs(sample).max())
    return largest if np.isfinite(largest) else None


def _root_mean_square(sample: Any) -> float | None:
    if sample is None or sample.dtype.kind not in "fiu":
        return None
    size = float(np.sqrt(np.mean(np.square(sample, dtype=np.float64))))
    return size if np.isfinite(size) else None
