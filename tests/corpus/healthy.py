"""What a healthy program is: one in which nothing is wrong, though it may well hold infinities and NaN.

A case is a function that returns a `Program`. Batches have padding, causal masks and labels to ignore, because masks
are where infinities are intended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tests.analyze.planted import Program

SLOW = bool(os.environ.get("TENSORTAP_SLOW_TESTS"))
STEPS = 3 if SLOW else 2
WORDS, LENGTH, WIDTH = 32, 7, 16


@dataclass(frozen=True)
class Healthy:
    """A program in which nothing is wrong; a slow one is left out of the usual test run."""

    name: str
    build: Callable[[], Program]
    is_slow: bool = False
