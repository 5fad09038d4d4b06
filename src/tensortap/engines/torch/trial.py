"""A training step to try the engine on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tensortap.debug.dumping import DumpingDebugWrapperSession
from tensortap.engines.torch.session import Session
from tensortap.watch.options import WatchOptions

__all__ = ["train_once"]


def train_once(root: str | Path) -> None:
    """Train a small model for one step and record the health of everything in a new session directory."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    session = Session(step, modules={"model": model}, optimizers={"optimizer": optimizer})
    health = WatchOptions(["DebugNumericSummary"])
    with DumpingDebugWrapperSession(session, str(root), watch_fn=health) as wrapped:
        wrapped.run(None, {"x": torch.ones(3, 4)})
