"""The JAX engine, as users import it: `tensortap.jax.Session`, `tensortap.jax.monitor`."""

from tensortap.extras import require

require("jax", "tensortap.jax")

from tensortap.engines.jax import Monitor, MonitoredRun, OrbaxSaver, Session, monitor  # noqa: E402

__all__ = ["Monitor", "MonitoredRun", "OrbaxSaver", "Session", "monitor"]
