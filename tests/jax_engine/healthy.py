"""Programs in which nothing is wrong, whatever they do; each returns what it has worked out."""

from __future__ import annotations

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.jax_engine.planted import sgd

HEALTHY = {}


def healthy(program):
    HEALTHY[program.__name__] = program
    return program


def data(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def trained(loss_of, params, batches, **options):
    step = sgd(loss_of, 0.05, **options)
    losses = []
    for batch in batches:
        params, loss = step(params, *batch)
        losses.append(loss)
    return params, losses


@healthy
def regression():
    batches = [(data(8, 3, seed=n), data(8, seed=n + 50)) for n in range(6)]
    return trained(lambda p, x, y: ((x @ p["w"] + p["b"] - y) ** 2).mean(), {"w": data(3), "b": 0.0}, batches)


@healthy
def perceptron_with_donation():
    def loss_of(p, x):
        return (jax.nn.relu(x @ p["a"]) @ p["b"]).var()

    return trained(
        loss_of,
        {"a": data(3, 16), "b": data(16, 2)},
        [(data(8, 3, seed=n),) for n in range(6)],
        donate_argnums=0,
    )


@healthy
def attention_with_a_mask():
    def loss_of(p, x):
        q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
        scores = q @ k.T / jnp.sqrt(8.0)
        mask = jnp.tril(jnp.ones((6, 6), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        return ((weights @ v) ** 2).mean()

    return trained(loss_of, {n: data(4, 8, seed=i) for i, n in enumerate("qkv")}, [(data(6, 4),)] * 4)


@healthy
def double_where():
    def loss_of(p, x):
        h = x * p["w"]
        safe = jnp.where(h > 0, h, 1.0)
        return jnp.where(h > 0, jnp.log(safe), 0.0).sum()

    return trained(loss_of, {"w": jnp.ones(3)}, [(data(5, 3, seed=n),) for n in range(4)])


@healthy
def recurrent_scan():
    def loss_of(p, xs):
        def cell(h, x):
            h = jnp.tanh(h @ p["h"] + x @ p["x"])
            return h, h

        return (jax.lax.scan(cell, jnp.zeros(4), xs)[1] ** 2).mean()

    return trained(
        loss_of, {"h": data(4, 4) * 0.3, "x": data(3, 4)}, [(data(20, 3, seed=n),) for n in range(4)]
    )


@healthy
def newton_in_a_while():
    @jax.jit
    def root(x):
        def body(state):
            guess, n = state
            return 0.5 * (guess + x / guess), n + 1

        return jax.lax.while_loop(lambda s: (jnp.abs(s[0] ** 2 - x) > 1e-5) & (s[1] < 50), body, (x, 0))

    return [root(jnp.float32(each)) for each in (2.0, 3.0, 10.0)]


@healthy
def least_so_far():
    """A search begins with infinity, and every branch and bound does."""

    @jax.jit
    def least(xs):
        def body(best, x):
            return jnp.minimum(best, x), None

        return jax.lax.scan(body, jnp.inf, xs)[0]

    return least(data(30))


@healthy
def fori_and_cond():
    @jax.jit
    def walk(x):
        def body(n, x):
            return jax.lax.cond(x.sum() > 0, lambda v: v - 0.1, lambda v: v + 0.1 * n, x)

        return jax.lax.fori_loop(0, 10, body, x)

    return walk(data(4))


@healthy
def switched():
    @jax.jit
    def choose(n, x):
        return jax.lax.switch(n, [jnp.sin, jnp.cos, lambda v: jnp.log(jnp.abs(v) + 1)], x)

    return [choose(n, data(4)) for n in range(3)]


@healthy
def dropout_by_keys():
    def loss_of(p, x, key):
        keep = jax.random.bernoulli(key, 0.7, (8, 16))
        return (jnp.where(keep, x @ p["w"], 0.0) ** 2).mean()

    keys = jax.random.split(jax.random.key(3), 5)
    return trained(loss_of, {"w": data(3, 16)}, [(data(8, 3), key) for key in keys])


@healthy
def old_style_keys():
    @jax.jit
    def noise(key):
        key, now = jax.random.split(key)
        return key, jax.random.normal(now, (3,))

    key, found = jax.random.PRNGKey(0), []
    for _ in range(3):
        key, value = noise(key)
        found.append(value)
    return found


@healthy
def custom_derivative():
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    return trained(lambda p, x: (clipped(x * p["w"]) ** 2).sum(), {"w": jnp.ones(3)}, [(data(4, 3),)] * 3)


@healthy
def custom_jvp_function():
    @jax.custom_jvp
    def softplus(x):
        return jnp.logaddexp(x, 0.0)

    softplus.defjvps(lambda t, _, x: t * jax.nn.sigmoid(x))
    return trained(lambda p, x: softplus(x * p["w"]).sum(), {"w": jnp.ones(3)}, [(data(4, 3),)] * 3)


@healthy
def checkpointed():
    @jax.checkpoint
    def block(w, x):
        return jnp.sin(x @ w)

    def loss_of(p, x):
        for w in p:
            x = block(w, x)
        return x.mean()

    return trained(loss_of, [data(4, 4, seed=n) for n in range(3)], [(data(8, 4),)] * 3)


@healthy
def mixed_precision():
    def loss_of(p, x):
        h = x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16)
        return (h.astype(jnp.float32) ** 2).mean()

    return trained(loss_of, {"w": data(3, 4)}, [(data(8, 3),)] * 4)


@healthy
def small_floats():
    @jax.jit
    def quantise(x):
        low = x.astype(jnp.float8_e4m3fn)
        return low.astype(jnp.float32), (x * 7).astype(jnp.int4).astype(jnp.int32)

    return quantise(data(16) * 0.1)


@healthy
def complex_numbers():
    @jax.jit
    def spectrum(x):
        return jnp.abs(jnp.fft.fft(x)) ** 2, jnp.exp(1j * x)

    return spectrum(data(16))


@healthy
def double_precision():
    with jax.enable_x64(True):
        x = jnp.linspace(0.1, 2.0, 9, dtype=jnp.float64)
        return np.asarray(jax.jit(jax.vmap(jax.grad(lambda v: jnp.log(v) * jnp.sin(v))))(x))


@healthy
def sharded_step():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    params = jax.device_put({"w": data(8, 2)}, NamedSharding(mesh, P()))
    batches = [(jax.device_put(data(16, 8, seed=n), NamedSharding(mesh, P("d"))),) for n in range(3)]
    return trained(lambda p, x: ((x @ p["w"]) ** 2).mean(), params, batches)


@healthy
def summed_over_a_mesh():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P())
    def total(x):
        return jax.lax.psum(jnp.exp(x).sum(), "d")

    return total(data(16))


@healthy
def ahead_of_time():
    step = jax.jit(lambda p, x: (p - 0.1 * x.mean(0), (p * x).sum()))
    compiled = step.lower(jnp.ones(3), jnp.ones((4, 3))).compile()
    p = jnp.ones(3)
    for n in range(3):
        p, _ = compiled(p, data(4, 3, seed=n))
    return p


@healthy
def not_compiled():
    p = jnp.ones(3)
    loss_of = jax.value_and_grad(lambda p, x: ((x @ p) ** 2).mean())
    for n in range(3):
        loss, g = loss_of(p, data(4, 3, seed=n))
        p = p - 0.1 * g
    with jax.disable_jit():
        return p, loss, jax.jit(jnp.sin)(p)


@healthy
def callbacks():
    seen = []

    @jax.jit
    def noisy(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct((4,), jnp.float32), x) * 2

    found = noisy(jnp.arange(4.0))
    jax.effects_barrier()
    return found, seen


@healthy
def linen_with_optax():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm()(nn.gelu(nn.Dense(8)(x)))
            return nn.Dense(1)(x)

    model = Model()
    params = model.init(jax.random.key(0), jnp.ones((2, 3)))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    state = optimizer.init(params)

    @jax.jit
    def train_step(params, state, x, y):
        loss, g = jax.value_and_grad(lambda p: ((model.apply(p, x)[:, 0] - y) ** 2).mean())(params)
        updates, state = optimizer.update(g, state, params)
        return optax.apply_updates(params, updates), state, loss

    for n in range(4):
        params, state, loss = train_step(params, state, data(8, 3, seed=n), data(8, seed=n))
    return params, loss


@healthy
def linen_batch_norm():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3))(x)).mean()

    model = Model()
    variables = model.init(jax.random.key(0), jnp.ones((2, 8, 8, 1)), True)

    @jax.jit
    def train_step(variables, x):
        def loss_of(params):
            return model.apply({**variables, "params": params}, x, True, mutable=["batch_stats"])

        (loss, new), g = jax.value_and_grad(loss_of, has_aux=True)(variables["params"])
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], g), **new}, loss

    for n in range(3):
        variables, loss = train_step(variables, data(2, 8, 8, 1, seed=n))
    return variables, loss, jax.jit(lambda v, x: model.apply(v, x, False))(variables, data(2, 8, 8, 1))


