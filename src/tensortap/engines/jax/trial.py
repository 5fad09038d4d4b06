"""A training step to try the engine on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.engines.jax.session import Session
from tensortap.watch.options import WatchOptions

__all__ = ["train_once"]


def train_once(root: str | Path) -> None:
    """Train a small model for one step and record the health of everything in a new session directory."""

    def loss_of(params: Any, x: Any) -> Any:
        return ((jax.nn.relu(x @ params["first"]) @ params["second"]) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), {"loss": loss}

    params = {"first": jnp.full((4, 8), 0.1), "second": jnp.full((8, 2), 0.1)}
    health = WatchOptions(["DebugNumericSummary"])
    with DumpingDebugWrapperSession(Session(jax.jit(step), params), str(root), watch_fn=health) as wrapped:
        wrapped.run(None, {"x": jnp.ones((3, 4))})
