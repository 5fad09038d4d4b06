"""The JAX engine: sees inside compiled programs by taps in a second executable."""

from __future__ import annotations

from tensortap.engines.jax.loop import monitor
from tensortap.engines.jax.orbax_saver import OrbaxSaver
from tensortap.engines.jax.session import Session
from tensortap.engines.session.block import Monitor, MonitoredRun

__all__ = ["Monitor", "MonitoredRun", "OrbaxSaver", "Session", "monitor"]
