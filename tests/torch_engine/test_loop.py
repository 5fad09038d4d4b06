"""`monitor`: the same hooks around a loop that nobody restructured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.errors import SessionClosedError, UnknownTensorError

pytestmark = pytest.mark.usefixtures("interceptor")


class Log(tt.SessionRunHook):
    """Keeps the order of moments, and what a fetch gave."""

    def __init__(self, fetches=None, feeds=None):
        self.calls, self.results, self.fetches, self.feeds = [], [], fetches, feeds

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("after_create_session")

    def before_run(self, run_context):
        self.calls.append("before_run")
        return tt.SessionRunArgs(self.fetches, self.feeds)

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        self.results.append(run_values.results)

    def end(self, session):
        self.calls.append("end")


def test_hooks_fetch_from_an_ordinary_loop():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = Log({"hidden": "model/addmm:0", "grad": "gradients/model/weight:0", "loss": "loss"})
    with tt.torch.monitor(model, optimizer, hooks=[log, tt.StopAtStepHook(last_step=2)]) as m:
        while not m.should_stop():
            with m.run() as run:
                loss = model(torch.ones(2, 3)).square().mean()
                loss.backward()
                run.publish(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
    assert log.calls == ["begin", "after_create_session", *["before_run", "after_run"] * 2, "end"]
    assert log.results[0]["hidden"].shape == (2, 1)
    assert log.results[0]["grad"].shape == (1, 3)
    assert log.results[1]["loss"] < log.results[0]["loss"]


def test_results_step_and_named_inputs_for_the_caller():
    model = nn.Linear(3, 1)
    x = torch.ones(2, 3)
    with tt.torch.monitor({"net": model}) as m:
        with m.run(["net/addmm:0", "global_step:0"]) as run:
            model(x)
        hidden, step = run.results
        assert hidden.shape == (2, 1)
        assert step == 0
        assert m.session.graph.node("net/addmm").inputs[1] == "net/input:0"
        assert m.session.run("global_step:0") == 1


def test_a_run_nobody_watches_is_not_intercepted():
    model = nn.Linear(3, 1)
    with tt.torch.monitor(model, hooks=[Log()]) as m:
        with m.run():
            model(torch.ones(2, 3))
        assert not m.session.graph.known


def test_feeding_a_tensor_of_the_block():
    model = nn.Linear(3, 1)
    with tt.torch.monitor(model, hooks=[Log(feeds={"model/addmm:0": np.full((2, 1), 7, np.float32)})]) as m:
        with m.run():
            output = model(torch.ones(2, 3))
    assert output.tolist() == [[7], [7]]


def test_the_loops_own_exception_passes_unchanged_and_end_is_not_called():
    log = Log("model/addmm:0")
    model = nn.Linear(3, 1)
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught:
        with tt.torch.monitor(model, hooks=[log]) as m:
            with m.run():
                model(torch.ones(2, 3))
                raise error
    assert caught.value is error
    assert log.calls == ["begin", "after_create_session", "before_run"]


def test_an_op_error_in_the_block_keeps_its_type():
    model = nn.Linear(3, 1)
    with tt.torch.monitor(model) as m, pytest.raises(RuntimeError) as caught, m.run():
        model(torch.ones(2, 4))
    assert type(caught.value) is RuntimeError


def test_clear_errors():
    model = nn.Linear(3, 1)
    with tt.torch.monitor(model) as m:
        with pytest.raises(UnknownTensorError, match="Did you mean 'model/addmm'"):
            with m.run("model/admm:0"):
                model(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match=r"Cannot fetch 'model/addmm:0' here"):
            m.session.run("model/addmm:0")
    with pytest.raises(SessionClosedError):
        with m.run():
            pass
    with pytest.raises(TypeError, match="must be a torch"):
        tt.torch.monitor(3)


def test_checkpoints_of_a_loop(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = tt.CheckpointSaverHook(tmp_path, save_steps=1)
    with tt.torch.monitor(model, optimizer, hooks=[saver]) as m:
        for _ in range(2):
            with m.run():
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
    assert tt.latest_checkpoint(tmp_path).name == "model.ckpt-2"
