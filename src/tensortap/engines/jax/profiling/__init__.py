"""Step statistics from JAX's profiler, joined to the operations of the program.

The executable that is measured is the program's own but for labels: every equation carries a number in its scope, and
XLA keeps those through all it does. So the profiler's events, which know only XLA's instructions, lead back to nodes.
"""

from __future__ import annotations

from tensortap.engines.jax.profiling.recording import step_recorded

__all__ = ["step_recorded"]
