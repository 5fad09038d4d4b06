"""Programs whose parameters are shards: they run as without us, and a rank is told what it did itself."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import pytest

from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests import warm

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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a program prints on each rank if nobody watches, found out once."""

    @functools.cache
    def ended(text, world):
        folder = tmp_path_factory.mktemp("alone")
        for _ in range(3):
            codes, said, errors = ranks(folder, text, world)
            if not any(codes):
                break  # PyTorch's own threads abort at the end of a process, now and then
        assert not any(codes), errors
        return said

    return ended


@pytest.fixture
def watched(tmp_path, alone, interceptor):
    def ended(text, world=1):
        codes, said, errors = ranks(
            tmp_path, text, world, "-m", "tensortap", "run", "-o", str(tmp_path / "records")
        )
        assert not any(codes), errors
        assert said == alone(text, world)
        return errors, search_session(SessionDir(tmp_path / "records"))

    return ended


def ranks(folder, text, world, *command):
    """Run a program on several ranks to its end: their exit codes, and what each printed."""
    program = folder / "program.py"
    program.write_text(text)
    meeting = folder / f"meeting-{os.urandom(4).hex()}"
    paths = [(Path(f"{meeting}-{rank}.out"), Path(f"{meeting}-{rank}.err")) for rank in range(world)]
    codes = warm.ended(
        [
            {
                "arguments": [*command, str(program), str(meeting)],
                "environment": {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "TENSORTAP_INTERCEPTOR": os.environ.get("TENSORTAP_INTERCEPTOR", "auto"),
                },
                "cwd": str(folder),
                "stdout": str(output),
                "stderr": str(errors),
            }
            for rank, (output, errors) in enumerate(paths)
        ],
        240,
    )
    return codes, [output.read_text() for output, _ in paths], [errors.read_text() for _, errors in paths]


def test_fully_sharded(watched, tmp_path):
    errors, report = watched(FULLY_SHARDED)
    assert report.first_bad is None
    assert report.unread == ()
    assert "Traceback" not in errors[0]
    run = SessionDir(tmp_path / "records").runs[0].open()
    health = {datum.tensor_name for datum in run.dumped_tensor_data}
    assert {"model/weight:0", "gradients/model/weight:0", "optimizer/SGD/model/weight/add_:0"} <= health


@pytest.mark.parametrize("world", [1, 2])
def test_tensor_parallel(watched, world):
    errors, report = watched(TENSOR_PARALLEL, world)
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
