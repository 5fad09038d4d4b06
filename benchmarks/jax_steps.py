"""What watching a JAX program costs: python benchmarks/jax_steps.py [gpt mlp rnn] [--steps 20]

Each program is a whole training step with adamw, compiled. Everything is measured in one process, in turns, and told as
a ratio of medians to the plain program: `sentinel` is what `tensortap run` does, `health` the health of all tensors in
every step through a session, `jax_debug_nans` and `checkify` what JAX offers. Compile times include
tracing and lowering.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import checkify

import tensortap as tt
from tensortap.engines.jax.engine import ENGINE
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.sink.queue import shared_queue

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 4, 256, 4, 128, 8


def gpt():
    rng = np.random.default_rng(0)

    def weight(*shape):
        return jnp.asarray(rng.normal(size=shape) * 0.02, jnp.float32)

    params = {
        "embed": weight(1000, WIDTH),
        "blocks": [
            {"qkv": weight(WIDTH, 3 * WIDTH), "out": weight(WIDTH, WIDTH), "up": weight(WIDTH, 4 * WIDTH)}
            | {"down": weight(4 * WIDTH, WIDTH), "n1": jnp.ones(WIDTH), "n2": jnp.ones(WIDTH)}
            for _ in range(LAYERS)
        ],
    }

    def norm(x, scale):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def loss_of(params, tokens):
        x = params["embed"][tokens]
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        for block in params["blocks"]:
            q, k, v = jnp.split(norm(x, block["n1"]) @ block["qkv"], 3, -1)
            q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).swapaxes(1, 2) for t in (q, k, v))
            scores = q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH / HEADS)
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
            x = x + (weights @ v).swapaxes(1, 2).reshape(BATCH, LENGTH, WIDTH) @ block["out"]
            x = x + jax.nn.gelu(norm(x, block["n2"]) @ block["up"]) @ block["down"]
        logits = jax.nn.log_softmax(x[:, :-1] @ params["embed"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    tokens = jnp.asarray(rng.integers(0, 1000, (BATCH, LENGTH)))
    return loss_of, params, tokens


def mlp():
    rng = np.random.default_rng(0)
    sizes = [784, 1024, 1024, 10]
    params = [
        {"w": jnp.asarray(rng.normal(size=(a, b)) * 0.03, jnp.float32), "b": jnp.zeros(b)}
        for a, b in itertools.pairwise(sizes)
    ]

    def loss_of(params, x):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return jax.nn.log_softmax(x @ params[-1]["w"] + params[-1]["b"])[:, 3].mean()

    return loss_of, params, jnp.asarray(rng.normal(size=(256, 784)), jnp.float32)


def rnn():
    rng = np.random.default_rng(0)
    params = {
        "x": jnp.asarray(rng.normal(size=(64, 256)) * 0.1, jnp.float32),
        "h": jnp.asarray(rng.normal(size=(256, 256)) * 0.05, jnp.float32),
    }

    def loss_of(params, xs):
        def cell(h, x):
            h = jnp.tanh(x @ params["x"] + h @ params["h"])
            return h, (h * h).mean()

        return jax.lax.scan(cell, jnp.zeros((64, 256)), xs)[1].mean()

    return loss_of, params, jnp.asarray(rng.normal(size=(100, 64, 64)), jnp.float32)


PROGRAMS = {"gpt": gpt, "mlp": mlp, "rnn": rnn}


def step_of(loss_of, optimizer):
    def train_step(state, batch):
        params, opt_state = state
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": loss}

    return train_step


def timed(action):
    """How long something takes, unless it says so itself."""
    began = time.perf_counter()
    own = action()
    return own if isinstance(own, float) else time.perf_counter() - began


def measure(name, steps, rounds, directory):
    loss_of, params, batch = PROGRAMS[name]()
    optimizer = optax.adamw(1e-3)
    start = (params, optimizer.init(params))
    step = step_of(loss_of, optimizer)

    def loop(function):
        def run():
            state = start
            for _ in range(steps):
                state, _ = function(state, batch)
            jax.block_until_ready(state)

        return run

    plain = jax.jit(step)
    compile_plain = timed(lambda: plain.lower(start, batch).compile())
    guarded = jax.jit(lambda *a: step(*a))

    class Followed:
        def __enter__(self):
            root = Path(tempfile.mkdtemp(dir=directory)) / "root"
            self.watch = ScriptWatch(ScriptOptions(root, tt.WatchOptions("DebugNumericSummary", keep_bad=3)))
            self.follower = ENGINE.follow(self.watch)

        def __exit__(self, *error):
            self.follower.end()
            self.watch.close()

    def sentinel():
        with Followed():
            jax.block_until_ready(guarded(start, batch))  # the program is looked through: once per program
            return timed(loop(guarded))

    session = tt.jax.Session(jax.jit(step), start)
    health = tt.WatchOptions("DebugNumericSummary(mute_if_healthy=true)", keep_bad=3)
    root = tempfile.mkdtemp(dir=directory)
    wrapped = tt.DumpingDebugWrapperSession(session, root + "/watched", watch_fn=health)

    def watched():
        session.replace_state(start)
        for _ in range(steps):
            wrapped.run(None, {"batch": batch})
        shared_queue().drain(60)

    def nans():
        with jax.debug_nans(True):
            loop(plain)()

    checked = jax.jit(checkify.checkify(step, errors=checkify.nan_checks))

    def with_checkify():
        state = start
        for _ in range(steps):
            error, (state, _) = checked(state, batch)
            error.throw()
        jax.block_until_ready(state)

    loop(plain)()
    compile_watched = timed(lambda: wrapped.run(None, {"batch": batch})) - timed(loop(plain)) / steps
    compile_checked = timed(lambda: checked.lower(start, batch).compile())
    ways = {
        "plain": loop(plain),
        "sentinel": sentinel,
        "health": watched,
        "jax_debug_nans": nans,
        "checkify": with_checkify,
    }
    times = {way: [] for way in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for way, run in ways.items():
            times[way].append(timed(run))
    base = statistics.median(times["plain"])
    print(
        f"{name:5} {base / steps * 1e3:8.1f} ms/step  compile {compile_plain:.1f} s, "
        f"watched {compile_watched / compile_plain:.2f}x, checkify {compile_checked / compile_plain:.2f}x"
    )
    for way, found in times.items():
        print(
            f"      {way:15} {statistics.median(found) / base:6.3f}x  "
            f"(best/best {min(found) / min(times['plain']):.3f})"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name in options.programs:
            measure(name, options.steps, options.rounds, directory)


if __name__ == "__main__":
    main()
