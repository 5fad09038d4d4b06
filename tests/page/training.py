"""A program that trains, streams its health, and can be stopped and changed: `python -m tests.page.training ADDRESS`.

Rows of zeros come into its data at step 6, and a division by their sum makes NaN of them. It does not train on a loss
that is none, as careful programs do, so its parameters stay good.
"""

from __future__ import annotations

import sys
import time

import torch

import tensortap as tt

STEPS = 4000


def main(address):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        total = x.sum(dim=1, keepdim=True)
        share = x / total
        loss = model(share).square().mean()
        if loss.isfinite():
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss}

    watch = tt.WatchOptions(["DebugNumericSummary", "DebugIdentity(gated_grpc=true)"])
    hook = tt.GrpcDebugHook(f"{address}/demo", watch, send_traceback_and_source_code=True)
    with tt.MonitoredSession(tt.torch.Session(step, modules={"model": model}), hooks=[hook]) as session:
        for number in range(STEPS):
            x = torch.rand(3, 4) + 0.1
            if number >= 6:
                x[1] = 0
            print(f"{number} {session.run('loss', {'x': x}).item():.6f}", flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
