"""Two processes that train together, each with its own observer."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed as dist

from tensortap.engines.torch.follow.copies import copies
from tensortap.reader.session_dir import SessionDir
from tests.patience import patient

RANK = """
import json, sys, torch, torch.distributed as dist, tensortap as tt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank, meeting, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.LayerNorm(4), nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
torch.manual_seed(rank)
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}
session = inner = tt.torch.Session(step, interceptor="native")
if root:
    watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"])
    session = tt.DumpingDebugWrapperSession(inner, f"{root}/{rank}", watch_fn=watch)
x = torch.arange(6.0).view(2, 3) * (rank + 1)
losses = [float(session.run("loss", {"x": x})).hex() for _ in range(5)]
weights = [value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()]
print(json.dumps({"losses": losses, "weights": weights, "faults": inner.faults}))
if root:
    session.close()
dist.destroy_process_group()
"""


def job(meeting, root):
    """Run both ranks to their end; what each printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(meeting), str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=patient(120)) for process in ranks]
    for process, (_, errors) in zip(ranks, ended, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output) for output, _ in ended]


def test_a_watched_job_trains_as_an_unwatched_one_and_every_rank_can_be_read(tmp_path):
    expected = job(tmp_path / "first meeting", "")
    got = job(tmp_path / "second meeting", tmp_path)
    assert got == expected
    assert expected[0]["weights"] == expected[1]["weights"]
    assert expected[0]["losses"] != expected[1]["losses"]
    assert expected[0]["faults"] == 0
    gradients = {}
    for rank in range(2):
        dumps = SessionDir(tmp_path / str(rank))
        assert dumps.notices == []
        assert len(dumps) == 5
        for run in dumps:
            dump = run.open()
            nodes = [name for name in dump.nodes() if dump.node_op_type(name) == "AccumulateGrad"]
            assert len(nodes) == 6
            assert all(name.startswith("gradients/model/") for name in nodes)
            assert all(dump.debug_watch_keys(name) for name in nodes)
            assert all(f"task:{rank}" in device for device in dump.devices())
        (weight,) = [name for name in nodes if name.endswith("/3/weight")]
        gradients[rank] = [
            run.open().get_tensors(weight, 0, "DebugNumericSummary")[0][[8, 9, 10]] for run in dumps
        ]
    # As autograd put them in place on each rank, before the ranks exchanged them.
    assert not np.array_equal(gradients[0], gradients[1])


@pytest.mark.parametrize("placed", ["Replicate", "Partial"])
def test_a_gradient_of_which_each_rank_has_a_summand_is_no_copy(placed):
    """As those of norms under sequence parallelism are until the optimizer uses them."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed import tensor

        mesh = dist.init_device_mesh("cpu", (1,))
        whole, of_gradient = (
            tensor.DTensor.from_local(torch.ones(2), mesh, [each])
            for each in (tensor.Replicate(), getattr(tensor, placed)())
        )
        weight = torch.nn.Parameter(whole)
        weight.grad = of_gradient
        program = SimpleNamespace(parameters=lambda: [("norm/weight", weight)], buffers=list, modules={})
        kinds = [copied.kind for copied, _ in copies(program)]
    finally:
        dist.destroy_process_group()
    assert kinds == (["gradient", "parameter"] if placed == "Replicate" else ["parameter"])
