"""Operators seen on a dispatch key of PyTorch's own tests: who else uses it, modes of the user, threads, forks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tensortap as tt
from tensortap.engines.torch.observer.build import SOURCE

KEY = "TESTING_ONLY_GenericMode"

PROGRAM = f"""
import json, sys
import torch
from torch.nn import functional as F
import tensortap as tt

heard = []
if "taken" in sys.argv:
    def mine(op, *args, **kwargs):
        heard.append(op.name())
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.{KEY})):
            return op(*args, **kwargs)
    library = torch.library.Library("_", "IMPL", "{KEY}")
    library.fallback(mine)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())

def step():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    return {{"loss": loss}}

session = tt.torch.Session(step, modules={{"model": model}}, optimizers={{"adam": optimizer}})
names = []
for _ in range(3):
    metadata = tt.RunMetadata()
    loss = session.run("loss:0", options=tt.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    names.append([node.name for node in metadata.nodes])
print(json.dumps([names, float(loss), session.faults, len(heard)]))
"""


THREADS = f"""
import json, threading
import torch
from torch.nn import functional as F
import tensortap as tt

def is_on():
    return torch._C._dispatch_tls_is_dispatch_key_included("{KEY}")

inside, beside = [], []

def step():
    inside.append(is_on())
    thread = threading.Thread(target=lambda: beside.append(is_on()))
    thread.start()
    thread.join()
    return {{"y": torch.ones(2) + 1}}

metadata = tt.RunMetadata()
tt.torch.Session(step).run(None, options=tt.RunOptions(output_partition_graphs=True), run_metadata=metadata)
print(json.dumps([inside, beside, is_on()]))
"""


KERNELS = f"""
import json, sys
import torch
import tensortap as tt

tt.torch.Session(lambda: torch.ones(2) + 1).run("add:0")
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
print(json.dumps([name for name in sys.argv[1:] if not has_kernel(f"aten::{{name}}", "{KEY}")]))
"""


def told(program, *arguments):
    """What a program tells in a process of its own, in which nobody has used the key before."""
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TENSORTAP_INTERCEPTOR": "native"},
    )
    return json.loads(said.stdout.splitlines()[-1])


def test_where_somebody_else_has_the_key_everything_is_seen_and_his_kernel_is_not_called():
    names, loss, faults, heard = told(PROGRAM, "taken")
    assert [names, loss, faults] == told(PROGRAM)[:3]
    assert (faults, heard) == (0, 0)


def test_the_key_is_on_for_the_thread_of_a_run_only():
    assert told(THREADS) == [[True], [False], False]


def test_operators_with_kernels_of_their_own_have_them():
    """Which says that this PyTorch has them, with the signatures that are written down."""
    written = Path(SOURCE).with_name("typed_kernels.h").read_text().split("void add_typed_kernels")[1]
    names = re.findall(r'"(\w+(?:\.\w+)?)"', written.split("Whether ops can be seen this way")[0])
    assert len(names) > 100
    assert told(KERNELS, *names) == []


# --- in this process ------------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", "native")
    return tt.torch.Session(lambda: {"y": torch.ones(3).mul(2).add(1)})


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def ops_of(session):
    metadata = tt.RunMetadata()
    session.run(None, options=tt.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    assert session.faults == 0
    return [node.op_type for node in metadata.nodes]


def test_a_mode_of_the_user_sees_what_it_would_see_alone(session):
    with Counting() as alone:
        torch.ones(3).mul(2).add(1)
    expected = ops_of(session)
    with Counting() as beside:
        assert ops_of(session) == expected
    assert beside.seen == alone.seen
    assert ops_of(session) == expected


def test_a_child_that_is_forked_inside_of_a_run_computes_as_usual():
    def step():
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(torch.ones(3) * 2, torch.full((3,), 2.0)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return {"y": torch.ones(2) + 1}

    session = tt.torch.Session(step, interceptor="native")
    assert ops_of(session).count("aten::add") == 1


def test_arguments_are_told_however_an_operator_is_called():
    x = torch.arange(24.0).reshape(2, 3, 4)

    def step():
        values = [
            x.sum([0, 2], True), torch.ops.aten.sum.dim_IntList(x, [0, 2], True),
            x.add(2, alpha=3), torch.ops.aten.add.Tensor(x, 2, alpha=3),
            x.clamp(max=5), torch.ops.aten.clamp(x, None, 5),
            x[:, 1:], torch.ops.aten.slice(x, 1, 1, None),
            x * 2j, torch.ops.aten.mul.Tensor(x, 2j),
            *x.split(2, -1), *torch.ops.aten.split.Tensor(x, 2, -1),
            x.softmax(1), torch.ops.aten.softmax.int(x, 1),
            x.masked_fill(x > 3, 0), torch.ops.aten.masked_fill.Scalar(x, x > 3, 0),
            F.mse_loss(x, x, reduction="sum"), torch.ops.aten.mse_loss(x, x, 2),
        ]  # fmt: skip
        return torch.stack([each.abs().sum() for each in values])

    metadata = tt.RunMetadata()
    session = tt.torch.Session(step, interceptor="native")
    session.run(None, options=tt.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    told = {
        node.name: {key: value for key, value in node.attributes.items() if not key.startswith("_")}
        for node in metadata.nodes
    }
    assert not session.faults
    for name in ("add", "clamp", "masked_fill", "mse_loss", "softmax", "split", "sum"):
        assert told[name] == told[f"{name}_1"], name
    assert told["sum"] == {"overload": "dim_IntList", "dim": [0, 2], "keepdim": True}
    assert told["clamp"] == {"min": None, "max": 5}
    assert told["mse_loss"] == {"reduction": 2}
