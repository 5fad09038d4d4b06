"""Objects of flax's nnx as the state of a session: they are changed in place, and stay the program's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import tensortap as tt
from tensortap.engines.jax.tensors import host_array
from tensortap.reader import SessionDir


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(nnx.relu(self.first(x))))


@nnx.jit
def train_step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return {"loss": loss}


@pytest.fixture
def state():
    model = Model(nnx.Rngs(0))
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)}


def numbers_of(state):
    return [host_array(each) for each in jax.tree.leaves(state)]


X = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")


def test_a_step_is_given_its_objects_by_name(state):
    session = tt.jax.Session(train_step, state)
    before = session.run("model/first/kernel:0")
    assert np.isfinite(session.run("loss", {"x": X}))
    assert not np.array_equal(before, session.run("model/first/kernel:0"))
    assert np.array_equal(session.run("model/first/kernel:0"), np.asarray(state["model"].first.kernel[...]))


def test_runs_are_those_of_the_plain_program(state):
    session = tt.jax.Session(train_step, state)
    losses = [session.run("loss", {"x": X}) for _ in range(3)]
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    assert [float(train_step(model, optimizer, X)["loss"]) for _ in range(3)] == losses


def test_a_fed_parameter_has_its_value_back_afterwards(state):
    session = tt.jax.Session(nnx.jit(lambda model, x: {"y": model.first(x)}), {"model": state["model"]})
    before = session.run("model/first/kernel:0")
    fed = session.run("y", {"x": X, "model/first/kernel:0": np.zeros((3, 4), "f4")})
    assert not fed.any()
    assert np.array_equal(before, session.run("model/first/kernel:0"))


def test_a_checkpoint_goes_back_into_the_objects(state, tmp_path):
    session = tt.jax.Session(train_step, state)
    session.run("loss", {"x": X})
    saved = numbers_of(state)
    path = tt.Saver().save(session, tmp_path / "model", 1)
    model = state["model"]
    session.run("loss", {"x": X})
    tt.Saver().restore(session, path)
    assert state["model"] is model
    assert all(map(np.array_equal, saved, numbers_of(state)))
    assert session.global_step == 1


def test_hooks_and_dumps_work_on_them(state, tmp_path):
    hooks = [tt.DumpingDebugHook(tmp_path / "dumps"), tt.NanTensorHook("loss")]
    with tt.MonitoredSession(tt.jax.Session(train_step, state), hooks=hooks) as session:
        session.run("loss", {"x": jnp.asarray(X)})
    names = {each.node_name for each in SessionDir(tmp_path / "dumps").run(0).dumped_tensor_data}
    assert any(name.endswith("dot_general") for name in names)
    assert "model/first/kernel" in names


def test_checkpoints_by_orbax(state, tmp_path):
    """The hook saves by it, keys of generators and statistics too, and a session goes on from there."""
    x = jnp.ones((4, 3))
    hook = tt.CheckpointSaverHook(tmp_path, save_steps=2, saver=tt.jax.OrbaxSaver(max_to_keep=2))
    session = tt.jax.Session(train_step, state)
    with tt.MonitoredSession(session, hooks=[hook]) as monitored:
        for _ in range(7):
            monitored.run("loss", {"x": x})
    saver = tt.jax.OrbaxSaver()
    assert sorted(each.name for each in tmp_path.glob("model.ckpt-*")) == ["model.ckpt-6", "model.ckpt-7"]
    latest = saver.latest_checkpoint(tmp_path)
    model = Model(nnx.Rngs(5))
    other = {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)}
    resumed = tt.jax.Session(train_step, other)
    saver.restore(resumed, latest)
    assert (latest.name, resumed.global_step) == ("model.ckpt-7", 7)
    assert all(map(np.array_equal, numbers_of(other), numbers_of(state)))
    session.reopen()
    assert resumed.run("loss", {"x": x}) == session.run("loss", {"x": x})
    with pytest.raises(tt.errors.CheckpointError, match="Cannot restore the checkpoint"):
        saver.restore(tt.jax.Session(lambda s: s, {"w": jnp.ones(3)}), latest)
