"""Small training steps to debug."""

from __future__ import annotations

import torch

import tensortap as tt
from tensortap.reader.session_dir import SessionDir

X = torch.arange(6.0).reshape(2, 3)


def linear_session():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x=X):
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return {"loss": loss}

    return tt.torch.Session(step, modules={"model": model}, optimizers={"opt": opt})


def failing_session():
    """An op that fails after two others have run."""

    def step(x=X):
        y = x + 1
        return {"z": (y * 2) @ y}

    return tt.torch.Session(step)


def runs(root):
    """Dumps of a session root, in order."""
    session = SessionDir(root)
    return [ref.open() for ref in session]


def tensors(dump):
    return {datum.watch_key for datum in dump.dumped_tensor_data}
