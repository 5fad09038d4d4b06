"""What a tap takes of a tensor."""

from __future__ import annotations

__all__ = ["CHECK", "PILL", "VALUE"]

PILL, VALUE, CHECK = 0, 1, 2
"""Its health; a copy as well; its health, and only if it is bad. `taps.c` says the same."""
