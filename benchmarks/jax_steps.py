"""What watching a JAX program costs: python benchmarks/jax_steps.py [gpt mlp rnn] [--steps 20] [--ways sentinel health]

Each program is a whole training step with adamw, compiled. Everything is measured in one process, in turns: `sentinel`
is what `tensortap run` does, `health` the health of all tensors in every step through a session, `jax_debug_nans` and
`checkify` what JAX offers. Told are ratios to the plain program of the same round, as a median over rounds, and of the
best rounds. Compile times include tracing and lowering.

At last the plain program and the one under the sentinel are called without waiting for anything: how many steps the
host is ahead of the device, and how many bytes there are, at most. `--donate` gives the state away in all of
them. (A script called `jax.py` here would be imported in the place of the package.)
"""

from __future__ import annotations

import argparse
import itertools
import resource
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


class Followed:
    """The sentinel, as `tensortap run` has it."""

    def __init__(self, directory):
        self.directory = directory

    def __enter__(self):
        root = Path(tempfile.mkdtemp(dir=self.directory)) / "root"
        self.watch = ScriptWatch(ScriptOptions(root, tt.WatchOptions("DebugNumericSummary", keep_bad=3)))
        self.follower = ENGINE.follow(self.watch)
        return self.watch

    def __exit__(self, *error):
        self.follower.end()
        self.watch.close()


class Training:
    """A program: its step, and ways to execute it.

    Args:
        name: of the program.
        donate: whether every step is given the state away.
        directory: for what is recorded.
    """

    def __init__(self, name, donate, directory):
        loss_of, params, self.batch = PROGRAMS[name]()
        optimizer = optax.adamw(1e-3)
        self.start = (params, optimizer.init(params))
        self.step = step_of(loss_of, optimizer)
        self.donated = {"donate_argnums": 0} if donate else {}
        self.directory = directory

    def jitted(self, function):
        """Compiled, as something of its own."""
        return jax.jit(lambda *args: function(*args), **self.donated)

    def fresh(self):
        """A state to begin with."""
        state = jax.tree.map(jnp.copy, self.start) if self.donated else self.start
        return jax.block_until_ready(state)

    def ways(self, steps):
        """What is measured: functions that execute some steps, and may say themselves how long they took."""
        plain, guarded = self.jitted(self.step), self.jitted(self.step)
        checked = self.jitted(checkify.checkify(self.step, errors=checkify.nan_checks))
        session = tt.jax.Session(jax.jit(self.step), self.start)
        health = tt.WatchOptions("DebugNumericSummary(mute_if_healthy=true)", keep_bad=3)
        root = tempfile.mkdtemp(dir=self.directory)
        wrapped = tt.DumpingDebugWrapperSession(session, root + "/watched", watch_fn=health)

        def loop(function):
            state = self.fresh()

            def run():
                nonlocal state
                for _ in range(steps):
                    state, _ = function(state, self.batch)
                jax.block_until_ready(state)

            return timed(run)

        def sentinel():
            with Followed(self.directory):
                # Programs are looked through once.
                jax.block_until_ready(guarded(self.fresh(), self.batch))
                return loop(guarded)

        def watched():
            session.replace_state(self.start)
            for _ in range(steps):
                wrapped.run(None, {"batch": self.batch})
            shared_queue().drain(60)

        def nans():
            with jax.debug_nans(True):
                return loop(plain)

        def checks(state, batch):
            error, results = checked(state, batch)
            error.throw()
            return results

        return {
            "plain": lambda: loop(plain),
            "sentinel": sentinel,
            "health": watched,
            "jax_debug_nans": nans,
            "checkify": lambda: loop(checks),
        }

    def compile_times(self):
        """Seconds: plain, and as ratios to that the watched program and the one of checkify."""
        ways = self.ways(1)
        checked = self.jitted(checkify.checkify(self.step, errors=checkify.nan_checks))
        plain = timed(lambda: self.jitted(self.step).lower(self.start, self.batch).compile())
        of_checkify = timed(lambda: checked.lower(self.start, self.batch).compile())
        ways["plain"]()
        watched = timed(ways["health"]) - timed(ways["plain"])
        return plain, watched / plain, of_checkify / plain

    def ahead(self, function, steps):
        """What is so at most, if nobody waits: steps that the host is ahead, bytes of arrays, and of the process."""
        jax.block_until_ready(function(self.fresh(), self.batch))
        state = jax.block_until_ready(jax.tree.map(jnp.copy, self.start))
        losses, most_ahead, most_arrays, most_resident = [], 0, 0, 0
        arrays = sum(each.nbytes for each in jax.live_arrays())
        for _ in range(steps):
            state, metrics = function(state, self.batch)
            losses.append(metrics["loss"])
            while losses and losses[0].is_ready():
                del losses[0]
            most_ahead = max(most_ahead, len(losses))
            most_arrays = max(most_arrays, sum(each.nbytes for each in jax.live_arrays()))
            most_resident = max(most_resident, resident())
        jax.block_until_ready(state)
        state_bytes = sum(each.nbytes for each in jax.tree.leaves(state))
        return (
            f"{most_ahead:3} steps ahead, arrays {(most_arrays - arrays + state_bytes) / 1e6:6.1f} MB "
            f"(the state {state_bytes / 1e6:.1f}), process {most_resident / 1e6:.0f} MB"
        )


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(name, options, directory):
    training = Training(name, options.donate, directory)
    ways = {way: run for way, run in training.ways(options.steps).items() if way in ("plain", *options.ways)}
    if options.compile:
        seconds, watched, checked = training.compile_times()
        print(
            f"{name:5} compile {seconds:.1f} s, watched {watched:.2f}x, checkify {checked:.2f}x", flush=True
        )
    times = {way: [] for way in ways}
    for run in ways.values():
        run()
    for _ in range(options.rounds):
        for way, run in ways.items():
            times[way].append(timed(run))
    plain = times["plain"]
    print(f"{name:5} {statistics.median(plain) / options.steps * 1e3:8.1f} ms/step")
    for way, found in times.items():
        ratio = statistics.median(each / base for each, base in zip(found, plain, strict=True))
        print(f"      {way:15} {ratio:6.3f}x  (best/best {min(found) / min(plain):.3f})", flush=True)
    if "sentinel" not in ways:
        return
    print(f"      called without waiting, {options.ahead} steps:")
    function = training.jitted(training.step)
    print(f"      {'plain':15} {training.ahead(function, options.ahead)}")
    with Followed(directory):
        print(f"      {'sentinel':15} {training.ahead(function, options.ahead)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ahead", type=int, default=80)
    parser.add_argument("--ways", nargs="+", default=["sentinel", "health", "jax_debug_nans", "checkify"])
    parser.add_argument("--donate", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name in options.programs:
            measure(name, options, directory)


if __name__ == "__main__":
    main()
