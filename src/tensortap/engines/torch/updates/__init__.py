"""What updates do: looked at from outside, at optimizers and parameters, whether or not their runs are observed."""

from __future__ import annotations

from tensortap.engines.torch.updates.collector import UpdateCollector

__all__ = ["UpdateCollector"]
