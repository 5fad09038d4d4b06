"""Programs whose parameters are shards: they run as without us, and a rank is told what it did itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir

BEGIN = """
import os, sys, torch, torch.distributed as dist
from torch import nn
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=world)
torch.manual_seed(0)
"""
FULLY_SHARDED = (
    BEGIN
    + """
from torch.distributed.fsdp import fully_shard
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(rank, [each.full_tensor().sum().item() for each in model.parameters()])
dist.barrier()  # a thread of gloo that lets go of a tensor while Python ends aborts the process
dist.destroy_process_group()
"""
)
TENSOR_PARALLEL = (
    BEGIN
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        hidden = self.up(x)
        return self.down(hidden.relu())

model = Model()
if rank == world - 1:
    model.up.weight.data *= 100
mesh = init_device_mesh("cpu", (world,))
plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
model = parallelize_module(model, mesh, plan, src_data_rank=None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(2):
    x = torch.randn(4, 8) * (1 if step == 0 else 3e37)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(rank, loss.item())
dist.destroy_process_group()
"""
)


def ranks(tmp_path, text, world, *command):
    """Run a program on several ranks to its end; what each printed."""
    program = tmp_path / "program.py"
    program.write_text(text)
    meeting = str(tmp_path / f"meeting-{len(command)}-{os.urandom(4).hex()}")
    started = [
        subprocess.Popen(
            [sys.executable, *command, str(program), meeting],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(world)
    ]
    ended = [process.communicate(timeout=240) for process in started]
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in ended], [errors for _, errors in ended]


def watched(tmp_path, text, world=1):
    try:
        alone, _ = ranks(tmp_path, text, world)
    except AssertionError:  # PyTorch's own threads abort at the end of a process, now and then
        alone, _ = ranks(tmp_path, text, world)
    output, errors = ranks(tmp_path, text, world, "-m", "tensortap", "run", "-o", str(tmp_path / "records"))
    assert output == alone
    return errors, search_session(SessionDir(tmp_path / "records"))


def test_fully_sharded(interceptor, tmp_path):
    errors, report = watched(tmp_path, FULLY_SHARDED)
    assert report.first_bad is None
    assert report.unread == ()
    assert "Traceback" not in errors[0]
    run = SessionDir(tmp_path / "records").runs[0].open()
    health = {datum.tensor_name for datum in run.dumped_tensor_data}
    assert {"model/weight:0", "gradients/model/weight:0", "optimizer/SGD/model/weight/add_:0"} <= health


@pytest.mark.parametrize("world", [1, 2])
def test_tensor_parallel(interceptor, tmp_path, world):
    errors, report = watched(tmp_path, TENSOR_PARALLEL, world)
    found = report.first_bad
    assert found is not None
    assert (found.node.name, found.node.op_type, found.phase) == ("model/up/addmm", "aten::addmm", "forward")
    assert found.rank == world - 1
    assert found.source_text == "hidden = self.up(x)"
    assert found.cause.kind == "overflow"
    assert {each.tensor: each.status for each in found.inputs} == {
        "model/up/bias:0": "good",
        "mul:0": "good",
        "model/up/t:0": "good",
    }
    assert found.health.shape == (4, 16 // world), "the shard of this rank"
    assert report.unread == ()
    assert any(re.search(r"node\s+model/up/addmm", each) for each in errors)