@healthy
def nnx_with_an_optimizer():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x):
            return self.second(self.dropout(nnx.relu(self.first(x))))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, g = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, g)
        return loss

    losses = [train_step(model, optimizer, data(8, 3, seed=n)) for n in range(4)]
    return losses, jax.tree.leaves(nnx.state(model, nnx.Param))


@healthy
def equinox_training():
    model = eqx.nn.MLP(3, 1, 8, 2, key=jax.random.key(1))
    optimizer = optax.sgd(0.05, momentum=0.9)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def train_step(model, state, x):
        loss, g = eqx.filter_value_and_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
        updates, state = optimizer.update(g, state)
        return eqx.apply_updates(model, updates), state, loss

    for n in range(4):
        model, state, loss = train_step(model, state, data(8, 3, seed=n))
    return loss, jax.tree.leaves(eqx.filter(model, eqx.is_array))


@healthy
def state_that_begins_infinite():
    optimizer = optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=1))
    params = {"w": data(3)}
    state = optimizer.init(params)

    @jax.jit
    def train_step(params, state, best, x):
        loss, gradients = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).mean())(params)
        updates, state = optimizer.update(gradients, state, params, value=loss)
        return (
            optax.apply_updates(params, updates),
            state,
            {"loss": jnp.minimum(best["loss"], loss), "never": best["never"]},
        )

    best = {"loss": jnp.inf, "never": jnp.inf}
    for n in range(5):
        params, state, best = train_step(params, state, best, data(8, 3, seed=n))
    return params, state, best


@healthy
def associative_scan():
    return jax.jit(lambda x: jax.lax.associative_scan(jnp.multiply, x))(data(10))


@healthy
def evaluation_between_steps():
    step = sgd(lambda p, x: ((x @ p["w"]) ** 2).mean(), 0.1)
    evaluate = jax.jit(lambda p, x: {"score": (x @ p["w"]).max(), "none": jnp.float32(-jnp.inf)})
    params, scores = {"w": data(3)}, []
    for n in range(4):
        params, _ = step(params, data(8, 3, seed=n))
        scores.append(evaluate(params, data(5, 3))["score"])
    return params, scores


@healthy
def second_derivatives():
    return jax.jit(jax.hessian(lambda x: jnp.prod(jnp.sin(x))))(data(3))
