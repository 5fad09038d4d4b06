"""Programs with one bug each, as people write them. The line that makes the first bad value ends with `# BUG`.

Each is a function that trains; `expected` says what the answer must name besides that line.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Plant:
    program: Any
    op: str
    step: int
    cause: str
    iteration: str = ""


PLANTS: dict[str, Plant] = {}


def plant(op: str, step: int, cause: str, iteration: str = ""):
    def keep(program):
        PLANTS[program.__name__] = Plant(program, op, step, cause, iteration)
        return program

    return keep


def sgd(loss_of, rate=0.1, **options):
    @functools.partial(jax.jit, **options)
    def train_step(params, *batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), loss

    return train_step


def batches(number, shape=(4, 3), bad=None, value=0.0):
    """Batches of ones; the bad one holds something else in one place."""
    for index in range(number):
        batch = np.ones(shape, np.float32)
        if index == bad:
            batch[0, 0] = value
        yield jnp.asarray(batch)


@plant("log", 3, "log-of-zero")
def log_of_zero():
    def loss_of(params, x):
        h = x * params["w"]
        return jnp.log(h).mean()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(6, bad=3):
        params, _ = step(params, x)


@plant("div", 2, "division-by-zero")
def zero_over_zero():
    def loss_of(params, x):
        total = x.sum(-1, keepdims=True)
        return (params["w"] * (x / total)).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(4):
        x = jnp.zeros((4, 3)) if index == 2 else jnp.ones((4, 3))
        params, _ = step(params, x)


@plant("div", 1, "sqrt-gradient-at-zero")
def gradient_of_sqrt_at_zero():
    def loss_of(params, x):
        return jnp.sqrt((x * params["w"]) ** 2).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1):
        params, _ = step(params, x)


@plant("div", 2, "log-gradient-at-zero")
def where_leak():
    def loss_of(params, x):
        h = x * params["w"]
        return jnp.where(h > 0, jnp.log(h), 0.0).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(4, bad=2):
        params, _ = step(params, x)


@plant("log", 0, "log-of-zero", "37 of the scan")
def middle_of_a_long_scan():
    def cell(carry, x):
        carry = 0.9 * carry + x
        return carry, jnp.log(jnp.abs(carry - 7.0) if False else x)  # BUG

    @jax.jit
    def evaluate(x):
        return jax.lax.scan(cell, 0.0, x)

    x = np.ones(100, np.float32)
    x[37] = 0
    evaluate(jnp.asarray(x))


@plant("exp", 0, "overflow", "4 of the scan")
def scan_that_grows():
    def cell(carry, x):
        carry = jnp.exp(carry)  # BUG
        return carry, x

    @jax.jit
    def evaluate(start, x):
        return jax.lax.scan(cell, start, x)

    evaluate(jnp.asarray(0.0), jnp.ones(10))


@plant("sqrt", 0, "sqrt-of-negative", "5 of the while")
def inside_a_while():
    @jax.jit
    def search(x):
        def body(state):
            n, x = state
            return n + 1, jnp.sqrt(x - 1.0)  # BUG

        return jax.lax.while_loop(lambda state: state[0] < 9, body, (0, x))

    def back(y, times):
        for _ in range(times):
            y = y * y + 1
        return y

    search(jnp.asarray(back(0.5, 5)))


@plant("log", 4, "log-of-zero")
def inside_a_branch():
    def loss_of(params, x):
        return jax.lax.cond(
            x.min() > 0,
            lambda v: (v * params["w"]).sum(),
            lambda v: jnp.log(v * params["w"]).sum(),  # BUG
            x,
        )

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(6, bad=4):
        params, _ = step(params, x)


@plant("log", 2, "log-of-zero")
def inside_vmap():
    def loss_of_one(params, x):
        return jnp.log(x @ params["w"])  # BUG

    def loss_of(params, x):
        return jax.vmap(loss_of_one, (None, 0))(params, x).mean()

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(4):
        params, _ = step(params, jnp.zeros((4, 3)) if index == 2 else jnp.ones((4, 3)))


@plant("log", 1, "log-of-negative")
def inside_remat():
    @jax.checkpoint
    def block(w, x):
        return jnp.log(x * w)  # BUG

    step = sgd(lambda params, x: block(params["w"], x).sum(), 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1, value=-1.0):
        params, _ = step(params, x)


@plant("log", 2, "log-of-zero")
def inside_shard_map():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def local(w, x):
        return jnp.log(x * w)  # BUG

    @jax.jit
    def train_step(params, x):
        def loss_of(params):
            return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))(
                params["w"], x
            ).sum()

        return params, loss_of(params)

    params = {"w": jnp.ones(3)}
    for x in batches(4, bad=2):
        params, _ = train_step(params, x)


@plant("log", 2, "log-of-zero")
def inside_shard_map_over_some_axes():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))

    def local(w, x):
        h = jax.lax.cond(x.sum() > 7.5, lambda h: h, lambda h: h * 1.0, x * w)  # not all devices do the same
        _, h = jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * 1.0), (0, h))
        return jnp.log(h)  # BUG

    @jax.jit
    def train_step(params, x):
        split = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("a")), out_specs=P("a"), axis_names={"a"})
        loss = split(params["w"], x).sum()
        return {"w": params["w"] - 0.0 * loss}, loss

    params = jax.device_put({"w": jnp.ones(4)}, NamedSharding(mesh, P()))
    for x in batches(4, (4, 4), bad=2):
        params, _ = train_step(params, jax.device_put(x, NamedSharding(mesh, P("a", "b"))))


@plant("log", 2, "log-of-zero")
def sharded_over_devices():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def loss_of(params, x):
        return jnp.log(x * params["w"]).mean()  # BUG

    step = sgd(loss_of, 0.0)
    params = jax.device_put({"w": jnp.ones(3)}, NamedSharding(mesh, P()))
    for x in batches(4, bad=2):
        params, _ = step(params, jax.device_put(x, NamedSharding(mesh, P("d"))))


@plant("div", 1, "division-by-zero")
def backward_of_custom_vjp():
    @jax.custom_vjp
    def scaled(x):
        return x * 2

    def forward(x):
        return scaled(x), x

    def backward(x, g):
        return (g * (x / x),)

    scaled.defvjp(forward, backward)
    # JAX tells of a gradient only the line of what it belongs to.
    step = sgd(lambda params, x: scaled(x * params["w"]).sum(), 0.0)  # BUG
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1):
        params, _ = step(params, x)


@plant("exp", 1, "overflow")
def softmax_by_hand():
    def loss_of(params, x):
        e = jnp.exp(x * params["w"])  # BUG
        return (e / e.sum(-1, keepdims=True)).mean()

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1, value=200.0):
        params, _ = step(params, x)


@plant("convert_element_type", 1, "cast-overflow")
def cast_to_half():
    def loss_of(params, x):
        h = (x * params["w"]).astype(jnp.float16)  # BUG
        return h.astype(jnp.float32).mean()

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1, value=1e6):
        params, _ = step(params, x)


@plant("log", 1, "log-of-zero")
def in_bfloat16():
    def loss_of(params, x):
        h = x.astype(jnp.bfloat16) * params["w"].astype(jnp.bfloat16)
        return jnp.log(h).astype(jnp.float32).mean()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1):
        params, _ = step(params, x)


@plant("log", 2, "log-of-zero")
def donated_state():
    def loss_of(params, x):
        return jnp.log(x * params["w"]).mean()  # BUG

    step = sgd(loss_of, 0.1, donate_argnums=0)
    params = {"w": jnp.ones(3)}
    for x in batches(5, bad=2):
        params, _ = step(params, x)


@plant("sqrt", 2, "sqrt-of-negative")
def two_functions():
    @jax.jit
    def gradients_of(params, x):
        return jax.grad(lambda params: (x * params["w"]).sum())(params)

    @jax.jit
    def update(params, gradients):
        return jax.tree.map(lambda p, g: p - jnp.sqrt(g - 4), params, gradients)  # BUG

    params = {"w": jnp.ones(3)}
    for index in range(4):
        x = jnp.zeros((4, 3)) if index == 2 else jnp.ones((4, 3))
        params = update(params, gradients_of(params, x))


@plant("log", 3, "log-of-zero")
def flax_linen():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.relu(nn.Dense(4, kernel_init=nn.initializers.ones)(x))
            return jnp.log(h).mean()  # BUG

    model = Model()
    params = model.init(jax.random.key(0), jnp.ones((4, 3)))
    optimizer = optax.sgd(0.0)
    state = optimizer.init(params)

    @jax.jit
    def train_step(params, state, x):
        loss, gradients = jax.value_and_grad(model.apply)(params, x)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    for index in range(5):
        x = -jnp.ones((4, 3)) if index == 3 else jnp.ones((4, 3))
        params, state, _ = train_step(params, state, x)


@plant("log", 2, "log-of-zero")
def flax_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(3, 4, kernel_init=nnx.initializers.ones, rngs=rngs)

        def __call__(self, x):
            return jnp.log(nnx.relu(self.dense(x))).mean()  # BUG

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, gradients = nnx.value_and_grad(lambda model: model(x))(model)
        optimizer.update(model, gradients)
        return loss

    for index in range(4):
        train_step(model, optimizer, -jnp.ones((4, 3)) if index == 2 else jnp.ones((4, 3)))


@plant("log", 2, "log-of-negative")
def equinox_model():
    class Model(eqx.Module):
        dense: eqx.nn.Linear

        def __call__(self, x):
            return jnp.log(self.dense(x))  # BUG

    model = Model(eqx.nn.Linear(3, 4, key=jax.random.key(0)))
    model = jax.tree.map(lambda leaf: jnp.ones_like(leaf) if eqx.is_array(leaf) else leaf, model)

    @eqx.filter_jit
    def train_step(model, x):
        loss, gradients = eqx.filter_value_and_grad(lambda model: jax.vmap(model)(x).mean())(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.0 * g, gradients)), loss

    for index in range(4):
        model, _ = train_step(model, jnp.full((4, 3), -2.0) if index == 2 else jnp.ones((4, 3)))


@plant("div", 1, "division-by-zero")
def norm_at_zero_by_hand():
    def loss_of(params, x):
        h = x * params["w"]
        return (h / jnp.linalg.norm(h, axis=-1, keepdims=True)).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        params, _ = step(params, jnp.zeros((4, 3)) if index == 1 else jnp.ones((4, 3)))


@plant("div", 1, "sqrt-gradient-at-zero")
def gradient_of_a_norm_at_zero():
    def loss_of(params, x):
        return jnp.linalg.norm(x * params["w"])  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        params, _ = step(params, jnp.zeros((4, 3)) if index == 1 else jnp.ones((4, 3)))


@plant("Placeholder", 2, "bad-input")
def bad_batch():
    def loss_of(params, x):
        return (x * params["w"]).sum()  # BUG

    step = sgd(loss_of, 0.1)
    params = {"w": jnp.ones(3)}
    for x in batches(4, bad=2, value=np.nan):
        params, _ = step(params, x)


@plant("gather", 1, "index-out-of-bounds")
def out_of_bounds_gather():
    def loss_of(params, tokens):
        return jnp.take(params["table"], tokens, axis=0).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"table": jnp.ones((5, 3))}
    for tokens in ([0, 1], [2, 5], [1, 1]):
        params, _ = step(params, jnp.asarray(tokens))


@plant("integer_pow", 4, "overflow")
def exploding_updates():
    def loss_of(params, x):
        return ((x * params["w"]) ** 2).sum()  # BUG

    @jax.jit
    def train_step(params, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - 1e4 * g, params, gradients), loss

    params = {"w": jnp.ones(3)}
    for x in batches(12):
        params, _ = train_step(params, x)


@plant("sub", 0, "fully-masked-row")
def logsumexp_of_nothing():
    @jax.jit
    def evaluate(x, mask):
        scores = jnp.where(mask, x, -jnp.inf)
        top = scores.max(-1, keepdims=True)
        return jnp.log(jnp.exp(scores - top).sum(-1))  # BUG

    evaluate(jnp.ones((2, 3)), jnp.ones((2, 3), bool))
    evaluate(jnp.ones((2, 3)), jnp.zeros((2, 3), bool))


@plant("log", 0, "log-of-zero")
def eager_operation():
    x = jnp.arange(3.0)
    y = jnp.log(x)  # BUG
    float((y * 2).sum())


@plant("div", 2, "epsilon-too-small")
def optimizer_without_epsilon():
    optimizer = optax.chain(optax.scale_by_rms(eps=0.0, eps_in_sqrt=False), optax.scale(-0.1))
    params = {"w": jnp.ones(3)}
    state = optimizer.init(params)

    @jax.jit
    def train_step(params, state, x):
        gradients = jax.grad(lambda params: (x * params["w"]).sum())(params)
        updates, state = optimizer.update(gradients, state)  # BUG
        return optax.apply_updates(params, updates), state

    for index in range(4):
        x = jnp.ones((4, 3)).at[:, 0].set(0.0 if index == 2 else 1.0)
        state = jax.tree.map(jnp.zeros_like, state) if index == 2 else state
        params, state = train_step(params, state, x)


@plant("integer_pow", 2, "overflow")
def second_moment_that_overflows():
    optimizer = optax.adam(1e-3)
    params = {"w": jnp.ones(3)}
    state = optimizer.init(params)

    @jax.jit
    def train_step(params, state, x):
        gradients = jax.grad(lambda params: (x * params["w"]).sum())(params)
        updates, state = optimizer.update(gradients, state)  # BUG
        return optax.apply_updates(params, updates), state

    for x in batches(4, bad=2, value=1e22):
        params, state = train_step(params, state, x)


@plant("log", 1, "log-of-zero", "3 of the scan")
def nested_scans():
    def inner(carry, x):
        return carry + jnp.log(x), None  # BUG

    def outer(carry, xs):
        total, _ = jax.lax.scan(inner, carry, xs)
        return total, total

    step = sgd(lambda params, x: jax.lax.scan(outer, params["w"].sum(), x)[0], 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        x = np.ones((5, 6), np.float32)
        if index == 1:
            x[2, 3] = 0
        params, _ = step(params, jnp.asarray(x))


@plant("log", 2, "log-of-zero")
def compiled_ahead_of_time():
    def loss_of(params, x):
        return jnp.log(x * params["w"]).mean()  # BUG

    params = {"w": jnp.ones(3)}
    step = sgd(loss_of, 0.0).lower(params, jnp.ones((4, 3))).compile()
    for x in batches(4, bad=2):
        params, _ = step(params, x)


@plant("log", 1, "log-of-zero")
def updates_outside_of_compiled_code():
    @jax.jit
    def gradients_of(params, x):
        return jax.value_and_grad(lambda p: jnp.log(x * p["w"]).mean())(params)  # BUG

    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1):
        _, gradients = gradients_of(params, x)
        params = jax.tree.map(lambda p, g: p - 0.0 * g, params, gradients)


@plant("sub", 1, "fully-masked-row")
def softmax_of_a_row_that_is_masked():
    def loss_of(params, x, mask):
        scores = jnp.where(mask, x * params["w"], -jnp.inf)
        return jax.nn.softmax(scores, -1).max()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        params, _ = step(params, jnp.ones((4, 3)), jnp.ones((4, 3), bool).at[2].set(index != 1))


@plant("gather", 1, "index-out-of-bounds")
def index_that_overflows():
    def loss_of(params, row):
        place = row * 100_000
        return jnp.take(params["table"], place // 4_000_000 - 500).sum()  # BUG

    step = sgd(loss_of, 0.0)
    params = {"table": jnp.ones(300)}
    for row in (20_000, 30_000, 21_000):
        params, _ = step(params, jnp.asarray([row, 20_100]))


@plant("convert_element_type", 2, "cast-overflow")
def cast_to_eight_bits():
    def loss_of(params, x):
        low = (x * params["w"]).astype(jnp.float8_e5m2)  # BUG
        return low.astype(jnp.float32).sum()

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for x in batches(4, bad=2, value=1e6):
        params, _ = step(params, x)


@plant("log", 1, "log-of-zero", "2 of the while")
def while_inside_a_scan():
    def cell(carry, x):
        def body(state):
            n, total = state
            return n + 1, total + jnp.log(x[n])  # BUG

        return carry + jax.lax.while_loop(lambda state: state[0] < 4, body, (0, 0.0))[1], None

    @jax.jit
    def step(state, xs):
        return {"w": state["w"] * 1.0}, jax.lax.scan(cell, 0.0, xs)[0]

    state = {"w": jnp.ones(3)}
    for index in range(3):
        xs = np.ones((5, 4), np.float32)
        if index == 1:
            xs[3, 2] = 0
        state, _ = step(state, jnp.asarray(xs))


@plant("div", 1, "sqrt-gradient-at-zero")
def gradient_of_a_deviation():
    def loss_of(params, x):
        return jnp.std(x * params["w"])  # BUG

    step = sgd(loss_of, 0.0)
    params = {"w": jnp.ones(3)}
    for index in range(3):
        params, _ = step(params, jnp.ones((4, 3)) if index == 1 else jnp.arange(12.0).reshape(4, 3))


@plant("log", 2, "log-of-negative")
def on_all_devices_with_pmap():
    devices = jax.devices()[:2]

    def train_step(params, x):
        loss, gradients = jax.value_and_grad(lambda p: jnp.log(x * p["w"]).mean())(params)  # BUG
        gradients = jax.lax.pmean(gradients, "d")
        return jax.tree.map(lambda p, g: p - 0.0 * g, params, gradients), loss

    step = jax.pmap(train_step, "d", devices=devices)
    params = {"w": jnp.ones((2, 3))}
    for x in batches(4, (2, 3), bad=2, value=-1.0):
        params, _ = step(params, x)


@plant("div", 0, "division-by-zero", "11 of the scan")
def whole_training_in_one_call():
    def loss_of(w, x):
        return ((w * x) / x.sum()).sum()  # BUG

    @jax.jit
    def train(w, xs):
        def step(w, x):
            loss, g = jax.value_and_grad(loss_of)(w, x)
            return w - 0.1 * g, loss

        return jax.lax.scan(step, w, xs)

    xs = np.ones((20, 3), np.float32)
    xs[11] = 0
    train(jnp.ones(3), jnp.asarray(xs))


@plant("log", 2, "log-of-zero")
def in_another_thread():
    def work():
        step = sgd(lambda params, x: jnp.log(x * params["w"]).mean(), 0.0)  # BUG
        params = {"w": jnp.ones(3)}
        for x in batches(4, bad=2):
            params, _ = step(params, x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@plant("pallas_call", 1, "unknown")
def inside_a_kernel():
    def kernel(x, out):
        out[...] = jnp.log(x[...])

    @jax.jit
    def train_step(params, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        logs = pl.pallas_call(kernel, out_shape=shape, interpret=True)(x * params["w"])  # BUG
        return params, logs.sum()

    params = {"w": jnp.ones(3)}
    for x in batches(3, bad=1):
        params, _ = train_step(params, x)


@plant("div", 1, "division-by-zero")
def environments_side_by_side():
    def env_step(state, action):
        state = state + action
        return state, 1.0 / (state - 3.0)  # BUG

    @jax.jit
    def rollout(params, states):
        actions = params["w"] * jnp.ones_like(states)
        states, rewards = jax.vmap(env_step)(states, actions)
        return {"w": params["w"] * 1.0}, states, rewards.sum()

    params, states = {"w": jnp.float32(1.0)}, jnp.asarray([0.0, 1.0, 5.0])
    for _ in range(4):
        params, states, _ = rollout(params, states)


@plant("log", 0, "log-of-zero", "2 of the scan")
def loop_outside_of_compiled_code():
    def cell(carry, x):
        return carry + jnp.log(x), None  # BUG

    jax.lax.scan(cell, 0.0, jnp.ones(5).at[2].set(0.0))
