"""Profiled runs: PyTorch's own profiler around the step, its record joined with our nodes.

`recording.py` runs the profiler and gets out of the way of one that the program uses itself. What it recorded is
worked out later, by whoever asks: `events.py` reads the record, `join.py` finds the nodes in it, `memory.py` follows
allocations, `stats.py` writes the messages.
"""

from tensortap.engines.torch.profiling.recording import has_compiled_modules, step_recorded

__all__ = ["has_compiled_modules", "step_recorded"]
