"""Processes that train together stream to one server: one job, grouped by rank, and the odd one is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tensortap.commands import main
from tensortap.server import DebugServer
from tests.patience import patient
from tests.server.tools import get

RANK = """
import sys, torch, torch.distributed as dist, tensortap as tt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank, size, meeting, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss}
watch = lambda fetches, feeds: tt.WatchOptions(["DebugNumericSummary"])
with tt.GrpcDebugWrapperSession(tt.torch.Session(step), f"{address}/ddp", watch_fn=watch) as session:
    for run in range(5):
        if run == 3 and rank == size - 1:
            with torch.no_grad():
                model.module[2].weight += 1e-3  # what nobody meant to happen
        session.run("loss", {"x": torch.arange(6.0).view(2, 3) * (rank + 1)})
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "size",
    [
        2,
        pytest.param(
            4,
            marks=pytest.mark.skipif(
                not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="TENSORTAP_SLOW_TESTS=1"
            ),
        ),
    ],
)
def test_ranks_are_grouped_and_the_one_that_went_its_own_way_is_found(tmp_path, size, capsys):
    with DebugServer(tmp_path / "root") as server:
        program = [sys.executable, "-c", RANK]
        ranks = [
            subprocess.Popen(
                [*program, str(rank), str(size), str(tmp_path / "meeting"), server.address],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        for process in ranks:
            _, errors = process.communicate(timeout=patient(200))
            assert process.returncode == 0, errors
        (job,) = get(server, "/api/jobs")["jobs"]
        assert (job["name"], job["runs"], job["tasks"]) == ("ddp", 5 * size, list(range(size)))
        session = server.session("ddp")
        for ref in session.runs:
            run = ref.open()
            assert run.notices == []
            assert [f"task:{run.source.task}" in device for device in run.devices()] == [True]
        found = get(server, "/api/jobs/ddp/ranks")
    first = found["diverged"][0]
    assert first["tensor"].endswith("2/weight:0")
    assert (first["run"], first["equal_runs"]) == (3, 3)
    assert first["odd_ranks"] == ([0, 1] if size == 2 else [size - 1])
    assert main(["ranks", str(tmp_path / "root" / "ddp")]) == 0
    assert f"{first['tensor']} diverged first: run 3" in capsys.readouterr().out
