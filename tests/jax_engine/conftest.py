"""Several devices on one machine, decided before JAX is imported."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
for module in ("jax", "flax", "optax", "equinox"):
    pytest.importorskip(module)
