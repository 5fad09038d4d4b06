"""One small training program, written for every engine; what it must show is the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.engines import numpy_engine
from tests.tensorflow import import_tensorflow


def numpy_program(start=1.0):
    """loss = mean(log(x @ weight)); the weight moves by a constant."""
    matmul, log, mean = numpy_engine.op(np.matmul), numpy_engine.op(np.log), numpy_engine.op(np.mean)
    weight = np.full((3, 2), start)

    def step(x):
        with numpy_engine.scope("model"):
            hidden = matmul(x, weight)
        loss = mean(log(hidden))
        weight[...] = weight - 0.25
        return {"loss": loss}

    session = numpy_engine.Session(step, {"model/weight": weight})
    return SimpleNamespace(
        session=session,
        step=step,
        monitor=lambda hooks: numpy_engine.monitor({"model/weight": weight}, hooks),
        hidden="model/matmul",
        log="log",
        mean="mean",
        x=np.ones((4, 3)),
        array=np.asarray,
    )


def torch_program(start=1.0):
    torch = pytest.importorskip("torch")
    import tensortap as tt

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3, 2), start, dtype=torch.float64))

        def forward(self, x):
            return x @ self.weight

    model = Model()

    def step(x):
        hidden = model(x)
        loss = hidden.log().mean()
        with torch.no_grad():
            model.weight -= 0.25
        return {"loss": loss}

    return SimpleNamespace(
        session=tt.torch.Session(step, modules={"model": model}),
        step=step,
        monitor=lambda hooks: tt.torch.monitor(model, hooks=hooks),
        hidden="model/mm",
        log="log",
        mean="mean",
        x=torch.ones(4, 3, dtype=torch.float64),
        array=torch.as_tensor,
    )


def tensorflow_program(start=1.0):
    tf = import_tensorflow()
    import tensortap as tt

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [None, None], name="x")
        with v1.variable_scope("model"):
            weight = v1.get_variable("weight", initializer=np.full((3, 2), start), use_resource=False)
            hidden = tf.matmul(x, weight, name="matmul")
        loss = tf.reduce_mean(tf.math.log(hidden, name="log"), name="mean")
        counted = v1.train.get_or_create_global_step()
        with tf.control_dependencies([loss]):
            train = tf.group(v1.assign_sub(weight, np.full((3, 2), 0.25)), counted.assign_add(1))
    return SimpleNamespace(
        session=tt.tensorflow.Session(graph=graph, step={"loss": loss, "train": train}),
        monitor=None,
        hidden="model/matmul",
        log="log",
        mean="mean",
        x=np.ones((4, 3)),
        array=np.asarray,
    )


def jax_program(start=1.0):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    import tensortap as tt

    @jax.jit
    def step(state, x):
        weight = state["model"]["weight"]
        with jax.named_scope("model"):
            hidden = x @ weight
        loss = jnp.mean(jnp.log(hidden))
        return {"model": {"weight": weight - 0.25}}, {"loss": loss}

    start_state = {"model": {"weight": jnp.full((3, 2), start)}}
    state = [start_state]

    def step_of_loop(x):
        state[0], result = step(state[0], x)
        return result

    return SimpleNamespace(
        session=tt.jax.Session(step, start_state),
        step=step_of_loop,
        monitor=lambda hooks: tt.jax.monitor(lambda: state[0], hooks=hooks),
        hidden="model/dot_general",
        log="log",
        mean="div",
        x=jnp.ones((4, 3)),
        array=lambda values: jnp.asarray(values, jnp.float32),
    )


PROGRAMS = {
    "numpy": numpy_program,
    "torch": torch_program,
    "tensorflow": tensorflow_program,
    "jax": jax_program,
}


@pytest.fixture(params=PROGRAMS)
def make_program(request):
    """Makes the program for an engine; `start` is what its weight is at first."""
    return PROGRAMS[request.param]


@pytest.fixture
def program(make_program):
    return make_program()
